-- An answer is what a run says of a case that it measured: it works, it is broken, or it is broken
-- as expected; a skipped case has none. The relation outcomes says which outcome is which answer.
-- Beside it stand the answer before it on the same stack, lane and topology, that answer's run, the
-- run with which the present series of equal answers began, and whether the attempts of this run
-- disagree: some work and some are broken.
-- Cases that never were other than working are left out: no verdict about change is on them.
SELECT
    s.run, s.time, s.stack, s.lane, s.topology, s.case, s.outcome, s.versions, s.disagrees,
    s.answer, s.before, s.before_run,
    MAX(CASE WHEN COALESCE(s.before, '') <> s.answer THEN s.run END) OVER (
        PARTITION BY s.stack, s.lane, s.topology, s.case ORDER BY s.run
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS since
FROM (
    SELECT
        a.run, a.time, a.stack, a.lane, a.topology, a.case, a.outcome, a.versions, a.disagrees,
        a.answer,
        LAG(a.answer) OVER (
            PARTITION BY a.stack, a.lane, a.topology, a.case ORDER BY a.run
        ) AS before,
        LAG(a.run) OVER (
            PARTITION BY a.stack, a.lane, a.topology, a.case ORDER BY a.run
        ) AS before_run
    FROM (
        SELECT
            c.run, c.time, c.stack, c.lane, c.topology, c.case, c.outcome,
            CONCAT(
                c.python, ' ', c.torch, ' ', c.torch_xla, ' ', c.jax, ' ', c.jaxlib, ' ', c.libtpu, ' ', c.torch_tpu,
                ' ', c.jax_cuda12_plugin, ' ', c.jax_cuda12_pjrt, ' ', c.jax_cuda13_plugin, ' ', c.jax_cuda13_pjrt
            ) AS versions,
            CASE WHEN t.run IS NULL THEN 0 ELSE 1 END AS disagrees,
            o.answer
        FROM cases c
        JOIN outcomes o ON o.outcome = c.outcome
        JOIN (
            SELECT DISTINCT e.stack, e.lane, e.topology, e.case
            FROM cases e
            JOIN outcomes v ON v.outcome = e.outcome
            WHERE v.answer <> 'works' OR e.rerun > 0
        ) d ON d.stack = c.stack AND d.lane = c.lane AND d.topology = c.topology AND d.case = c.case
        LEFT JOIN (
            SELECT r.run, r.lane, r.topology, r.case
            FROM cases r
            JOIN outcomes w
                ON CONCAT(', ', r.properties['outcomes'], ',') LIKE CONCAT('%, ', w.outcome, ',%')
            WHERE r.rerun > 0 AND r.properties['outcomes'] IS NOT NULL
            GROUP BY r.run, r.lane, r.topology, r.case
            HAVING COUNT(DISTINCT CASE WHEN w.answer = 'works' THEN 1 ELSE 0 END) > 1
        ) t ON t.run = c.run AND t.lane = c.lane AND t.topology = c.topology AND t.case = c.case
    ) a
) s
