"""Where in a program a fault can be."""

from __future__ import annotations

import pytest
from jaxlib import xla_client

from harness.sensitivity.operators import OPERATORS
from harness.sensitivity.program import EditedModule

GATHER = """
HloModule program
ENTRY main {{
  x = f32[{before}] parameter(0)
  ROOT r = f32[{after}] all-gather(x), channel_id=1, use_global_device_ids=true,
    replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}
}}
"""


@pytest.mark.parametrize(
    ("before", "after", "places"),
    [
        ("2,3", "8,3", 1),
        ("2,1,3", "8,1,3", 2),
        ("1,3", "4,3", 0),  # four rows, one behind the other, are four rows one under the other
        ("2,0", "8,0", 0),
    ],
)
def test_a_gather_along_another_dimension(before: str, after: str, places: int) -> None:
    """It is a fault where it gives other elements."""
    text = GATHER.format(before=before, after=after)
    module = xla_client._xla.hlo_module_from_text(text)
    program = EditedModule(module.as_serialized_hlo_module_proto())
    assert len(OPERATORS["dimension-changed"].places(program)) == places
