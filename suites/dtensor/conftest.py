from collections.abc import Callable

import pytest


@pytest.fixture
def start_spmd(request: pytest.FixtureRequest) -> Callable[[], None]:
    """Return a function that starts the runtime under SPMD.

    To be called when the oracle's processes have run: a fork after a client exists hangs.
    """

    def start() -> None:
        request.getfixturevalue("spmd")

    return start
