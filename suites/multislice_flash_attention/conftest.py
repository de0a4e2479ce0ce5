import pytest
from packaging.version import Version

from harness.lanes.aot.case_compiler import CaseCompiler
from harness.model.versions import installed
from suites.multislice_flash_attention.abstract import Shapes


@pytest.fixture
def abstract(xla_compiler: CaseCompiler) -> Shapes:
    """Return a function of shape and dtype that makes abstract arrays on the first device.

    Skips the case where libtpu is older than the generation.
    """
    import jax
    from jax.sharding import SingleDeviceSharding

    generation, libtpu = xla_compiler.topology.generation, installed("libtpu")
    if generation == "tpu7x" and Version(libtpu) < Version("0.0.24"):
        pytest.skip(f"libtpu {libtpu} is older than {generation}")
    place = SingleDeviceSharding(xla_compiler.devices[0])
    return lambda *shape, dtype="bfloat16": jax.ShapeDtypeStruct(shape, dtype, sharding=place)
