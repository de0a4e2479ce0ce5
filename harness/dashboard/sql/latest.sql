-- Each case as of the last night of its line; of several runs in that night the last.
SELECT
    name, area, lane, topology, stack, run, time, night,
    outcome, duration, message, signature, layer, upstream, expectation, framework, reused
FROM (
    SELECT
        c."case" AS name,
        c.area,
        c.lane,
        c.topology,
        c.stack,
        c.run,
        CAST(c.time AS TIMESTAMP) AS time,
        n.night,
        c.outcome,
        c.duration,
        c.message,
        c.signature,
        c.layer,
        c.upstream,
        c.properties['expectation'] AS expectation,
        coalesce(c.properties['framework'], '') AS framework,
        coalesce(c.properties['reused'], '') AS reused,
        row_number() OVER (
            PARTITION BY c.stack, c.lane, c.topology, c."case"
            ORDER BY c.run DESC, c.rerun DESC
        ) AS age
    FROM cases c
    JOIN newest n
        ON c.stack = n.stack AND c.lane = n.lane AND c.topology = n.topology
        AND CAST(c.date AS DATE) = n.night
    WHERE CAST(c.date AS DATE) >= $first
) answers
WHERE age = 1
ORDER BY name, lane, topology, stack
