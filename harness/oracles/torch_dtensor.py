"""PyTorch's DTensor, from where the release has it: public since torch 2.5."""

try:
    from torch.distributed.tensor import (
        DTensor,
        Partial,
        Placement,
        Replicate,
        Shard,
        distribute_module,
        distribute_tensor,
    )
except ImportError:  # torch 2.4
    from torch.distributed._tensor import (
        DTensor,
        Partial,
        Placement,
        Replicate,
        Shard,
        distribute_module,
        distribute_tensor,
    )

__all__ = [
    "DTensor",
    "Partial",
    "Placement",
    "Replicate",
    "Shard",
    "distribute_module",
    "distribute_tensor",
]
