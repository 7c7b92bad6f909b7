"""Tensor creation operators: full, zeros, ones, arange, shape_of.

arange(start, stop, step) has ceil((stop - start) / step) elements, at least none, each start + i *
step and not a running sum, so that the last is as exact as the first. A shape of symbols is one of
attributes; one that is data makes a dyn. operator. `shape_of` reads no element, and is a constant
where the type knows the shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.node import node
from ekiden.ir.op import Array, MemoryAliasing, OpDef, OpPattern, PrecisionPolicy, register_op
from ekiden.ir.prim import FloatImm, IntImm, PrimExpr, maximum
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Constant, Expr
from ekiden.relay.expr import const as relay_const
from ekiden.relay.op._declare import (
    call_op,
    check_attrs,
    check_rank,
    check_tensors,
    identity_relation,
    raise_type_error,
)
from ekiden.relay.op.dynamic import DynamicAttrs, call_dynamic, constant_value
from ekiden.topi.create import arithmetic_sequence
from ekiden.topi.dimensions import (
    Dim,
    Dims,
    as_dim,
    as_ints,
    as_shape,
    ceil_div,
    simplify_dim,
    to_attr_dims,
)

Number = int | float | PrimExpr


@node("relay.attrs.InitOpAttrs")
class InitOpAttrs(Attrs):
    """Attributes of full, zeros and ones: shape and dtype; an empty dtype means the fill
    value's.
    """

    shape: Dims = ()
    dtype: str = "float32"


def _full_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (fill_value,) = check_tensors("full", types, 1)
    settings = check_attrs(InitOpAttrs, attrs)
    check_rank("full", fill_value, 0, "fill_value")
    return TensorType(as_shape(settings.shape), settings.dtype or fill_value.dtype)


def _full_reference(attrs: InitOpAttrs, fill_value: Array) -> Array:
    return np.full(as_ints(attrs.shape), fill_value, to_numpy(attrs.dtype or str(fill_value.dtype)))


register_op(
    OpDef(
        name="full",
        arguments=("fill_value",),
        attrs=InitOpAttrs,
        relation=_full_relation,
        reference=_full_reference,
        lower=lambda attrs, inputs, out: [topi.full(out.shape, out.dtype, inputs[0])],
        pattern=OpPattern.ELEMWISE,
        result="`shape`, with `dtype` or that of fill_value",
    )
)


def full(fill_value: Expr, shape: Sequence[Dim] | Dim | Expr = (), dtype: str = "") -> Call:
    """Return a tensor filled with a scalar."""
    if (known_shape := constant_value(shape)) is None:
        assert isinstance(shape, Expr)
        return call_dynamic("full", fill_value, shape, attrs=DynamicAttrs(dtype))
    return call_op("full", fill_value, attrs=InitOpAttrs(to_attr_dims(known_shape), dtype))


def _declare_fill(name: str, value: int) -> Callable[..., Call]:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer a tensor of the attributes' shape and dtype."""
        # The shape is an attribute: a call has no arguments.
        check_tensors(name, types, 0)
        settings = check_attrs(InitOpAttrs, attrs)
        return TensorType(as_shape(settings.shape), settings.dtype)

    def reference(attrs: InitOpAttrs) -> Array:
        return np.full(as_ints(attrs.shape), value, to_numpy(attrs.dtype))

    register_op(
        OpDef(
            name=name,
            arguments=(),
            attrs=InitOpAttrs,
            relation=relation,
            reference=reference,
            lower=lambda attrs, inputs, out: [topi.constant(value, out.shape, out.dtype, name)],
            pattern=OpPattern.ELEMWISE,
            fills=value,
            result="`shape`, with `dtype`",
        )
    )

    def build_call(shape: Sequence[Dim] | Dim | Expr, dtype: str) -> Call:
        """Return a call of the operator, a dynamic one if `shape` is a tensor."""
        if (known_shape := constant_value(shape)) is None:
            assert isinstance(shape, Expr)
            return call_dynamic(name, shape, attrs=DynamicAttrs(dtype))
        return call_op(name, attrs=InitOpAttrs(to_attr_dims(known_shape), dtype))

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = f"A tensor of {name}."
    return build_call


