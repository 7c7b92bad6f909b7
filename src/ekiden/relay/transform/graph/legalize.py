"""Legalisation: replace calls that a target does not support, by registered per-operator rules.

    @register_legalize("nn.conv2d")
    def legalize_conv2d(attrs, inputs, types):
        return None                      # None: the call is fine as it is

`types` are those of the inputs, then that of the result. A table is an attribute of operators:
`Op.set_attr` and `register_op_attr` add to it as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekiden.ir.attrs import Attrs, unwrap_user_attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS, register_op_attr
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import Type
from ekiden.relay.expr import Call
from ekiden.relay.transform.graph.call_rewrites import CallRewrite, rewrite_calls
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.unify import MismatchError, Unifier
from ekiden.runtime.errors import CompileError, EkidenError

Legalization = Callable[[Attrs | None, Sequence[RelayExpr], Sequence[Type]], RelayExpr | None]

LEGALIZE_TABLE = "FTVMLegalize"
"""Default legalisation table."""


def register_legalize(
    op_name: str, legal_op: Legalization | None = None, table: str = LEGALIZE_TABLE
) -> object:
    """Register a legalisation of an operator under the attribute `table`; without one, return a
    decorator.

    Raises KeyError when there is no such operator.
    """
    return register_op_attr(op_name, table, legal_op)


def _legalize_rewrite(name: str, legalization: Legalization) -> CallRewrite:
    def legalize_call(call: Call) -> RelayExpr | None:
        """Apply the legalisation to a call, and check the type of its result.

        Raises:
            CompileError: For a result that is no expression, or one of another type.
        """
        types = [*(a.checked_type for a in call.args), call.checked_type]
        where = f" ({call.span})" if call.span else ""
        try:
            legal = legalization(unwrap_user_attrs(call.attrs), call.args, types)
        # Our own errors already name the operator and its location.
        except EkidenError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise CompileError(f"{name}{where}: its legalization raised {reason}") from error
        if legal is None:
            return None
        if not isinstance(legal, RelayExpr):
            raise CompileError(
                f"{name}{where}: its legalization gave {legal!r:.100}, expected an expression"
            )
        # The rule is a user's: a result of another type would fail far from here.
        kind = _infer_if_untyped(legal).checked_type
        try:
            Unifier().unify(call.checked_type, kind)
        except MismatchError:
            mismatch = f"expected {format_type(call.checked_type)}, got {format_type(kind)}"
            raise CompileError(f"{name}{where}: its legalization: {mismatch}") from None
        return legal

    return legalize_call


def _infer_if_untyped(expr: RelayExpr) -> RelayExpr:
    """Infer the types of an expression that has none yet."""
    if expr.checked_type_or_none() is None:
        infer_expr_type(expr)
    return expr


def Legalize(  # noqa: N802
    legalize_map_attr_name: str = LEGALIZE_TABLE, name: str = "Legalize", opt_level: int = 1
) -> Pass:
    """Return a pass that applies the legalisations of one table (TVM's Legalize).

    Args:
        legalize_map_attr_name: The table.
        name: The name of the pass.
        opt_level: Its opt level.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Legalise each call of an operator in the table.

        The table is read when the pass runs, so that rules may be registered after it was created.
        """
        rows: Mapping[str, Any] = OP_ATTRS.get(legalize_map_attr_name, {})
        if not rows:
            return module
        table = {name: _legalize_rewrite(name, legal) for name, legal in rows.items()}
        return map_functions(module, lift_body_rewrite(lambda body: rewrite_calls(body, table)))

    return Pass(name, transform, opt_level, (InferType(),))
