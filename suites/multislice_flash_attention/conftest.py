from collections.abc import Generator

import pytest

# What the virtual TPU, or JAX on its behalf, says of old JAX's kernels and programs.
_UNREADABLE = (
    "can't be interpreted by JAX",
    "Failed to deserialize StableHLO",
    "Failed to parse using StableHLO",
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    """What only a real TPU can run of JAX before 0.6 is not measured: there, Mosaic compiles it."""
    try:
        return (yield)
    except Exception as error:
        import jax

        if jax.__version_info__ < (0, 6) and any(text in str(error) for text in _UNREADABLE):
            pytest.skip(f"the virtual TPU can't run this kernel of JAX {jax.__version__}")
        raise
