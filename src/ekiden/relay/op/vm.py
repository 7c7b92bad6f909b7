"""VM dialect: operators that are instructions of the virtual machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, MemoryAliasing, OpDef, OpPattern, TypeRelationFunc, get, register_op
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr, Tuple
from ekiden.relay.op._declare import raise_type_error
from ekiden.relay.op.memory import unit_relation
from ekiden.topi.dimensions import as_ints


@node("relay.attrs.ReshapeTensorAttrs")
class ReshapeTensorAttrs(Attrs):
    """Attributes of vm.reshape_tensor: the new shape."""

    shape: tuple[PrimExpr, ...]


def _reshape_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(attrs, ReshapeTensorAttrs) and isinstance(types[0], TensorType)
    return TensorType(attrs.shape, types[0].dtype)


def _reshape_reference(attrs: ReshapeTensorAttrs, data: Array) -> Array:
    shape = [d.value if isinstance(d, IntImm) else -1 for d in attrs.shape]
    return np.reshape(data, shape)


@node("relay.attrs.MatchShapeAttrs")
class MatchShapeAttrs(Attrs):
    """Attributes of vm.match_shape: the shape; a fresh symbol is bound, `?` matches anything, other
    dimensions are checked. `place` describes the declaration for errors.
    """

    shape: tuple[PrimExpr, ...]
    place: str = ""


@node("relay.attrs.BindDimsAttrs")
class BindDimsAttrs(Attrs):
    """Attributes of vm.bind_dims: the symbols, and the operator whose `dims` rule computes them;
    without one, the vector's elements.
    """

    symbols: tuple[PrimExpr, ...]
    operator: str = ""
    attrs: Attrs | None = None


@node("relay.attrs.InvokeAttrs")
class InvokeAttrs(Attrs):
    """Attributes of vm.invoke_tvm_op: the device's index in the module's table, 0 for the host."""

    device: int = 0


def _match_shape_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(attrs, MatchShapeAttrs) and isinstance(types[0], TensorType)
    return TensorType(attrs.shape, types[0].dtype)


@node("relay.attrs.PrefixAttrs")
class PrefixAttrs(Attrs):
    """Attributes of vm.prefix and vm.part: the shape of the smaller or larger tensor."""

    shape: tuple[PrimExpr, ...]


def _make_slice_relation(name: str, is_part: bool) -> TypeRelationFunc:
    """Return the relation of vm.prefix, or of vm.part, whose result is the larger tensor.

    It refuses tensors that are known not to lie inside.
    """

    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer a tensor type of the attributes' shape and the larger tensor's dtype.

        Raises:
            TypeInferenceError: The ranks differ, or an extent is known to be too large.
        """
        assert isinstance(attrs, PrefixAttrs) and isinstance(types[0], TensorType)
        inner, outer = attrs.shape, types[0].shape
        if is_part:
            inner, outer = outer, inner
        if len(inner) != len(outer):
            raise_type_error(name, f"a part of rank {len(inner)} of a whole of rank {len(outer)}")
        for own, limit in zip(inner, outer, strict=True):
            if isinstance(own, IntImm) and isinstance(limit, IntImm) and own.value > limit.value:
                raise_type_error(name, f"a part of extent {own.value} of a whole of {limit.value}")
        return TensorType(attrs.shape, types[0].dtype)

    return relation


def _lower_prefix(
    attrs: PrefixAttrs, inputs: Sequence[te.Tensor], out: TensorType
) -> Sequence[te.Tensor]:
    (data,) = inputs
    return [te.compute(out.shape, lambda *indices: data[indices], name="prefix", tag="injective")]


def _part_reference(attrs: PrefixAttrs, data: Array) -> Array:
    after = [(0, n - m) for n, m in zip(as_ints(attrs.shape), data.shape, strict=True)]
    return np.pad(data, after)


def _lower_part(
    attrs: PrefixAttrs, inputs: Sequence[te.Tensor], out: TensorType
) -> Sequence[te.Tensor]:
    (data,) = inputs
    attributes: dict[str, object] = {"whole": out.shape}
    return [
        te.compute(
            data.shape, lambda *indices: data[indices], "part", "injective", attrs=attributes
        )
    ]


def _shape_of_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(types[0], TensorType)
    return TensorType((const(len(types[0].shape)),), "int64")


