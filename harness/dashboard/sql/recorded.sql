-- The properties of a case that are numbers, and between what they moved.
SELECT
    name, stack, lane, topology, property,
    min(value) AS low, max(value) AS high, max_by(value, run) AS last, count(*) AS times
FROM (
    SELECT
        "case" AS name, stack, lane, topology, run, property,
        TRY_CAST(said AS DOUBLE) AS value
    FROM (
        SELECT
            "case", stack, lane, topology, run,
            unnest(map_keys(properties)) AS property,
            unnest(map_values(properties)) AS said
        FROM cases
        WHERE CAST(date AS DATE) > $start
    ) named
) counted
WHERE value IS NOT NULL AND isfinite(value) AND property NOT LIKE 'duration%'
GROUP BY name, stack, lane, topology, property
ORDER BY name, property, stack, lane, topology
