"""Type inference pass: infer the type of every expression.

  fn (%x: Tensor[(n, 3), float32]) { nn.relu(%x) }
: fn (Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.type_infer import infer_type
from ekiden.runtime.errors import TypeInferenceError

if TYPE_CHECKING:
    import ekiden.ir.diagnostics as diagnostics
else:
    diagnostics = LazyModule("ekiden.ir.diagnostics")


def _infer_with_diagnostics(module: IRModule, context: PassContext) -> IRModule:
    try:
        return infer_type(module)
    except TypeInferenceError as error:
        diagnostics.report_error(module, error)
        raise


_INFER_TYPE = Pass("InferType", _infer_with_diagnostics)


def InferType() -> Pass:  # noqa: N802
    """Return the type inference pass (TVM's InferType)."""
    return _INFER_TYPE
