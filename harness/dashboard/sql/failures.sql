-- Each distinct failure of a case on a line once, over the whole history.
SELECT
    "case" AS name, stack, lane, topology, signature,
    max(outcome) AS outcome,
    max_by(message, time) AS message,
    max_by(layer, time) AS layer,
    CAST(min(time) AS TIMESTAMP) AS first,
    CAST(max(time) AS TIMESTAMP) AS last,
    min_by(run, time) AS first_run,
    max_by(run, time) AS last_run,
    count(*) AS times
FROM cases
WHERE outcome IN ('failed', 'crashed', 'hung', 'conflict', 'expected failure')
GROUP BY "case", stack, lane, topology, signature
ORDER BY name, first, stack, lane, topology
