-- crashed, hung: the case has that outcome in the run. It has this verdict besides its others.
SELECT
    a.outcome AS verdict,
    a.run, a.stack, a.lane, a.topology, a.case, a.before_run AS before, a.since
FROM answers a
JOIN asked q ON q.run = a.run
WHERE a.outcome IN ('crashed', 'hung')
