-- The verdicts about change: regressed, new failure, fixed, still failing, flaky. An answer is compared
-- with the one before it on the same stack, lane and topology, and the relation changes says which
-- verdict that is. A flaky case has no other one. since is the run with which its present answer began.
SELECT
    CASE WHEN f.run IS NULL THEN c.verdict ELSE 'flaky' END AS verdict,
    a.run, a.stack, a.lane, a.topology, a.case, a.before_run AS before, a.since
FROM answers a
JOIN asked q ON q.run = a.run
JOIN changes c ON c.was = COALESCE(a.before, '') AND c.now = a.answer
LEFT JOIN flaky f
    ON f.run = a.run AND f.lane = a.lane AND f.topology = a.topology AND f.case = a.case
WHERE f.run IS NOT NULL OR c.verdict NOT IN ('unchanged', 'newly measured')
