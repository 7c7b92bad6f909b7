"""Give operators whose shape is data the shape itself, where it can be computed now.

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
from ekiden.relay.transform.language.scopes import (
    evaluation_order,
    infer_here,
    map_functions,
    on_body,
)
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import children, rebuild, type_post_order


def _static(call: Call) -> RelayExpr:
    """A call whose sizes are constants by the function of relay.op, which takes those for
    attributes; others as they are."""
    assert isinstance(call.op, Op)
    names, sizes = call.op.definition.arguments, call.op.definition.sizes
    if not sizes or not all(isinstance(call.args[i], Constant) for i in sizes):
        return call
    function = attrgetter(call.op.name.removeprefix("dyn."))(op)
    attrs: Any = call.attrs or {}
    parameters = list(signature(function).parameters)
    if set(names) <= set(parameters):  # in any order
        given, options = dict(zip(names, call.args, strict=True)), set(parameters) - set(names)
        made: Call = function(**given, **{n: attrs[n] for n in options if n in attrs})
    else:
        rest = parameters[len(call.args) :]
        made = function(*call.args, **{name: attrs[name] for name in rest if name in attrs})
    return made if made.span is not None else made.with_fields(span=call.span)


def dynamic_to_static(root: RelayExpr) -> RelayExpr:
    """The pass over an expression with types; what holds others has to be inferred anew."""
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in evaluation_order(root):
        made = rebuild(expr, [new.get(c, c) for c in children(expr)])
        if isinstance(made, Call) and isinstance(made.op, Op):
            made = infer_here(_static(made))
            made = fold_call(made) if isinstance(made, Call) else made
        elif isinstance(made, (Tuple, TupleGetItem)):
            infer_here(made)
        new[expr] = made
    return new[root]


def _on_function(function: Function) -> Function:
    """A result of unknown dimensions is inferred anew."""
    made = on_body(dynamic_to_static)(function)
    kinds = type_post_order(made.ret_type) if made.ret_type is not None else []
    unknown = any(
        isinstance(d, AnyDim) for k in kinds if isinstance(k, TensorType) for d in k.shape
    )
    return made.with_fields(ret_type=None) if unknown else made


def DynamicToStatic() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return infer_type(map_functions(module, _on_function))

    return Pass("DynamicToStatic", transform, 2, (InferType(),))
