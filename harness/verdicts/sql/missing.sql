-- missing: the last run of this stack and lane measured the case, and this one did not: it skipped
-- the case, or does not have it. A lane of which a run has no case at all was not asked for.
SELECT
    d.verdict, b.run, p.stack, p.lane, p.topology, p.case, b.before, b.run AS since
FROM (
    SELECT
        l.run, l.stack, l.lane,
        LAG(l.run) OVER (PARTITION BY l.stack, l.lane ORDER BY l.run) AS before
    FROM runs l
) b
JOIN asked q ON q.run = b.run
JOIN cases p ON p.run = b.before AND p.stack = b.stack AND p.lane = b.lane
JOIN outcomes o ON o.outcome = p.outcome
LEFT JOIN cases n
    ON n.run = b.run AND n.lane = p.lane AND n.topology = p.topology AND n.case = p.case
LEFT JOIN outcomes m ON m.outcome = n.outcome
JOIN changes d ON d.was = o.answer AND d.now = COALESCE(m.answer, '')
WHERE d.verdict = 'missing'
