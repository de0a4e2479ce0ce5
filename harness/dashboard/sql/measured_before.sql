-- For each case, line and run that is asked about: the last run before it that measured the case.
SELECT q.name, q.stack, q.lane, q.topology, q.run, max(r.run) AS before
FROM (
    SELECT
        unnest($names::VARCHAR[]) AS name,
        unnest($stacks::VARCHAR[]) AS stack,
        unnest($lanes::VARCHAR[]) AS lane,
        unnest($topologies::VARCHAR[]) AS topology,
        unnest($runs::VARCHAR[]) AS run
) q
JOIN recent r
    ON r.name = q.name AND r.stack = q.stack AND r.lane = q.lane AND r.topology = q.topology
WHERE r.run < q.run AND r.outcome <> 'skipped'
GROUP BY q.name, q.stack, q.lane, q.topology, q.run
