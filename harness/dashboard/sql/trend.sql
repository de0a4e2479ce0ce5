-- Per night, area, stack and lane: how many cases were measured, and how many work.
SELECT
    area, stack, lane, night,
    sum(CASE WHEN outcome IN ('passed', 'unexpected pass') THEN 1 ELSE 0 END) AS works,
    sum(CASE WHEN outcome <> 'skipped' THEN 1 ELSE 0 END) AS measured
FROM recent
GROUP BY area, stack, lane, night
ORDER BY area, stack, lane, night