def _declare_fill_like(name: str, value: int) -> Callable[[Expr], Call]:
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            relation=identity_relation(name),
            reference=lambda attrs, data: np.full_like(data, value),
            lower=lambda attrs, inputs, out: [topi.constant(value, out.shape, out.dtype, name)],
            pattern=OpPattern.ELEMWISE,
            precision=PrecisionPolicy.FOLLOW,
            fills=value,
            result="the type of data",
        )
    )

    def build_call(data: Expr) -> Call:
        """Return a call of the operator."""
        return call_op(name, data)

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = f"A tensor of {name.partition('_')[0]} with the type of `data`."
    return build_call


CONSTANT_FILL_OPS = ("zeros", "ones", "zeros_like", "ones_like")
"""Operators that fill their result with one constant."""
zeros: Callable[..., Call] = _declare_fill("zeros", 0)
ones: Callable[..., Call] = _declare_fill("ones", 1)
zeros_like: Callable[[Expr], Call] = _declare_fill_like("zeros_like", 0)
ones_like: Callable[[Expr], Call] = _declare_fill_like("ones_like", 1)


@node("relay.attrs.ArangeAttrs")
class ArangeAttrs(Attrs):
    """Attributes of arange: start, stop and step as numbers or expressions over dimensions."""

    start: Number = 0
    stop: Number = 0
    step: Number = 1
    dtype: str = "float32"


def _as_number(value: Number) -> int | float | None:
    if isinstance(value, (IntImm, FloatImm)):
        return value.value
    return None if isinstance(value, PrimExpr) else value


def arange_extent(attrs: ArangeAttrs) -> PrimExpr:
    """Return the number of elements of a range.

    Raises:
        ValueError: The step is 0, or symbolic.
    """
    start, stop, step = _as_number(attrs.start), _as_number(attrs.stop), _as_number(attrs.step)
    if step is None or step == 0:
        raise ValueError(f"step must be a number other than 0, got {attrs.step!r}")
    if start is not None and stop is not None:
        return as_dim(max(0, math.ceil((stop - start) / step)))
    if not all(isinstance(v, (int, PrimExpr)) for v in (attrs.start, attrs.stop, step)):
        raise ValueError("symbolic bounds need an integer step")
    # Symbolic bounds are integers, so that the count is a ceiling division of expressions.
    distance = as_dim(attrs.stop) - attrs.start if step > 0 else as_dim(attrs.start) - attrs.stop
    # An empty range where the stop is before the start.
    return simplify_dim(maximum(ceil_div(simplify_dim(distance), int(abs(step))), 0))


def _arange_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    check_tensors("arange", types, 0)
    settings = check_attrs(ArangeAttrs, attrs)
    try:
        return TensorType((arange_extent(settings),), settings.dtype)
    except ValueError as error:
        raise_type_error("arange", str(error))


def _arange_reference(attrs: ArangeAttrs) -> Array:
    (count,) = as_ints((arange_extent(attrs),))
    start, step = _as_number(attrs.start) or 0, _as_number(attrs.step) or 0
    # Numbers are computed in a wide type and rounded once.
    exact = np.dtype("float64" if is_float(attrs.dtype) else "int64").type
    numbers: Array = exact(start) + np.arange(count).astype(exact) * exact(step)
    return numbers.astype(to_numpy(attrs.dtype))


register_op(
    OpDef(
        name="arange",
        precision=PrecisionPolicy.NEVER,
        arguments=(),
        attrs=ArangeAttrs,
        relation=_arange_relation,
        reference=_arange_reference,
        lower=lambda attrs, inputs, out: [
            arithmetic_sequence(attrs.start, attrs.step, out.shape[0], out.dtype)
        ],
        pattern=OpPattern.INJECTIVE,
        result="(max(0, ceil((stop - start) / step)),)",
    )
)


