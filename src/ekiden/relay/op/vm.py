"""The vm dialect: operators that are instructions of the virtual machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, get, register_op
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op.memory import unit_relation


@node("relay.attrs.ReshapeTensorAttrs")
class ReshapeTensorAttrs(Attrs):
    """The new shape."""

    shape: tuple[PrimExpr, ...]


def _reshape_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(attrs, ReshapeTensorAttrs) and isinstance(types[0], TensorType)
    return TensorType(attrs.shape, types[0].dtype)


def _reshape_reference(attrs: ReshapeTensorAttrs, data: Array) -> Array:
    shape = [d.value if isinstance(d, IntImm) else -1 for d in attrs.shape]
    return np.reshape(data, shape)


def _shape_of_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(types[0], TensorType)
    return TensorType((const(len(types[0].shape)),), "int64")


register_op(
    OpDef(
        name="vm.invoke_tvm_op",
        arguments=("func", "inputs", "outputs"),
        relation=unit_relation,
        result="the empty tuple",
        stateful=True,
        description="Call a kernel with its inputs and the tensors it writes.",
    )
)
register_op(
    OpDef(
        name="vm.reshape_tensor",
        arguments=("data",),
        attrs=ReshapeTensorAttrs,
        relation=_reshape_relation,
        result="`shape`",
        reference=_reshape_reference,
        description="The same bytes under another shape.",
    )
)
register_op(
    OpDef(
        name="vm.shape_of",
        arguments=("data",),
        relation=_shape_of_relation,
        result="(rank of data,), int64",
        reference=lambda attrs, data: np.array(data.shape, np.int64),
        description="The shape of a tensor as an int64 vector on the host.",
    )
)


def invoke_tvm_op(func: Expr, inputs: Sequence[Expr], outputs: Sequence[Expr]) -> Call:
    """Call the kernel `func`."""
    return Call(get("vm.invoke_tvm_op"), (func, Tuple(tuple(inputs)), Tuple(tuple(outputs))))


def reshape_tensor(data: Expr, shape: tuple[PrimExpr, ...]) -> Call:
    """A view of `data` under `shape`."""
    return Call(get("vm.reshape_tensor"), (data,), ReshapeTensorAttrs(shape))
