"""Common subexpression elimination: evaluate equal pure calls once.

add(nn.relu(%x), nn.relu(%x))   ->   %0 = nn.relu(%x); add(%0, %0)

One walk, operands first: two calls are equal if operator and attributes are, and their operands are
one object, which equal operands are by then. Hash consing, linear. Only what has no effect: two
reads of a reference, or two draws, may differ. Large constants are compared by identity, as reading
them would take longer than it saves; those of a few elements (axes, scales) by content.

What fuses is shared within one function value alone. A closure would capture what it shares with
the function around it: a tensor more is written, kept as long as the closure, and read, where each
of the two would have computed it inside of its kernels (the back-propagators of gradients).
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op, OpPattern
from ekiden.ir.structural import structural_key
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    evaluation_order,
    find_scopes,
    is_atom,
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)

ValueKey = tuple[object, ...]
SkipPredicate = Callable[[RelayExpr], bool]
MAX_COMPARED_CONSTANT_ELEMENTS = 16
"""Maximum elements of constants compared by content."""


FUSIBLE_PATTERNS = (OpPattern.ELEMWISE, OpPattern.BROADCAST, OpPattern.INJECTIVE)


def _value_number(expr: RelayExpr, function: RelayExpr | None) -> ValueKey | None:
    """Return a key that equal values share (value numbering); operands compare by identity, since
    they are unified first. `function` is the innermost one around the expression.
    """
    if isinstance(expr, Call) and isinstance(expr.op, Op) and not expr.op.definition.stateful:
        attrs = None if expr.attrs is None else structural_key(expr.attrs)
        # Elementwise calls are shared within a function only, so that each closure can fuse its own
        # copy.
        own = id(function) if expr.op.definition.pattern in FUSIBLE_PATTERNS else None
        return (expr.op.name, own, attrs, *map(id, expr.args))
    if isinstance(expr, Tuple):
        return ("fields", *map(id, expr.fields))
    if isinstance(expr, TupleGetItem):
        return ("tuple", expr.index, id(expr.tuple_value))
    if isinstance(expr, Constant) and expr.data.size <= MAX_COMPARED_CONSTANT_ELEMENTS:
        return ("constant", str(expr.data.dtype), expr.data.shape, expr.data.tobytes())
    return None


def eliminate_common_subexpr(root: RelayExpr, fskip: SkipPredicate | None = None) -> RelayExpr:
    """Return `root` with equal calls shared. Only for expressions of one scope, as before A-normal
    form.
    """
    first: dict[ValueKey, RelayExpr] = {}
    functions = _enclosing_functions(root)

    def share_equal(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Return the first expression of the same value number, or the new one."""
        key = None if fskip is not None and fskip(new) else _value_number(new, functions.get(old))
        return new if key is None else first.setdefault(key, new)

    return rewrite_graph(root, share_equal)


def _enclosing_functions(root: RelayExpr) -> dict[RelayExpr, RelayExpr]:
    """Map each expression inside a function value to the innermost enclosing function."""
    if not any(isinstance(e, Function) and not is_atom(e) for e in evaluation_order(root)):
        return {}
    functions: dict[RelayExpr, RelayExpr] = {}
    of_scope: dict[RelayScope, RelayExpr | None] = {}
    for scope in find_scopes(root):  # outer scopes first
        around = of_scope.setdefault(scope, None)
        if around is not None:
            functions.update(dict.fromkeys(scope.nodes, around))
        for expr, inner in scope.child_scopes.items():
            enclosing = expr if isinstance(expr, Function) else around
            of_scope.update(dict.fromkeys(inner, enclosing))
    return functions


def EliminateCommonSubexpr(fskip: SkipPredicate | None = None) -> Pass:  # noqa: N802
    """Return a pass that shares equal pure calls (TVM's EliminateCommonSubexpr).

    Expressions for which `fskip` is true are computed as often as they occur.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Eliminate common subexpressions in each function."""
        return map_functions(
            module, lift_body_rewrite(lambda body: eliminate_common_subexpr(body, fskip))
        )

    return Pass("EliminateCommonSubexpr", transform, 3, (InferType(),))
