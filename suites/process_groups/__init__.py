"""Jobs of one process per chip, as launchers start them: torch.distributed eagerly, and xm.*.

Every case forks one process for each chip of a virtual TPU, and each of them traces, compiles and
executes for its own chip: what crosses processes is what the chips exchange. Proves that each
collective of ``torch.distributed`` on backend "xla" has the results that PyTorch documents, for
every reduction, dtype and subgroup, and at the root only where only the root receives; that the
``xm.*`` functions behind them are right with and without pinned layouts; and that data-parallel
training, checkpoints by rank included, computes what one process of plain PyTorch computes. The
oracles are the same program over gloo, NumPy's account of the collective, and plain PyTorch on the
CPU.
"""
