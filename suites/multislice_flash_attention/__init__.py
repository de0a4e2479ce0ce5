"""Multi-slice flash attention and every other way by which PyTorch on a TPU reaches JAX.

A second client that is created without ``SKIP_MEGASCALE_PJRT_CLIENT=true`` discovers the slices of
a job again and hangs (pytorch/xla#8812, #8954, #8850, #8971). Proves, on a virtual TPU of one to
four slices, in one process and in one for each slice: that a kernel, its backward pass or any other
call into JAX makes exactly one discovery and none in the next step; that the guard variable is left
as the user had it; that equal shapes are compiled once; and that flash, paged, ragged and splash
attention, grouped matmul and kernels of one's own, submitted by torch_xla, by TorchTPU or by JAX,
give the right numbers, sharded over slices or not; that kernels which copy and signal between
devices do so. The oracles are a float64 softmax attention and matmul written here. The kernels run
interpreted, with a TPU's memories where JAX simulates them: their logic is tested, not Mosaic and
not the hardware.
"""
