"""JAX's client of the plugin: its devices, and the version of PJRT that JAX accepts."""

from __future__ import annotations

from harness.conformance.jax_programs.agreement import agree
from harness.conformance.jax_programs.compared_program import JaxSubject
from harness.conformance.jax_programs.late import jax, np
from harness.conformance.plugin_check import NonconformanceError, NotMeasurableError, check, expect


@check
def started(subject: JaxSubject) -> None:
    """JAX accepts the plugin, makes its client, and runs a program on it."""
    try:
        client = subject.start()
        array = jax.jit(lambda x: x + 1)(jax.device_put(np.arange(6).reshape(2, 3)))
        agree(array, np.arange(1, 7).reshape(2, 3))
    except NotMeasurableError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:600]
        raise NonconformanceError(f"refused by JAX {jax.__version__}: {text}") from error
    expect(array.device.client is client, f"a new array is on {array.device}")
    expect(jax.default_backend() == client.platform, f"the backend is {jax.default_backend()}")
    numbers = [device.id for device in jax.devices()]
    expect(len(set(numbers)) == len(numbers), f"devices share an id: {numbers}")
