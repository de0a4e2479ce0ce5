-- standing: what regressed at any time, is not fixed and is not expected, as the asked runs leave it.
-- Either the case is broken since a run before which it worked, or it was measured and the last run
-- of its stack and lane skipped it or does not have it. `since` is the first run that says so,
-- `before` the last good one.
SELECT
    'regressed' AS verdict, n.run, n.stack, n.lane, n.topology, n.case, b.before_run AS before, n.since,
    f.run IS NOT NULL AS flaky
FROM (
    SELECT
        a.*, ROW_NUMBER() OVER (
            PARTITION BY a.stack, a.lane, a.topology, a.case ORDER BY a.run DESC
        ) AS place
    FROM answers a
    WHERE a.run <= (SELECT MAX(q.run) FROM asked q)
) n
JOIN answers b
    ON b.run = n.since AND b.stack = n.stack AND b.lane = n.lane
    AND b.topology = n.topology AND b.case = n.case
LEFT JOIN flaky f
    ON f.run = n.run AND f.lane = n.lane AND f.topology = n.topology AND f.case = n.case
WHERE n.place = 1 AND n.answer = 'broken' AND b.before = 'works'
UNION ALL
SELECT
    'missing' AS verdict, l.run, m.stack, m.lane, m.topology, m.case, m.run AS before,
    (
        SELECT MIN(r.run) FROM runs r
        WHERE r.stack = m.stack AND r.lane = m.lane AND r.run > m.run
    ) AS since,
    FALSE AS flaky
FROM (
    SELECT
        c.stack, c.lane, c.topology, c.case, c.run, o.answer,
        ROW_NUMBER() OVER (
            PARTITION BY c.stack, c.lane, c.topology, c.case ORDER BY c.run DESC
        ) AS place
    FROM cases c
    JOIN outcomes o ON o.outcome = c.outcome
    WHERE c.run <= (SELECT MAX(q.run) FROM asked q)
) m
JOIN (
    SELECT r.stack, r.lane, MAX(r.run) AS run FROM runs r
    WHERE r.run <= (SELECT MAX(q.run) FROM asked q)
    GROUP BY r.stack, r.lane
) l ON l.stack = m.stack AND l.lane = m.lane
WHERE m.place = 1 AND m.run < l.run AND m.answer <> 'broken'
