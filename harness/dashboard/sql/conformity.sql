-- What each plugin answered to each check, as of the last night in which it was asked.
SELECT plugin, api, level, "case", conformity, message
FROM (
    SELECT
        c.stack AS plugin,
        coalesce(c.properties['plugin_api'], '') AS api,
        coalesce(c.properties['conformity_level'], '') AS level,
        c."case",
        c.properties['conformity'] AS conformity,
        c.message,
        row_number() OVER (
            PARTITION BY c.stack, c."case" ORDER BY c.run DESC, c.rerun DESC
        ) AS age
    FROM cases c
    JOIN newest n
        ON c.stack = n.stack AND c.lane = n.lane AND c.topology = n.topology
        AND CAST(c.date AS DATE) = n.night
    WHERE c.properties['conformity'] IS NOT NULL
) answers
WHERE age = 1
ORDER BY plugin, level, "case"
