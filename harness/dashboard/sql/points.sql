-- Everything that the pages of cases plot.
SELECT name, stack, lane, topology, time, night, run, outcome, duration, signature
FROM recent
ORDER BY name, stack, lane, topology, run, rerun
