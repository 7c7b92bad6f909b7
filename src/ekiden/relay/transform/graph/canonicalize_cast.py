"""Cast a value that several operators cast alike once for each, so that each cast fuses with its
user.

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
from ekiden.relay.transform.language.scopes import map_functions, on_body, rewrite_graph


def _widens(expr: RelayExpr) -> bool:
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or expr.op.name != "cast":
        return False
    before, after = expr.args[0].checked_type, expr.checked_type
    assert isinstance(before, TensorType) and isinstance(after, TensorType)
    return itemsize(after.dtype) > itemsize(before.dtype)


def canonicalize_cast(root: RelayExpr) -> RelayExpr:
    """Return `root` with a cast of its own for each elementwise user of a widening cast."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Give an elementwise call (up to BROADCAST) a cast of its own for each widening cast that
        it shares.

        Fusion then finds one user, and the narrow value crosses memory.
        """
        if not isinstance(new, Call) or not isinstance(new.op, Op):
            return new
        if new.op.definition.pattern > OpPattern.BROADCAST:
            return new
        result_type = new.checked_type
        new = new.with_fields(args=tuple(_own(a) if _widens(a) else a for a in new.args))
        new.set_checked_type(result_type)
        return new

    return rewrite_graph(root, rewrite)


def _own(cast: RelayExpr) -> RelayExpr:
    assert isinstance(cast, Call)
    copy = Call(cast.op, cast.args, cast.attrs, span=cast.span)
    copy.set_checked_type(cast.checked_type)
    return copy


@module_pass(name="CanonicalizeCast", opt_level=3, required=(InferType(),))
def _canonicalize_cast(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, on_body(canonicalize_cast))


def CanonicalizeCast() -> Pass:  # noqa: N802
    """Return the pass described at the top of this file."""
    return _canonicalize_cast
