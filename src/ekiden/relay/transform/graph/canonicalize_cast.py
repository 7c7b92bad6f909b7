"""Duplicate a shared widening cast for each of its users, so that every cast fuses with its user.

    %0 = cast(%x, "int32"); (exp(%0), tanh(%0))   ->   (exp(cast(%x, "int32")), tanh(cast(..)))

Only casts to more bits move: the smaller value is then what is kept in memory.
"""

from __future__ import annotations

from ekiden.ir.dtype import itemsize
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)


def _is_widening_cast(expr: RelayExpr) -> bool:
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or expr.op.name != "cast":
        return False
    before, after = expr.args[0].checked_type, expr.checked_type
    assert isinstance(before, TensorType) and isinstance(after, TensorType)
    return itemsize(after.dtype) > itemsize(before.dtype)


def canonicalize_cast(root: RelayExpr) -> RelayExpr:
    """Return `root` with a separate copy of each widening cast for every elementwise user."""

    def duplicate_casts(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Clone the widening casts among an elementwise call's arguments (pattern up to BROADCAST).

        Fusion then finds one user, and the narrow value crosses memory.
        """
        if not isinstance(new, Call) or not isinstance(new.op, Op):
            return new
        # Other operators do not fuse a cast into their reads.
        if new.op.definition.pattern > OpPattern.BROADCAST:
            return new
        result_type = new.checked_type
        new = new.with_fields(
            args=tuple(_clone_cast(a) if _is_widening_cast(a) else a for a in new.args)
        )
        new.set_checked_type(result_type)
        return new

    return rewrite_graph(root, duplicate_casts)


def _clone_cast(cast: RelayExpr) -> RelayExpr:
    assert isinstance(cast, Call)
    copy = Call(cast.op, cast.args, cast.attrs, span=cast.span)
    copy.set_checked_type(cast.checked_type)
    return copy


@module_pass(name="CanonicalizeCast", opt_level=3, required=(InferType(),))
def _canonicalize_cast(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lift_body_rewrite(canonicalize_cast))


def CanonicalizeCast() -> Pass:  # noqa: N802
    """Return a pass that duplicates shared widening casts (TVM's CanonicalizeCast)."""
    return _canonicalize_cast
