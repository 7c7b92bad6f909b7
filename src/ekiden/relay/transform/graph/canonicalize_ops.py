"""Canonicalise special operators into general ones, so that later passes have fewer cases.

nn.bias_add(%x, %b)  ->  add(%x, expand_dims(%b, axis=1, num_newaxis=2))    (%x of 4 dimensions)
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.transform import Pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call
from ekiden.relay.op.nn.activation import BiasAddAttrs
from ekiden.relay.transform.graph.call_rewrites import call_pass


def _expand_bias_add(call: Call) -> RelayExpr:
    data, bias = call.args
    kind, attrs = data.checked_type, call.attrs
    assert isinstance(kind, TensorType) and isinstance(attrs, BiasAddAttrs)
    trailing = len(kind.shape) - 1 - attrs.axis % len(kind.shape)
    return op.add(data, op.expand_dims(bias, 1, trailing) if trailing else bias)


CANONICALIZATIONS = {"nn.bias_add": _expand_bias_add}


def CanonicalizeOps() -> Pass:  # noqa: N802
    """Return a pass that rewrites bias_add as expand_dims and add (TVM's CanonicalizeOps)."""
    return call_pass("CanonicalizeOps", 3, lambda: CANONICALIZATIONS)
