"""Programs in files: StableHLO or HLO, as text or serialised."""

from __future__ import annotations

from pathlib import Path

from harness.errors import BadInputError
from harness.reduce.stablehlo import mlir_context

_FORMS = "StableHLO (.mlir), HLO text (.hlo, .txt) or a serialised HloModuleProto (.pb)"


def as_stablehlo(serialized: bytes) -> str:
    """Return a serialised HloModuleProto as StableHLO, with its number of partitions."""
    from jaxlib import xla_client

    module = xla_client._xla.mlir.xla_computation_to_mlir_module(
        xla_client.XlaComputation(serialized)
    )
    return module if isinstance(module, str) else _text(module)


def _text(artifact: bytes) -> str:
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import stablehlo

    with mlir_context() as context:
        try:
            return str(ir.Module.parse(artifact))
        except ir.MLIRError:
            return str(stablehlo.deserialize_portable_artifact(context, artifact))


def read(path: Path) -> str:
    """Return the program in a file as StableHLO.

    Raises BadInputError, with the parser's message, for what is none.
    """
    from jaxlib import xla_client
    from jaxlib.mlir import ir

    try:
        if path.suffix in (".hlo", ".txt"):
            module = xla_client._xla.hlo_module_from_text(path.read_text())
            return as_stablehlo(module.as_serialized_hlo_module_proto())
        if path.suffix == ".pb":
            return as_stablehlo(path.read_bytes())
        if path.suffix == ".mlir":
            with mlir_context():
                return str(ir.Module.parse(path.read_bytes()))
    except (OSError, UnicodeError) as error:
        raise BadInputError(f"{path}: {error}") from None
    except Exception as error:
        message = str(error).strip().replace("\n", "\n  ")
        raise BadInputError(f"{path}: expected {_FORMS}\n  {message}") from None
    raise BadInputError(f"{path}: expected {_FORMS}")
