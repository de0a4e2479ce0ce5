"""What a step costs the host: how many functions JAX calls to trace, lower and dispatch it.

A slower front end is a regression that no numeric test sees: an upgrade of jax doubled the time of
a warm run (vllm-project/tpu-inference#2949). Times on a shared machine can't show it; counted
calls can. No oracle knows the right number of calls, so `qualify` compares that of two stacks. A
case proves that the number is the same when the step is counted again, and that a step that was
compiled once is dispatched by native code, not traced again. What it computes is compared with
NumPy in float64, and its gradients with central differences.
"""
