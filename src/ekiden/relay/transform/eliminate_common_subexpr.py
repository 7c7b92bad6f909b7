"""Compute equal pure calls once.

add(nn.relu(%x), nn.relu(%x))   ->   %0 = nn.relu(%x); add(%0, %0)

One walk, operands first: two calls are equal if operator and attributes are, and their operands are
one object, which equal operands are by then. Hash consing, linear. Only what has no effect: two
reads of a reference, or two draws, may differ. Large constants are compared by identity, as reading
them would take longer than it saves; those of a few elements (axes, scales) by content.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.structural import structural_key
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Constant, Tuple, TupleGetItem
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import map_functions, on_body, rewrite_graph

Key = tuple[object, ...]
Skip = Callable[[RelayExpr], bool]
SMALL = 16
"""Elements of a constant up to which it is compared by content."""


def _key(expr: RelayExpr) -> Key | None:
    """Equal keys mean equal values; operands are told apart by identity, since they are unified
    first.
    """
    if isinstance(expr, Call) and isinstance(expr.op, Op) and not expr.op.definition.stateful:
        attrs = None if expr.attrs is None else structural_key(expr.attrs)
        return (expr.op.name, attrs, *map(id, expr.args))
    if isinstance(expr, Tuple):
        return ("fields", *map(id, expr.fields))
    if isinstance(expr, TupleGetItem):
        return ("tuple", expr.index, id(expr.tuple_value))
    if isinstance(expr, Constant) and expr.data.size <= SMALL:
        return ("constant", str(expr.data.dtype), expr.data.shape, expr.data.tobytes())
    return None


def eliminate_common_subexpr(root: RelayExpr, fskip: Skip | None = None) -> RelayExpr:
    """Share equal calls below root. Only for expressions of one scope, as before A-normal form."""
    first: dict[Key, RelayExpr] = {}

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        key = None if fskip is not None and fskip(new) else _key(new)
        return new if key is None else first.setdefault(key, new)

    return rewrite_graph(root, rewrite)


def EliminateCommonSubexpr(fskip: Skip | None = None) -> Pass:  # noqa: N802
    """The pass described at the top of this file. What `fskip` is true of is computed as often as
    it stands there.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, on_body(lambda body: eliminate_common_subexpr(body, fskip)))

    return Pass("EliminateCommonSubexpr", transform, 3, (InferType(),))
