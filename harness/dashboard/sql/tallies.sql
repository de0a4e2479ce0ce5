-- What each run said, counted by where and how.
SELECT run, area, lane, topology, outcome, count(*) AS size, round(sum(duration), 3) AS seconds
FROM recent
GROUP BY run, area, lane, topology, outcome
ORDER BY run, area, lane, topology, outcome
