"""Figures about programs: operators, layers, multiplications; and what is constant."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.structural import structural_hash
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Constant, Expr, Function, Tuple
from ekiden.relay.visitor import children, post_order

Ints = tuple[int, ...]


def post_order_visit(expr: Expr, fvisit: Callable[[Expr], object]) -> None:
    """Call a function on every expression below one, children first, each shared one once."""
    for each in post_order(expr, into_functions=True):
        fvisit(each)


def check_constant(expr: Expr) -> bool:
    """Whether an expression is a constant, or a tuple of those."""
    work = [expr]
    while work:
        at = work.pop()
        if isinstance(at, Tuple):
            work.extend(at.fields)
        elif not isinstance(at, Constant):
            return False
    return True


def list_op_freqs(mod: IRModule | Expr) -> dict[str, int]:
    """How many calls of each operator a module or expression has, bodies of fused functions
    included.
    """
    calls = (e for root in _roots(mod) for e in post_order(root, into_functions=True))
    names = (e.op.name for e in calls if isinstance(e, Call) and isinstance(e.op, Op))
    return dict(Counter(names))


def count_layers(expr: IRModule | Expr, valid_ops: Sequence[str]) -> int:
    """The largest number of calls of some operators on one path to the result."""
    deepest: dict[Expr, int] = {}
    for root in _roots(expr):
        for at in post_order(root, into_functions=True):
            is_layer = isinstance(at, Call) and isinstance(at.op, Op) and at.op.name in valid_ops
            below = max((deepest[c] for c in children(at)), default=0)
            deepest[at] = below + is_layer
    return max((deepest[r] for r in _roots(expr)), default=0)


def get_total_mac_number(expr: IRModule | Expr) -> int:
    """How often dense layers, matrix products and convolutions multiply and add, on constant
    shapes. Needs inferred types; a call with a symbolic shape counts 0.
    """
    calls = (
        e
        for root in _roots(expr)
        for e in post_order(root, into_functions=True)
        if isinstance(e, Call) and isinstance(e.op, Op)
    )
    return sum(_macs(c) for c in calls)


def extract_fused_functions(mod: IRModule) -> dict[int, Function]:
    """The primitive functions that `FuseOps` made in a module, by structural hash, each once."""
    found: dict[int, Function] = {}
    for root in _roots(mod):
        for at in post_order(root, into_functions=True):
            if isinstance(at, Function) and at.attr("Primitive"):
                found.setdefault(structural_hash(at), at)
    return found


def _roots(value: IRModule | Expr) -> list[Expr]:
    if not isinstance(value, IRModule):
        return [value]
    return [f for f in value.functions.values() if isinstance(f, Function)]


def _macs(call: Call) -> int:
    assert isinstance(call.op, Op)
    count = _MACS.get(call.op.name)
    kinds = [e.checked_type for e in (call, *call.args)] if count is not None else []
    shapes = [t.shape for t in kinds if isinstance(t, TensorType)]
    if count is None or not all(isinstance(d, IntImm) for shape in shapes for d in shape):
        return 0
    result, data, weight = (tuple(d.value for d in s if isinstance(d, IntImm)) for s in shapes[:3])
    return count(call.attrs, result, data, weight)


def _conv(attrs: object, result: Ints, data: Ints, weight: Ints) -> int:
    layout = str(getattr(attrs, "kernel_layout", "OIHW"))
    return math.prod(result) * math.prod(weight) // max(weight[layout.index("O")], 1)


def _conv_transpose(attrs: object, result: Ints, data: Ints, weight: Ints) -> int:
    layout = str(getattr(attrs, "data_layout", "NCHW"))
    return math.prod(data) * math.prod(weight) // max(data[layout.index("C")], 1)


def _product(attrs: object, result: Ints, data: Ints, weight: Ints) -> int:
    inner = data[-2] if getattr(attrs, "transpose_a", False) else data[-1]
    return math.prod(result) * inner


_MACS: dict[str, Callable[[object, Ints, Ints, Ints], int]] = {
    "nn.dense": _product,
    "nn.matmul": _product,
    "nn.batch_matmul": _product,
    "nn.conv1d": _conv,
    "nn.conv2d": _conv,
    "nn.conv2d_transpose": _conv_transpose,
}
"""Operator -> (attributes, shapes of the result, the data and the weight) -> multiplications."""
