-- still failing: the case is broken, as it was when the same stack, lane and topology last measured
-- it; since is the run with which its present answer began. What was broken as expected and is no
-- longer declared is a new failure.
SELECT
    a.run, a.stack, a.lane, a.topology, a.case,
    a.before_run AS before, a.since,
    CAST(NULL AS VARCHAR(99)) AS number, CAST(NULL AS DOUBLE) AS was, CAST(NULL AS DOUBLE) AS now
FROM answers a
JOIN asked q ON q.run = a.run
LEFT JOIN flaky f
    ON f.run = a.run AND f.lane = a.lane AND f.topology = a.topology AND f.case = a.case
WHERE (a.answer = 'broken' AND a.before = 'broken'
    OR a.answer = 'expected' AND a.before <> 'works') AND f.run IS NULL
