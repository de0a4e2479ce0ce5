-- slower: a number of the case, its duration or one that it recorded, rose three runs ago and has
-- stayed up. In each of the last 3 runs of stack and lane the case works and the number is above the
-- limit that the 20 runs before them set (at least 8 have the number). In the run just before them it
-- was not, and was nearer to was than to now, so it is reported once, with the third run: while the
-- 20 runs fill with higher numbers, their limit rises past some of these. The limit is the median of
-- the 20 plus the largest of 5 standard deviations (1.4826 times the median absolute deviation), a
-- tenth of the median and, for durations, 10 ms. was is that median, now that of the last 3.
WITH places AS (
    SELECT
        q.run AS asked_run, l.run, l.lane,
        ROW_NUMBER() OVER (PARTITION BY q.run, l.lane ORDER BY l.run DESC) AS place
    FROM asked q
    JOIN runs l ON l.stack = q.stack AND l.run <= q.run
),
near AS (
    SELECT
        p.asked_run, p.place, n.run, n.stack, n.lane, n.topology, n.case, n.name, n.value
    FROM places p
    JOIN numbers n ON n.run = p.run AND n.lane = p.lane
    WHERE p.place <= 23
),
risen AS (
    SELECT
        m.asked_run, m.stack, m.lane, m.topology, m.case, m.name,
        MAX(CASE WHEN m.place = 3 THEN m.run END) AS since,
        MAX(CASE WHEN m.place = 4 THEN m.value END) AS last,
        MIN(CASE WHEN m.place <= 3 THEN m.value END) AS lowest,
        PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY CASE WHEN m.place <= 3 THEN m.value END) AS now,
        PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY CASE WHEN m.place > 3 THEN m.value END) AS was
    FROM near m
    GROUP BY m.asked_run, m.stack, m.lane, m.topology, m.case, m.name
    HAVING COUNT(CASE WHEN m.place <= 3 THEN 1 END) = 3 AND COUNT(*) >= 11
),
limits AS (
    SELECT
        s.asked_run, s.stack, s.lane, s.topology, s.case, s.name,
        s.since, s.last, s.lowest, s.was, s.now,
        MAX(CASE WHEN m.place > 3 THEN m.run END) AS before,
        s.was + GREATEST(
            5 * 1.4826 * PERCENTILE_CONT(0.5) WITHIN GROUP (
                ORDER BY CASE WHEN m.place > 3 THEN ABS(m.value - s.was) END
            ),
            0.1 * ABS(s.was),
            CASE WHEN s.name LIKE 'duration%' THEN 0.01 ELSE 0.0 END
        ) AS most
    FROM risen s
    JOIN near m
        ON m.asked_run = s.asked_run AND m.lane = s.lane AND m.topology = s.topology
        AND m.case = s.case AND m.name = s.name
    WHERE s.lowest > s.was + 0.1 * ABS(s.was)
    GROUP BY
        s.asked_run, s.stack, s.lane, s.topology, s.case, s.name,
        s.since, s.last, s.lowest, s.was, s.now
)
SELECT
    'slower' AS verdict, l.asked_run AS run, l.stack, l.lane, l.topology, l.case, l.before, l.since,
    l.name AS number, l.was, l.now
FROM limits l
WHERE l.lowest > l.most AND COALESCE(l.last, l.was) <= LEAST(l.most, (l.was + l.now) / 2)
