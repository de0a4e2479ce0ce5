-- The runs within those nights, with the versions that they ran on; the newest first.
SELECT
    run,
    min(CAST(time AS TIMESTAMP)) AS time,
    min(CAST(date AS DATE)) AS night,
    stack,
    max("commit") AS revision,
    max(machine) AS machine,
    max(python) AS python,
    max(torch) AS torch,
    max(torch_xla) AS torch_xla,
    max(jax) AS jax,
    max(jaxlib) AS jaxlib,
    max(torch_tpu) AS torch_tpu,
    max(libtpu) AS libtpu,
    count(*) AS size
FROM cases
WHERE CAST(date AS DATE) > $start
GROUP BY run, stack
ORDER BY run DESC
