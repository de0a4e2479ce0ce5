"""Scalars and partition specs in SPMD (pytorch/xla#8522, #8606, #5264, #5279, #8973, #9535, #8662).

Proves that a partition spec means in torch_xla what it means in JAX: for every spec over meshes of
rank 1 to 3, with permuted device ids, each device says that it holds, and does hold, the part that
JAX's NamedSharding gives it, 0-d tensors and uneven sizes included; that a sharding is kept, moved,
cleared and trained through without a change of numbers, FSDPv2 and its optimizers and checkpoints
included; that HybridMesh keeps slices together; and that a wrong spec is refused with the
documented error. The oracles are JAX (harness.oracles.sharding), NumPy for manual collectives, and
the same model in plain PyTorch on the CPU for training.
"""
