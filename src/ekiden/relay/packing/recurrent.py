"""Recurrent layers: weights in panels of hidden units, with those of all gates side by side.

nn.recurrent((%x, W, ...))            ->  nn.recurrent((%x, packed W, ...))
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple
from ekiden.relay.op.nn.recurrent import RecurrentAttrs
from ekiden.target import Target


def recurrent(call: Call, target: Target) -> RelayExpr:
    """With its weight packed, if it is a constant."""
    given, attrs = call.args[0], call.attrs
    assert isinstance(attrs, RecurrentAttrs)
    if not isinstance(given, Tuple):
        return call
    data, weight, *rest = given.fields
    if not isinstance(weight, Constant) or weight.data.ndim != 2:
        return call
    gates = attrs.cell.gates
    packed = op.nn.contrib_pack_recurrent(weight, gates, target.lanes("float32"))
    return call.with_fields(args=(Tuple((data, packed, *rest)),))
