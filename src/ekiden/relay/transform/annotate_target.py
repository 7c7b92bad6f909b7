"""Mark which operators external compilers take, by begins and ends around each.

    nn.relu(%x)
->  annotation.compiler_end(nn.relu(annotation.compiler_begin(%x, "test")), "test")

An operator is taken by the first target for which it has an attribute "target.<name>" (see
`ir.register_op_attr`) whose predicate holds for the call; a composite function by the target its
name begins with. Tuples and projections join what they are made of.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext
from ekiden.relay.expr import Call, Function, Tuple, TupleGetItem
from ekiden.relay.op.annotation import CompilerAttrs, compiler_begin, compiler_end
from ekiden.relay.transform.calls import typed
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import evaluation_order, map_functions, on_body, with_children
from ekiden.relay.visitor import children, rebuild

DEFAULT = "default"


def mark_of(expr: RelayExpr, which: str) -> str | None:
    """The compiler that a begin or end is of; None for anything else."""
    is_mark = isinstance(expr, Call) and isinstance(expr.op, Op) and (
        expr.op.name == f"annotation.compiler_{which}"
    )  # fmt: skip
    if not is_mark:
        return None
    assert isinstance(expr, Call) and isinstance(expr.attrs, CompilerAttrs)
    return expr.attrs.compiler


def inside(mark: RelayExpr) -> RelayExpr:
    """What a begin or end is put around."""
    assert isinstance(mark, Call)
    return mark.args[0]


def _target_of(call: Call, targets: Sequence[str]) -> str:
    if isinstance(call.op, Op):
        for target in targets:
            predicate = call.op.get_attr(f"target.{target}")
            if callable(predicate) and predicate(call):
                return target
    if isinstance(call.op, Function):
        owner = str(call.op.attr("Composite") or "").partition(".")[0]
        return owner if owner in targets else DEFAULT
    return DEFAULT


def annotate(root: RelayExpr, targets: Sequence[str], include_non_call_ops: bool) -> RelayExpr:
    """`root` with begins and ends."""
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in evaluation_order(root):
        if isinstance(expr, Function) and expr.attr("Composite") is not None:
            new[expr] = expr
            continue
        target = DEFAULT
        if isinstance(expr, Call) and mark_of(expr, "begin") is None:
            target = _target_of(expr, targets)
        elif include_non_call_ops and isinstance(expr, (Tuple, TupleGetItem)):
            below = {mark_of(new.get(c, c), "end") for c in children(expr)}
            only = below.pop() if len(below) == 1 else None
            target = DEFAULT if only is None else only
        new[expr] = _around(expr, target, new)
    return new[root]


def _around(expr: RelayExpr, target: str, new: dict[RelayExpr, RelayExpr]) -> RelayExpr:
    if target == DEFAULT:
        return with_children(expr, new)
    operator = [expr.op] if isinstance(expr, Call) else []
    data = [c for c in children(expr) if c not in operator]
    begun = [typed(compiler_begin(new.get(c, c), target)) for c in data]
    marked = rebuild(expr, [*operator, *begun])
    marked.set_checked_type(expr.checked_type)
    return typed(compiler_end(marked, target))


def AnnotateTarget(  # noqa: N802
    targets: str | Sequence[str], include_non_call_ops: bool = True
) -> Pass:
    """The pass described at the top of this file; the first of several targets comes first."""
    names = [targets] if isinstance(targets, str) else list(targets)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(
            module, on_body(lambda body: annotate(body, names, include_non_call_ops))
        )

    return Pass("AnnotateTargetFunc", transform, 0, (InferType(),))
