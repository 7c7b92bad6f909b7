"""Find the type of every expression.

  fn (%x: Tensor[(n, 3), float32]) { nn.relu(%x) }
: fn (Tensor[(n, 3), float32]) -> Tensor[(n, 3), float32]
"""

from __future__ import annotations

from ekiden.ir.transform import Pass
from ekiden.relay.type_infer import infer_type

_INFER_TYPE = Pass("InferType", lambda module, context: infer_type(module))


def InferType() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _INFER_TYPE
