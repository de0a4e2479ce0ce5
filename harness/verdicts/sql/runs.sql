-- The runs that there are, a line for each lane of a run.
SELECT DISTINCT c.run, c.time, c.date, c.stack, c.lane
FROM cases c
