-- In each run: cases whose outcome differs from the run before on their line, or is unexpected.
SELECT run, name, area, lane, topology, before, outcome, duration, signature
FROM (
    SELECT
        run, time, name, area, lane, topology, outcome, duration, signature,
        lag(outcome) OVER (
            PARTITION BY name, stack, lane, topology ORDER BY run, rerun
        ) AS before
    FROM recent
) steps
WHERE outcome <> before
    OR outcome IN (SELECT o.outcome FROM outcomes o WHERE o.unexpected)
ORDER BY run, name, lane, topology
