-- The values of the numbers that moved at all.
SELECT
    c."case" AS name, c.stack, c.lane, c.topology, n.property,
    CAST(c.time AS TIMESTAMP) AS time,
    CAST(c.date AS DATE) AS night,
    TRY_CAST(c.properties[n.property] AS DOUBLE) AS value
FROM cases c
JOIN recorded n
    ON c."case" = n.name AND c.stack = n.stack AND c.lane = n.lane AND c.topology = n.topology
WHERE CAST(c.date AS DATE) > $start AND n.low < n.high
    AND TRY_CAST(c.properties[n.property] AS DOUBLE) IS NOT NULL
ORDER BY name, property, c.stack, c.lane, c.topology, c.run
