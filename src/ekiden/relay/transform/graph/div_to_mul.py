"""Strength reduction: replace division by a constant by multiplication with its reciprocal. Results
may differ by one rounding.

divide(%x, 4f)   ->   multiply(%x, 0.25f)
"""

from __future__ import annotations

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.transform import Pass
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.transform.graph.call_rewrites import call_pass
from ekiden.relay.transform.graph.constant_arithmetic import fold_quotient
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed


def _rewrite_divide(call: Call) -> RelayExpr | None:
    data, by = call.args
    if not isinstance(by, Constant) or by.data.dtype.kind != "f" or not np.all(by.data):
        return None
    mantissas, _ = np.frexp(by.data)
    if not is_rewrite_allowed("multiply by inverses") and np.any(np.abs(mantissas) != 0.5):
        return None  # a power of two alone has an inverse that is exact
    inverse = fold_quotient(np.ones_like(by.data), by.data)
    return None if inverse is None else op.multiply(data, Constant(inverse))


def DivToMul() -> Pass:  # noqa: N802
    """Return a pass that replaces division by constants by multiplication (TVM's DivToMul)."""
    return call_pass("DivToMul", 0, lambda: {"divide": _rewrite_divide})
