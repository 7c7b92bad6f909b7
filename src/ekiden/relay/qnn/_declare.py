"""Helpers shared by the declarations of qnn operators.

A quantised tensor stands for scale * (integers - zero_point); its scale (float32) and zero point
(int32) are arguments of their own, scalars or, where a tensor has one of each per channel, vectors
along an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ekiden.ir.attrs import Attrs
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, Array, OpDef, PaddingAbsorption, TypeRelationFunc, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.op._declare import call_op as plain_call
from ekiden.relay.op._declare import check_rank, check_tensors, raise_type_error, unify_dims
from ekiden.relay.op.reshaping import reshape
from ekiden.relay.transform.graph.legalize import register_legalize
from ekiden.topi.dimensions import as_dim, replace_dim

QNN_CANONICALIZE_TABLE = "FTVMQnnCanonicalize"
"""Legalisation table (TVM's name) that expands qnn operators."""
INT8_DTYPES = ("int8", "uint8")
UP_TO_16_BIT_DTYPES = (*INT8_DTYPES, "int16", "uint16")
QUANTIZED_DTYPES = (*UP_TO_16_BIT_DTYPES, "int32")
"""Dtypes of quantised tensors."""

Expansion = Callable[[Any, Sequence[Expr], Sequence[Type]], Expr]
"""Function (attributes, arguments, argument and result types) -> equivalent Relay operators."""


def declare_qnn_op(
    name: str,
    arguments: str,
    relation: TypeRelationFunc,
    reference: Callable[..., Array],
    expand: Expansion,
    attrs: type[Attrs] | None = None,
    result: str = "as data",
    quantizes: str = "",
) -> None:
    """Declare one qnn operator.

    No pass but `qnn.transform.CanonicalizeOps` knows the operators, and none remains after it.

    Args:
        name: The operator.
        arguments: The names of its arguments, separated by spaces.
        relation: The type relation.
        reference: The computation on arrays.
        expand: The same in ordinary operators.
        attrs: The class of its attributes.
        result: The description of the result.
        quantizes: See OpDef; the columns `macs`, `weight_layouts` and `padding_absorption` are
            those of that operator.
    """
    # Passes treat a quantized operator as its float counterpart where these columns say so.
    real = OPS[quantizes] if quantizes else None
    register_op(
        OpDef(
            name=name,
            arguments=tuple(arguments.split()),
            attrs=attrs,
            relation=relation,
            reference=reference,
            result=result,
            quantizes=quantizes,
            expanded=True,
            macs=None if real is None else real.macs,
            weight_layouts={} if real is None else real.weight_layouts,
            padding_absorption=PaddingAbsorption.NO if real is None else real.padding_absorption,
        )
    )

    def legalize(
        call_attrs: Attrs | None, inputs: Sequence[RelayExpr], types: Sequence[Type]
    ) -> RelayExpr:
        """Expand the call into Relay operators, with the signature of TVM's FTVMLegalize."""
        return expand(call_attrs, inputs, types)

    register_legalize(name, legalize, QNN_CANONICALIZE_TABLE)


PARAMETER_DTYPES = {"float64": "float32", "int64": "int32"}
"""Conversion of NumPy's default dtypes in scales and zero points."""


def _to_qparam(arg: Expr, what: str) -> Expr:
    if not isinstance(arg, Constant) or not what.endswith(("scale", "zero_point")):
        return arg
    kind = PARAMETER_DTYPES.get(str(arg.data.dtype))
    if kind is None and arg.data.shape != (1,):
        return arg
    # TVM's frontends make scales with NumPy's default types.
    array = arg.data if kind is None else arg.data.astype(kind)
    return Constant(array.reshape(()) if array.shape == (1,) else array, span=arg.span)


def call_qnn_op(name: str, *args: Expr, attrs: Attrs | None = None) -> Call:
    """Build a call of a qnn operator.

    Scales and zero points that are constants of NumPy's default types are converted to those of the
    dialect, and vectors of one element to scalars.
    """
    named_args = zip(args, OPS[name].arguments, strict=False)
    return plain_call(name, *(_to_qparam(a, w) for a, w in named_args), attrs=attrs)


def integer_limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and the largest integer of a dtype."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def saturate(values: Array, dtype: str) -> Array:
    """Saturate integers to the range of a dtype."""
    return np.clip(values, *integer_limits(dtype)).astype(dtype)


def check_dtype(name: str, kind: TensorType, allowed: Sequence[str], what: str) -> str:
    """Check that an argument's dtype is one of `allowed`, and return it.

    Raises:
        TypeInferenceError: It is none of them.
    """
    if kind.dtype not in allowed:
        expected = ", ".join(allowed)
        raise_type_error(name, f"{what!r} must be one of {expected}, got {kind.dtype}")
    return kind.dtype


def check_qparam(name: str, kind: TensorType, what: str, dim: PrimExpr | None = None) -> None:
    """Check a scale or zero point: a scalar, or a vector of `dim` elements if given."""
    dtype = "float32" if what.endswith("scale") else "int32"
    if kind.dtype != dtype:
        raise_type_error(name, f"{what!r} must be {dtype}, got {kind.dtype}")
    if not kind.shape:
        return
    if dim is None:
        check_rank(name, kind, 0, what)
    check_rank(name, kind, 1, what)
    assert dim is not None
    unify_dims(name, kind.shape[0], dim, f"elements of {what!r} and of its axis")


def check_axis_extent(
    name: str, kind: TensorType, axis: int, parameters: Sequence[TensorType]
) -> PrimExpr:
    """Return the extent of the axis of per-axis parameters; 1 for scalars, as in TVM."""
    rank = max(len(kind.shape), 1)
    if any(p.shape for p in parameters) and not -rank <= axis < rank:
        raise_type_error(name, f"axis {axis} is out of range for {len(kind.shape)} dimensions")
    # Scalars need no axis: one that is out of range only matters beside vectors.
    from_end = axis % rank if -rank <= axis < rank else 0
    return kind.shape[from_end] if kind.shape else as_dim(1)


def unify_axis_extent(
    name: str, kind: TensorType, axis: int, parameters: Sequence[TensorType]
) -> TensorType:
    """Unify the data's extent along `axis` with the length of parameter vectors, and return the
    data's type.
    """
    vectors = [p.shape[0] for p in parameters if p.shape]
    if not vectors or not kind.shape:
        return kind
    axis_index = axis % len(kind.shape)
    extent = unify_dims(name, kind.shape[axis_index], vectors[0], "extents")
    return TensorType(replace_dim(kind.shape, axis_index, extent), kind.dtype)


def as_tensor_type(kind: Type) -> TensorType:
    """Return a type as the tensor type it is known to be."""
    assert isinstance(kind, TensorType), kind
    return kind


def check_tensor_fields(name: str, kind: Type, what: str) -> tuple[TensorType, ...]:
    """Return the tensor types of a tuple type."""
    if not isinstance(kind, TupleType):
        raise_type_error(name, f"{what!r} must be a tuple of tensors")
    return check_tensors(name, kind.fields)


def broadcast_qparam(parameter: Expr, kind: Type, rank: int, axis: int) -> Expr:
    """Reshape a scale or zero point to broadcast over a tensor of `rank` dimensions."""
    if not as_tensor_type(kind).shape or rank == 1:
        return parameter
    # Trailing ones put the vector at its axis; leading axes broadcast by themselves.
    return reshape(parameter, (-1, *(1,) * (rank - 1 - axis % rank)) if rank else ())


def broadcast_qparam_array(parameter: Array, rank: int, axis: int) -> Array:
    """Reshape an array to broadcast over a tensor, as `broadcast_qparam`."""
    if not parameter.ndim or not rank:
        return parameter.reshape(())
    return parameter.reshape(-1, *(1,) * (rank - 1 - axis % rank))


def constant_qparam(parameter: Expr) -> Array | None:
    """Return the value of a constant parameter, or None."""
    return parameter.data if isinstance(parameter, Constant) else None


def is_qparam_equal_to(parameter: Expr, number: int) -> bool:
    """Return whether a parameter is a constant equal to a number."""
    data = constant_qparam(parameter)
    return data is not None and bool(np.all(data == number))


def is_same_scalar(a: Expr, b: Expr) -> bool:
    """Return whether two parameters are provably the same scalar."""
    first, second = constant_qparam(a), constant_qparam(b)
    if first is None or second is None or first.size != 1 or second.size != 1:
        return False
    return bool(first.reshape(()) == second.reshape(()))
