"""DTensor on an "xla" device mesh: placement, reading back, redistribution, whole models.

Proves that a program written for ``torch.distributed.tensor`` means the same when torch_xla runs
it: that each device holds the shard which DTensor gives the rank of that number, that placements
read back, and that forward and backward passes through distributed parameters compute the same
numbers, on several slices too. The oracle is the same program run by real DTensor in one process
per rank over gloo (``harness.oracles.dtensor``). Where torch_xla documents a behaviour of its own
(an error, a refusal to place a tensor twice), that is what is asserted.
"""
