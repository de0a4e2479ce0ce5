-- What happened within the nights that the site shows, a row a case and run.
SELECT
    run,
    CAST(time AS TIMESTAMP) AS time,
    CAST(date AS DATE) AS night,
    stack,
    "case" AS name,
    area,
    lane,
    topology,
    outcome,
    duration,
    signature,
    rerun,
    coalesce(properties['framework'], '') AS framework
FROM cases
WHERE CAST(date AS DATE) > $start
