-- flaky: within the case's last 7 answers on unchanged component versions it went from working to
-- broken and from broken to working, or one run's own reruns of it disagreed. A flaky case has no
-- other verdict about change: not regressed, fixed, new or still failing.
SELECT
    w.run, w.stack, w.lane, w.topology, w.case,
    w.before_run AS before, w.since,
    CAST(NULL AS VARCHAR(99)) AS number, CAST(NULL AS DOUBLE) AS was, CAST(NULL AS DOUBLE) AS now
FROM (
    SELECT
        t.*,
        SUM(t.broke) OVER (
            PARTITION BY t.stack, t.lane, t.topology, t.case, t.versions ORDER BY t.run
            ROWS BETWEEN 5 PRECEDING AND CURRENT ROW
        ) AS broke_lately,
        SUM(t.mended) OVER (
            PARTITION BY t.stack, t.lane, t.topology, t.case, t.versions ORDER BY t.run
            ROWS BETWEEN 5 PRECEDING AND CURRENT ROW
        ) AS mended_lately,
        MAX(CASE WHEN t.outcomes IS NULL THEN 0 ELSE 1 END) OVER (
            PARTITION BY t.stack, t.lane, t.topology, t.case, t.versions ORDER BY t.run
            ROWS BETWEEN 6 PRECEDING AND CURRENT ROW
        ) AS differed_lately
    FROM (
        SELECT
            l.*,
            CASE WHEN l.same = 'works' AND l.answer = 'broken' THEN 1 ELSE 0 END AS broke,
            CASE WHEN l.same = 'broken' AND l.answer = 'works' THEN 1 ELSE 0 END AS mended
        FROM (
            SELECT
                a.*,
                LAG(a.answer) OVER (
                    PARTITION BY a.stack, a.lane, a.topology, a.case, a.versions
                    ORDER BY a.run
                ) AS same
            FROM answers a
        ) l
    ) t
) w
JOIN asked q ON q.run = w.run
WHERE (w.broke_lately > 0 AND w.mended_lately > 0) OR w.differed_lately > 0