register_op(
    OpDef(
        name="vm.invoke_tvm_op",
        arguments=("func", "inputs", "outputs", "scratch"),
        optional=1,
        attrs=InvokeAttrs,
        relation=unit_relation,
        result="the empty tuple",
        stateful=True,
        description="Call a kernel with its inputs and the tensors it writes; a fourth operand, "
        "bytes, is where its working memory lies.",
    )
)
register_op(
    OpDef(
        name="vm.reshape_tensor",
        memory=MemoryAliasing.MUST_ALIAS,
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
        name="vm.match_shape",
        memory=MemoryAliasing.MUST_ALIAS,
        arguments=("data",),
        attrs=MatchShapeAttrs,
        relation=_match_shape_relation,
        result="`shape`",
        reference=lambda attrs, data: data,
        stateful=True,
        description="The same tensor, whose dimensions have names from here on.",
    )
)
register_op(
    OpDef(
        name="vm.forget_shape",
        memory=MemoryAliasing.MUST_ALIAS,
        arguments=("data",),
        attrs=MatchShapeAttrs,
        relation=_match_shape_relation,
        result="`shape`",
        reference=lambda attrs, data: data,
        description="The same tensor under a type that says less of its shape.",
    )
)
register_op(
    OpDef(
        name="vm.bind_dims",
        memory=MemoryAliasing.MUST_ALIAS,
        arguments=("data", "sources"),
        attrs=BindDimsAttrs,
        relation=lambda types, attrs: types[0],
        result="the type of data",
        reference=lambda attrs, data, sources: data,
        stateful=True,
        description="The same tensor; symbols have their values, read from sources, from here on.",
    )
)
register_op(
    OpDef(
        name="vm.prefix",
        arguments=("data",),
        attrs=PrefixAttrs,
        relation=_make_slice_relation("vm.prefix", False),
        result="`shape`",
        reference=lambda attrs, data: data[tuple(slice(n) for n in as_ints(attrs.shape))],
        lower=_lower_prefix,
        pattern=OpPattern.INJECTIVE,
        description="The first elements along each axis.",
    )
)
register_op(
    OpDef(
        name="vm.part",
        arguments=("data",),
        attrs=PrefixAttrs,
        relation=_make_slice_relation("vm.part", True),
        result="`shape`",
        reference=_part_reference,
        lower=_lower_part,
        pattern=OpPattern.INJECTIVE,
        description="A tensor whose first elements along each axis are those of data. A kernel "
        "does not write the others; elsewhere they are zero.",
    )
)
register_op(
    OpDef(
        name="vm.shape_of",
        shape_only=True,
        memory=MemoryAliasing.NO_ALIAS,
        arguments=("data",),
        relation=_shape_of_relation,
        result="(rank of data,), int64",
        reference=lambda attrs, data: np.array(data.shape, np.int64),
        description="The shape of a tensor as an int64 vector on the host.",
    )
)


def invoke_tvm_op(
    func: Expr, inputs: Sequence[Expr], outputs: Sequence[Expr], device: int = 0
) -> Call:
    """Build the call of a kernel with explicit inputs and outputs on one device.

    A fourth operand, bytes, is where its working memory lies, as far as it fits.
    """
    args = func, Tuple(tuple(inputs)), Tuple(tuple(outputs))
    return Call(get("vm.invoke_tvm_op"), args, InvokeAttrs(device))


def reshape_tensor(data: Expr, shape: tuple[PrimExpr, ...]) -> Call:
    """Return a view of `data` with another shape."""
    return Call(get("vm.reshape_tensor"), (data,), ReshapeTensorAttrs(shape))


def match_shape(data: Expr, shape: tuple[PrimExpr, ...], place: str = "") -> Call:
    """Check `data` against `shape`, and bind its fresh symbols; `place` describes the declaration
    in errors.
    """
    return Call(get("vm.match_shape"), (data,), MatchShapeAttrs(shape, place))


def forget_shape(data: Expr, shape: tuple[PrimExpr, ...]) -> Call:
    """Return `data` under a less specific type."""
    return Call(get("vm.forget_shape"), (data,), MatchShapeAttrs(shape))


def bind_dims(
    data: Expr,
    sources: Sequence[Expr],
    symbols: tuple[PrimExpr, ...],
    operator: str = "",
    attrs: Attrs | None = None,
) -> Call:
    """Return `data` after binding `symbols` to the values of the sources."""
    args = (data, Tuple(tuple(sources)))
    return Call(get("vm.bind_dims"), args, BindDimsAttrs(symbols, operator, attrs))


def prefix(data: Expr, shape: tuple[PrimExpr, ...]) -> Call:
    """Return the leading slice of `data`, in the given shape."""
    return Call(get("vm.prefix"), (data,), PrefixAttrs(shape))


def part(data: Expr, shape: tuple[PrimExpr, ...]) -> Call:
    """Return a tensor of `shape` whose leading slice is `data`."""
    return Call(get("vm.part"), (data,), PrefixAttrs(shape))