def _to_constant(value: Number, dtype: str) -> Expr:
    number = _as_number(value)
    if number is None:
        raise ValueError(f"arange: expected numbers beside expressions, got {value!r}")
    return relay_const(number, dtype)


def _scalar_value(value: Number | Expr) -> Number:
    if isinstance(value, Constant):
        number = value.data.item()
        assert isinstance(number, (int, float)), f"arange: expected a number, got {value.data!r}"
        return number
    assert not isinstance(value, Expr)
    return value.value if isinstance(value, IntImm) else value


def arange(
    start: Number | Expr,
    stop: Number | Expr | None = None,
    step: Number | Expr = 1,
    dtype: str = "float32",
) -> Call:
    """Return the range start, start + step, ... below `stop`; with one argument, from 0 to it.

    Bounds may be symbolic dimensions.
    """
    first, last = (0, start) if stop is None else (start, stop)
    bounds = [b for b in (first, last, step) if not isinstance(b, Constant)]
    if any(isinstance(b, Expr) for b in bounds):
        # Bounds travel in the widest type, as their own dtype may not hold them all.
        exact = "float64" if is_float(dtype) else "int64"
        args = (b if isinstance(b, Expr) else _to_constant(b, exact) for b in (first, last, step))
        return call_dynamic("arange", *args, attrs=DynamicAttrs(dtype))
    return call_op(
        "arange",
        attrs=ArangeAttrs(_scalar_value(first), _scalar_value(last), _scalar_value(step), dtype),
    )


@node("relay.attrs.ShapeOfAttrs")
class ShapeOfAttrs(Attrs):
    """Attributes of shape_of: the result's dtype."""

    dtype: str = "int64"


def _shape_of_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("shape_of", types, 1)
    return TensorType((as_dim(len(data.shape)),), check_attrs(ShapeOfAttrs, attrs).dtype)


register_op(
    OpDef(
        name="shape_of",
        shape_only=True,
        memory=MemoryAliasing.NO_ALIAS,
        arguments=("data",),
        attrs=ShapeOfAttrs,
        relation=_shape_of_relation,
        reference=lambda attrs, data: np.array(data.shape, to_numpy(attrs.dtype)),
        lower=lambda attrs, inputs, out: [topi.shape(inputs[0], attrs.dtype)],
        pattern=OpPattern.OPAQUE,
        result="(rank of data,), of `dtype`",
    )
)


def shape_of(data: Expr, dtype: str = "int32") -> Call:
    """Return the shape of `data` as a vector."""
    return call_op("shape_of", data, attrs=ShapeOfAttrs(dtype))


@node("relay.attrs.NdarraySizeAttrs")
class NdarraySizeAttrs(Attrs):
    """Attributes of ndarray_size: the result's dtype."""

    dtype: str = "int64"


def _ndarray_size_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    check_tensors("ndarray_size", types, 1)
    return TensorType((), check_attrs(NdarraySizeAttrs, attrs).dtype)


register_op(
    OpDef(
        name="ndarray_size",
        arguments=("data",),
        attrs=NdarraySizeAttrs,
        relation=_ndarray_size_relation,
        reference=lambda attrs, data: np.array(data.size, to_numpy(attrs.dtype)),
        lower=lambda attrs, inputs, out: [topi.ndarray_size(inputs[0], attrs.dtype)],
        pattern=OpPattern.OPAQUE,
        shape_only=True,
        result="a scalar of `dtype`",
    )
)


def ndarray_size(data: Expr, dtype: str = "int32") -> Call:
    """Return the number of elements of `data` as a scalar."""
    return call_op("ndarray_size", data, attrs=NdarraySizeAttrs(dtype))


def extents(sizes: Expr) -> Call:
    """Return an empty tensor of shape (0, *sizes), which carries sizes as dimensions."""
    nothing = relay_const(np.zeros(0, np.uint8))
    return call_dynamic("extents", nothing, sizes, attrs=DynamicAttrs())


__all__ = [
    "arange", "extents", "full", "ndarray_size", "ones", "ones_like", "shape_of", "zeros",
    "zeros_like",
]  # fmt: skip
