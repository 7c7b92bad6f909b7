"""Replace dynamic operators by static ones where their shape arguments are constants.

    dyn.reshape(%x, shape_of(%y))   ->   reshape(%x, newshape=[8, 3])   %y: Tensor[(8, 3), float32]

What a shape is computed from is folded on the way, so that one shape that becomes known makes
others known.
"""

from __future__ import annotations

from inspect import signature
from operator import attrgetter
from typing import Any

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.transform.graph.fold_constant import fold_call
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    evaluation_order,
    infer_local_type,
    lift_body_rewrite,
    map_functions,
)
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import children, rebuild, type_post_order


def _to_static_call(call: Call) -> RelayExpr:
    """Return a call with constant size arguments as a call of the static operator.

    Other calls stay as they are.
    """
    assert isinstance(call.op, Op)
    names, sizes = call.op.definition.arguments, call.op.definition.sizes
    # A size that is computed at run time stays an argument.
    if not sizes or not all(isinstance(call.args[i], Constant) for i in sizes):
        return call
    function = attrgetter(call.op.name.removeprefix("dyn."))(op)
    attrs: Any = call.attrs or {}
    parameters = list(signature(function).parameters)
    if set(names) <= set(parameters):  # in any order
        operands, options = dict(zip(names, call.args, strict=True)), set(parameters) - set(names)
        static: Call = function(**operands, **{n: attrs[n] for n in options if n in attrs})
    else:
        trailing = parameters[len(call.args) :]
        static = function(*call.args, **{name: attrs[name] for name in trailing if name in attrs})
    return static if static.span is not None else static.with_fields(span=call.span)


def dynamic_to_static(root: RelayExpr) -> RelayExpr:
    """Return an expression with static operators; everything around it needs type inference."""
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in evaluation_order(root):
        rebuilt = rebuild(expr, [new.get(c, c) for c in children(expr)])
        if isinstance(rebuilt, Call) and isinstance(rebuilt.op, Op):
            rebuilt = _to_static_call(rebuilt)
            if _has_typed_operands(rebuilt):
                infer_local_type(rebuilt)
                # Folding at once lets a shape that became constant make later ones static.
                rebuilt = fold_call(rebuilt) if isinstance(rebuilt, Call) else rebuilt
        elif isinstance(rebuilt, (Tuple, TupleGetItem)) and _has_typed_operands(rebuilt):
            infer_local_type(rebuilt)
        new[expr] = rebuilt
    return new[root]


def _has_typed_operands(expr: RelayExpr) -> bool:
    """Return whether every operand is typed; rebuilt calls and branches are untyped until the next
    inference.
    """
    work = list(expr.args if isinstance(expr, Call) else children(expr))
    while work:
        operand = work.pop()
        if operand.checked_type_or_none() is not None:
            continue
        if not isinstance(operand, Tuple):
            return False
        work.extend(operand.fields)
    return True


def _rewrite_function(function: Function) -> Function:
    """Rewrite a function to static operators; a result type with unknown dimensions is dropped."""
    static = lift_body_rewrite(dynamic_to_static)(function)
    kinds = type_post_order(static.ret_type) if static.ret_type is not None else []
    unknown = any(
        isinstance(d, AnyDim) for k in kinds if isinstance(k, TensorType) for d in k.shape
    )
    # The declared type would keep the dimension unknown.
    return static.with_fields(ret_type=None) if unknown else static


def DynamicToStatic() -> Pass:  # noqa: N802
    """Return a pass that makes dynamic operators static (TVM's DynamicToStatic)."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Make operators static in each function, and infer types again."""
        return infer_type(map_functions(module, _rewrite_function))

    return Pass("DynamicToStatic", transform, 2, (InferType(),))
