-- crashed: the run's cases with that outcome, whatever else is said of them.
SELECT
    a.run, a.stack, a.lane, a.topology, a.case,
    a.before_run AS before, a.since,
    CAST(NULL AS VARCHAR(99)) AS number, CAST(NULL AS DOUBLE) AS was, CAST(NULL AS DOUBLE) AS now
FROM answers a
JOIN asked q ON q.run = a.run
WHERE a.outcome = 'crashed'
