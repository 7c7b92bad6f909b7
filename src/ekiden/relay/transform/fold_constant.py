"""Evaluate at compile time what depends on constants alone, with the reference semantics of each operator.

add(1f, 2f)  ->  3f          (%a, %b).1  ->  %b          if (True) { %a } else { %b }  ->  %a
"""

from __future__ import annotations

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass, module_pass
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, If, Tuple, TupleGetItem
from ekiden.relay.interpreter import evaluate_call
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import map_functions, on_body, rewrite_graph


def _is_constant(expr: RelayExpr) -> bool:
    if isinstance(expr, Tuple):
        return all(isinstance(f, Constant) for f in expr.fields)
    return isinstance(expr, Constant)


def _has_static_type(kind: Type | None) -> bool:
    """Whether the result has no symbols: attributes that hold symbols cannot be evaluated."""
    return isinstance(kind, TensorType) and all(isinstance(d, IntImm) for d in kind.shape)


def _fold_call(call: Call, kind: Type | None) -> RelayExpr:
    if not isinstance(call.op, Op) or not all(map(_is_constant, call.args)):
        return call
    definition = call.op.definition
    if (
        definition.stateful
        or definition.reference is None
        or definition.lower is None
        or not _has_static_type(kind)
    ):
        return call
    arrays = [
        tuple(f.data for f in a.fields if isinstance(f, Constant))
        if isinstance(a, Tuple)
        else a.data
        for a in call.args
        if isinstance(a, (Tuple, Constant))
    ]
    value = evaluate_call(call.op, call.attrs, arrays)
    assert not isinstance(value, tuple), f"{call.op.name}: a tensor type with a tuple value"
    folded = Constant(value, span=call.span)
    assert kind is not None
    folded.set_checked_type(kind)
    return folded


def _rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    match new:
        case Call():
            return _fold_call(new, old.checked_type_or_none())
        case TupleGetItem(tuple_value=Tuple(fields=fields), index=index):
            return fields[index]
        case If(cond=Constant(data=data), true_branch=yes, false_branch=no):
            return yes if bool(data) else no
        case _:
            return new


def fold_constant(root: RelayExpr) -> RelayExpr:
    """Fold an expression whose checked types are known."""
    return rewrite_graph(root, _rewrite)


@module_pass("FoldConstant", opt_level=2, required=(InferType(),))
def _fold_constant(module: IRModule) -> IRModule:
    return map_functions(module, on_body(fold_constant))


def FoldConstant() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _fold_constant
