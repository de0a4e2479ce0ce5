-- Each distinct failure of a case on a line once, over the whole history.
SELECT
    "case" AS name, stack, lane, topology, signature,
    max(outcome) AS outcome,
    max_by(message, run) AS message,
    layer,
    CAST(min(time) AS TIMESTAMP) AS first,
    CAST(max(time) AS TIMESTAMP) AS last,
    min(run) AS first_run,
    max(run) AS last_run,
    count(*) AS times
FROM cases
WHERE outcome IN (SELECT o.outcome FROM outcomes o WHERE o.answer <> 'works')
GROUP BY "case", stack, lane, topology, layer, signature
ORDER BY name, first_run, stack, lane, topology
