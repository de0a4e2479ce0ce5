-- The asked runs' failures by cause, a layer and a signature, across cases, lanes and stacks, without
-- those that an expectation declares. first is the earliest run known with the cause.
SELECT
    c.layer, c.signature,
    COUNT(DISTINCT CASE WHEN q.run IS NOT NULL THEN c.case END) AS cases,
    COUNT(DISTINCT CASE WHEN q.run IS NOT NULL THEN c.stack END) AS stacks,
    COUNT(q.run) AS results,
    MIN(c.run) AS first,
    MIN(CASE WHEN q.run IS NOT NULL THEN c.case END) AS example,
    MIN(CASE WHEN q.run IS NOT NULL THEN c.message END) AS message
FROM cases c
JOIN outcomes o ON o.outcome = c.outcome
LEFT JOIN asked q ON q.run = c.run
WHERE o.answer = 'broken' AND c.signature <> ''
GROUP BY c.layer, c.signature
HAVING COUNT(q.run) > 0
ORDER BY results DESC, c.layer, c.signature
