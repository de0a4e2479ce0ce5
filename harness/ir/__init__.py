"""Reads StableHLO programs as facts: a verified module becomes typed, frozen records.

Everything rests on the MLIR bindings that jaxlib ships; nothing searches program text. Import this
package only in a process that may load jaxlib.
"""

from harness.ir.facts import Collective, Program, TensorType
from harness.ir.parse import InvalidProgramError, parse

__all__ = ["Collective", "InvalidProgramError", "Program", "TensorType", "parse"]
