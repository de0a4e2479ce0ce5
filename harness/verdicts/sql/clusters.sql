-- A cluster is the asked runs' failures with one signature, across cases, lanes and stacks: failed,
-- crashed, hung and conflicting ones, not those expected. first is the earliest run known with that
-- signature.
SELECT
    c.signature,
    COUNT(DISTINCT CASE WHEN q.run IS NOT NULL THEN c.case END) AS cases,
    COUNT(DISTINCT CASE WHEN q.run IS NOT NULL THEN c.stack END) AS stacks,
    COUNT(q.run) AS results,
    MIN(c.run) AS first,
    MIN(CASE WHEN q.run IS NOT NULL THEN c.case END) AS example,
    MIN(CASE WHEN q.run IS NOT NULL THEN c.message END) AS message
FROM cases c
LEFT JOIN asked q ON q.run = c.run
WHERE c.outcome IN ('failed', 'crashed', 'hung', 'conflict') AND c.signature <> ''
GROUP BY c.signature
HAVING COUNT(q.run) > 0
ORDER BY results DESC, c.signature
