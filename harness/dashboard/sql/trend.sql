-- Per night, area, stack and lane: how many cases were measured, and how many work.
SELECT
    area, stack, lane, night,
    sum(CASE WHEN o.answer = 'works' THEN 1 ELSE 0 END) AS works,
    count(o.answer) AS measured
FROM recent
LEFT JOIN outcomes o USING (outcome)
GROUP BY area, stack, lane, night
ORDER BY area, stack, lane, night
