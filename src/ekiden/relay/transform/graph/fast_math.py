"""Fast math: replace transcendental functions by faster approximations.

exp(%x)   ->   fast_exp(%x)          likewise erf, tanh and nn.softmax
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, get
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.call_rewrites import CallRewrite, call_pass


def _replace_by_fast_op(name: str) -> CallRewrite:
    def rewrite(call: Call) -> RelayExpr:
        return Call(get(name), call.args, call.attrs, span=call.span)

    return rewrite


def FastMath() -> Pass:  # noqa: N802
    """Return a pass that replaces exp, erf, tanh and softmax by fast approximations (TVM's
    FastMath).
    """
    return call_pass(
        "FastMath",
        4,
        lambda: {n: _replace_by_fast_op(row.fast) for n, row in OPS.rows() if row.fast},
    )
