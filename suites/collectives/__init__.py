"""Collectives and their export: what torch_xla makes of a collective is what the collective means.

Every case spells a collective in one of the ways a user can (`torch.distributed`, functional
collectives, `xm.*`), takes it through one of torch_xla's ways to StableHLO (`torch.export`, lazy
tracing, the saved bundle, dynamo), and compares the program with three independent oracles: MLIR's
verifier and the facts that jaxlib's bindings read from the parsed module (signature, operation,
reducer, replica groups, operand and result counts); the program executed over as many replicas as
there are ranks by jaxlib's own XLA; and NumPy's account of the collective, itself compared with
gloo on a sample. On a virtual TPU, torch_xla itself also executes groups inside slices and across
them. Export, verification, signature, facts and numbers are asserted apart, so that a failure names
its layer.
"""
