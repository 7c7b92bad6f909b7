"""Give operators whose shape is data the shape itself, where it can be computed now.

    dyn.reshape(%x, shape_of(%y))   ->   reshape(%x, newshape=[8, 3])   %y: Tensor[(8, 3), float32]

What a shape is computed from is folded on the way, so that one shape that becomes known makes
others known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import AnyDim
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.transform.fold_constant import fold_call
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.scopes import evaluation_order, infer_here, map_functions, on_body
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import children, rebuild, type_post_order


def _resize2d(call: Call, attrs: Any) -> Call:  # noqa: ANN401 - attributes by name
    given = {name: attrs[name] for name in attrs if name not in ("symbols", "size")}
    data, size = call.args
    assert isinstance(size, Constant)
    return op.image.resize2d(data, [int(n) for n in size.data], **given)


MAKE: Any = op
"""The functions that make calls, which take constants where their types say numbers."""

# fmt: off
STATIC: dict[str, Callable[[Call, Any], Call]] = {
    "dyn.reshape":       lambda c, a: MAKE.reshape(*c.args, a.allowzero),
    "dyn.expand_dims":   lambda c, a: MAKE.expand_dims(*c.args),
    "dyn.squeeze":       lambda c, a: MAKE.squeeze(*c.args),
    "dyn.tile":          lambda c, a: MAKE.tile(*c.args),
    "dyn.broadcast_to":  lambda c, a: MAKE.broadcast_to(*c.args),
    "dyn.full":          lambda c, a: MAKE.full(*c.args, a.dtype),
    "dyn.zeros":         lambda c, a: MAKE.zeros(*c.args, a.dtype),
    "dyn.ones":          lambda c, a: MAKE.ones(*c.args, a.dtype),
    "dyn.arange":        lambda c, a: MAKE.arange(*c.args, a.dtype),
    "dyn.topk":          lambda c, a: MAKE.topk(*c.args, a.axis, a.ret_type, a.is_ascend, a.dtype),
    "dyn.one_hot":       lambda c, a: MAKE.one_hot(*c.args, a.axis, a.dtype),
    "dyn.nn.pad":        lambda c, a: MAKE.nn.pad(*c.args, a.pad_mode),
    "dyn.strided_slice": lambda c, a: MAKE.strided_slice(*c.args, a.axes, a.slice_mode),
    "dyn.image.resize2d": _resize2d,
}
"""Operator -> its form without data, of a call whose shape is a constant: the functions that make
calls take one for the attribute."""
# fmt: on

FROM_DATA = {"dyn.nn.pad": (1,), "dyn.one_hot": (3,), "dyn.full": (1,)}
"""Operator -> which arguments say the shape, where it is not all from the second on."""


def _is_known(call: Call, name: str) -> bool:
    first = 0 if len(call.args) == 1 or name == "dyn.arange" else 1
    places = FROM_DATA.get(name, range(first, len(call.args)))
    return all(isinstance(call.args[i], Constant) for i in places)


def _static(call: Call) -> RelayExpr:
    assert isinstance(call.op, Op)
    name = call.op.name
    if name not in STATIC or not _is_known(call, name):
        return call
    made = STATIC[name](call, call.attrs)
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
