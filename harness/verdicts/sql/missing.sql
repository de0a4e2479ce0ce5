-- missing: the last run of this stack and lane had the case and this one has not, or measured it
-- and this one skipped it. A lane of which a run has no case at all was not asked for.
SELECT
    b.run, p.stack, p.lane, p.topology, p.case,
    b.before, b.run AS since,
    CAST(NULL AS VARCHAR(99)) AS number, CAST(NULL AS DOUBLE) AS was, CAST(NULL AS DOUBLE) AS now
FROM (
    SELECT
        l.run, l.stack, l.lane,
        LAG(l.run) OVER (PARTITION BY l.stack, l.lane ORDER BY l.run) AS before
    FROM runs l
) b
JOIN asked q ON q.run = b.run
JOIN cases p ON p.run = b.before AND p.stack = b.stack AND p.lane = b.lane
LEFT JOIN cases n
    ON n.run = b.run AND n.lane = p.lane AND n.topology = p.topology AND n.case = p.case
WHERE n.run IS NULL OR (n.outcome = 'skipped' AND p.outcome <> 'skipped')
