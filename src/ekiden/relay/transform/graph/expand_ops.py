"""Expand operators without kernels of their own: gradient operators and hints.

nn.max_pool2d_grad(%g, %x)            ->  the gradient of nn.max_pool2d(%x)
nn.avg_pool2d_grad(%g, %x)            ->  the gradient of nn.avg_pool2d(%x)
nn.conv2d_backward_weight(%g, %x)     ->  that of nn.conv2d(%x, %w) for %w
annotation.checkpoint(%x)             ->  %x
annotation.cast_hint(%x)              ->  %x
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, Op, OpDef, get
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Var
from ekiden.relay.transform.graph.call_rewrites import CallRewrite, call_pass
from ekiden.relay.transform.language.scope_tree import infer_local_type
from ekiden.runtime.errors import CompileError

if TYPE_CHECKING:
    from ekiden.relay import gradient
else:
    gradient = LazyModule("ekiden.relay.gradient")


def _expand_gradient_op(call: Call) -> RelayExpr:
    """Expand a gradient operator (gradient, other arguments) by the forward operator's registered
    gradient rule.

    Raises:
        CompileError: Where the gradient is not known.
    """
    assert isinstance(call.op, Op)
    row = call.op.definition
    assert row.gradient_of is not None
    forward, arg_index = row.gradient_of
    grad, *args = call.args
    if len(args) < len(OPS[forward].arguments):
        placeholder = Var("wanted", call.checked_type)  # of which the type alone is read
        placeholder.set_checked_type(call.checked_type)
        args.insert(arg_index, placeholder)
    forward_call = Call(get(forward), tuple(args), _forward_attrs(call, OPS[forward]))
    infer_local_type(forward_call)
    try:
        gradient_expr = gradient.GRADIENTS_BY_OPERATOR[forward](forward_call, grad)[arg_index]
    except ValueError as error:
        raise CompileError(f"{row.name}: {error}") from error
    assert gradient_expr is not None
    return gradient_expr


def _forward_attrs(call: Call, forward: OpDef) -> Attrs | None:
    """Return the forward operator's attributes, a subset of its gradient operator's."""
    kind, attrs = forward.attrs, call.attrs
    if kind is None or attrs is None:
        return None
    return kind(**{name: attrs[name] for name in kind.__dataclass_fields__})  # type: ignore[attr-defined]


def ExpandOps() -> Pass:  # noqa: N802
    """Return a pass that expands gradient operators and removes hints."""
    return call_pass("ExpandOps", 0, _expansion_rewrites)


def _expansion_rewrites() -> dict[str, CallRewrite]:
    gradients = {name for name, row in OPS.rows() if row.gradient_of is not None}
    hints = {name for name, row in OPS.rows() if row.hint}
    return dict.fromkeys(gradients, _expand_gradient_op) | dict.fromkeys(
        hints, lambda call: call.args[0]
    )
