"""``--topology`` behind ``--`` is read by each lane of a cell."""

from __future__ import annotations

import pytest

from harness.lanes import lane_named
from harness.matrix.sizes import can_have, for_lane


@pytest.mark.parametrize(
    ("given", "compiled", "can"),
    [
        (["tests", "--topology", "4"], ["tests", "--topology", "1xv6e:4"], True),
        (["--topology=2x4,8", "-q"], ["--topology=2xv6e:4,1xv6e:8", "-q"], True),
        (["--topology", "v4:2x2x1"], ["--topology", "v4:2x2x1"], True),
        (["--topology", "all", "-k", "4"], ["--topology", "all", "-k", "4"], True),
        (["--topology", "3"], ["--topology", "1xv6e:3"], False),
        (["--topology", "four"], ["--topology", "four"], False),
        (["tests"], ["tests"], True),
    ],
)
def test_sizes_get_a_generation_for_a_compiler(
    given: list[str],
    compiled: list[str],
    can: bool,  # noqa: FBT001
) -> None:
    assert list(for_lane(given, lane_named("virtual-tpu"))) == given
    assert list(for_lane(given, lane_named("tpu-aot"))) == compiled
    assert can_have(given, lane_named("tpu-aot")) == can
