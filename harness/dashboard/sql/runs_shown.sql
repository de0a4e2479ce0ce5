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
    max(jax_cuda12_plugin) AS jax_cuda12_plugin,
    max(jax_cuda12_pjrt) AS jax_cuda12_pjrt,
    max(jax_cuda13_plugin) AS jax_cuda13_plugin,
    max(jax_cuda13_pjrt) AS jax_cuda13_pjrt,
    count(*) AS size,
    count(properties['reused']) AS reused
FROM cases
WHERE CAST(date AS DATE) > $start
GROUP BY run, stack
ORDER BY run DESC
