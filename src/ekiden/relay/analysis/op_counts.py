"""Program statistics: operator frequencies, layers, MACs; constant checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from ekiden.arith import simplify
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.structural import structural_hash
from ekiden.ir.transform import PassContext, Sequential
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Expr, Function, Tuple
from ekiden.relay.visitor import children, post_order


def post_order_visit(expr: Expr, fvisit: Callable[[Expr], object]) -> None:
    """Visit every distinct expression in post-order."""
    for subexpression in post_order(expr, into_functions=True):
        fvisit(subexpression)


def check_constant(expr: Expr) -> bool:
    """Return whether an expression is a constant or a tuple of constants."""
    work = [expr]
    while work:
        current = work.pop()
        if isinstance(current, Tuple):
            work.extend(current.fields)
        elif not isinstance(current, Constant):
            return False
    return True


def list_op_freqs(mod: IRModule | Expr) -> dict[str, int]:
    """Count the calls of each operator in a module or expression.

    Bodies of fused functions are included.
    """
    calls = (e for root in _root_exprs(mod) for e in post_order(root, into_functions=True))
    names = (e.op.name for e in calls if isinstance(e, Call) and isinstance(e.op, Op))
    return dict(Counter(names))


def count_layers(expr: IRModule | Expr, valid_ops: Sequence[str]) -> int:
    """Return the largest number of calls of the given operators on any path."""
    deepest: dict[Expr, int] = {}
    for root in _root_exprs(expr):
        for node in post_order(root, into_functions=True):
            is_layer = (
                isinstance(node, Call) and isinstance(node.op, Op) and node.op.name in valid_ops
            )
            below = max((deepest[c] for c in children(node)), default=0)
            deepest[node] = below + is_layer
    return max((deepest[r] for r in _root_exprs(expr)), default=0)


def get_total_mac_number(expr: IRModule | Expr) -> int:
    """Return the total MACs of products, convolutions, attention and recurrent layers.

    Shapes must be constant, and types inferred; a call with a symbolic shape counts 0.
    """
    calls = (
        e
        for root in _root_exprs(expr)
        for e in post_order(root, into_functions=True)
        if isinstance(e, Call) and isinstance(e.op, Op)
    )
    counts = (simplify(n) for c in calls if (n := call_macs(c)) is not None)
    # Calls of symbolic sizes have no number, and are left out.
    return sum(n.value for n in counts if isinstance(n, IntImm))


def extract_fused_functions(mod: IRModule) -> dict[int, Function]:
    """Return the distinct primitive functions of a module by structural hash.

    A module that has none is simplified for inference and fused first.
    """
    existing = _primitive_functions(mod)
    if existing:
        return existing
    # At the full level, so that the functions are those of a compilation, whatever the context
    # around.
    with PassContext(opt_level=3):
        return _primitive_functions(Sequential(("SimplifyInference", "FuseOps"))(mod))


def _primitive_functions(module: IRModule) -> dict[int, Function]:
    by_hash: dict[int, Function] = {}
    for root in _root_exprs(module):
        for node in post_order(root, into_functions=True):
            if isinstance(node, Function) and node.attr("Primitive"):
                by_hash.setdefault(structural_hash(node), node)
    return by_hash


def _root_exprs(value: IRModule | Expr) -> list[Expr]:
    if not isinstance(value, IRModule):
        return [value]
    return [f for f in value.functions.values() if isinstance(f, Function)]


def call_macs(call: Call) -> PrimExpr | None:
    """Return the MACs of a typed call, or None for operators without MACs."""
    assert isinstance(call.op, Op)
    count = call.op.definition.macs
    if count is None:
        return None
    shapes = [shape for arg in call.args for shape in _tensor_shapes(arg.checked_type)]
    return count(call.attrs, shapes, _tensor_shapes(call.checked_type)[0])


def _tensor_shapes(kind: Type) -> list[tuple[PrimExpr, ...]]:
    """Return the shapes of a tensor type or of a tuple's tensors."""
    fields = kind.fields if isinstance(kind, TupleType) else (kind,)
    return [t.shape for t in fields if isinstance(t, TensorType)]
