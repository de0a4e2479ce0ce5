-- The outcomes of each run, for a program that compares two.
SELECT
    run, name, lane, topology, min(outcome) AS outcome,
    min(area) AS area, min(framework) AS framework
FROM recent
GROUP BY run, name, lane, topology
ORDER BY run, name, lane, topology
