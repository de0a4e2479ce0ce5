-- An answer is what a run says of a case that it measured: it works, it is broken, or it is broken
-- as expected; a skip is no answer. Beside it stand the answer before it on the same stack, lane
-- and topology, that answer's run, and the run with which the present series of equal answers began.
-- Cases that never were other than working are left out: no verdict about change is on them.
SELECT
    s.run, s.time, s.stack, s.lane, s.topology, s.case, s.outcome, s.versions, s.outcomes,
    s.answer, s.before, s.before_run,
    MAX(CASE WHEN COALESCE(s.before, '') <> s.answer THEN s.run END) OVER (
        PARTITION BY s.stack, s.lane, s.topology, s.case ORDER BY s.run
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
    ) AS since
FROM (
    SELECT
        a.run, a.time, a.stack, a.lane, a.topology, a.case, a.outcome, a.versions, a.outcomes,
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
                c.python, ' ', c.torch, ' ', c.torch_xla, ' ', c.jax, ' ', c.jaxlib, ' ', c.libtpu
            ) AS versions,
            c.properties['outcomes'] AS outcomes,
            CASE
                WHEN c.outcome IN ('passed', 'unexpected pass') THEN 'works'
                WHEN c.outcome = 'expected failure' THEN 'expected'
                ELSE 'broken'
            END AS answer
        FROM cases c
        JOIN (
            SELECT DISTINCT o.stack, o.lane, o.topology, o.case
            FROM cases o
            WHERE o.outcome NOT IN ('passed', 'unexpected pass', 'skipped') OR o.rerun > 0
        ) d ON d.stack = c.stack AND d.lane = c.lane AND d.topology = c.topology AND d.case = c.case
        WHERE c.outcome <> 'skipped'
    ) a
) s
