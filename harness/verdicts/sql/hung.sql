-- hung: the case has that outcome in the run. It has this verdict besides its others.
SELECT
    a.run, a.stack, a.lane, a.topology, a.case,
    a.before_run AS before, a.since,
    CAST(NULL AS VARCHAR(99)) AS number, CAST(NULL AS DOUBLE) AS was, CAST(NULL AS DOUBLE) AS now
FROM answers a
JOIN asked q ON q.run = a.run
WHERE a.outcome = 'hung'
