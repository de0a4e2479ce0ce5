-- flaky: within the case's last 7 answers on the same component versions, the attempts of one run
-- disagree, or the case turned at least twice from working to broken or back. Whether it was broken
-- as expected makes no difference. One change alone has a cause that stays.
SELECT w.run, w.stack, w.lane, w.topology, w.case
FROM (
    SELECT
        t.*,
        SUM(t.turned) OVER (
            PARTITION BY t.stack, t.lane, t.topology, t.case, t.versions ORDER BY t.run
            ROWS BETWEEN 5 PRECEDING AND CURRENT ROW
        ) AS turns,
        MAX(t.disagrees) OVER (
            PARTITION BY t.stack, t.lane, t.topology, t.case, t.versions ORDER BY t.run
            ROWS BETWEEN 6 PRECEDING AND CURRENT ROW
        ) AS disagreed
    FROM (
        SELECT
            l.*, CASE WHEN l.works <> l.worked THEN 1 ELSE 0 END AS turned
        FROM (
            SELECT
                a.*,
                a.answer = 'works' AS works,
                LAG(a.answer = 'works') OVER (
                    PARTITION BY a.stack, a.lane, a.topology, a.case, a.versions ORDER BY a.run
                ) AS worked
            FROM answers a
        ) l
    ) t
) w
WHERE w.turns > 1 OR w.disagreed > 0
