-- regressed: the case is broken, and worked when the same stack, lane and topology last measured it.
-- If an expectation declares the failure, the case has regressed as expected.
SELECT
    a.run, a.stack, a.lane, a.topology, a.case,
    a.before_run AS before, a.since,
    CAST(NULL AS VARCHAR(99)) AS number, CAST(NULL AS DOUBLE) AS was, CAST(NULL AS DOUBLE) AS now
FROM answers a
JOIN asked q ON q.run = a.run
LEFT JOIN flaky f
    ON f.run = a.run AND f.lane = a.lane AND f.topology = a.topology AND f.case = a.case
WHERE a.answer <> 'works' AND a.before = 'works' AND f.run IS NULL
