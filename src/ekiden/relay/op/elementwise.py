"""Elementwise unary operators: arithmetic functions, casts, clip.

y[i] = f(x[i]), of any shape. References of what rounds compute in float64 and round once, so that
they are the better of two that are compared; kernels are within a few units in the last place (the
fast forms: as their meanings say). `round` goes to the even one of two, as IEEE 754 and ONNX have
it, not away from zero as C's round().
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import SCALAR_BITS, to_numpy
from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.node import node
from ekiden.ir.op import Array, LowestOf, OpDef, OpPattern, PrecisionPolicy, register_op
from ekiden.ir.type import TensorType, Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import (
    call_op,
    check_attrs,
    check_tensors,
    identity_relation,
    raise_type_error,
)
from ekiden.te import Tensor

Relation = Callable[[Sequence[Type], Attrs | None], Type]


def _float_relation(name: str) -> Relation:
    return identity_relation(name, takes="floating point")


def _number_relation(name: str) -> Relation:
    return identity_relation(name, takes="number")


def _integer_relation(name: str) -> Relation:
    return identity_relation(name, takes="bits")


def _bool_relation(name: str) -> Relation:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        (data,) = check_tensors(name, types, 1)
        return TensorType(data.shape, "bool")

    return relation


def _in_data_dtype(function: Callable[..., Array]) -> Callable[..., Array]:
    """Wrap a NumPy function so that its result has the data's dtype."""

    def reference(attrs: Attrs | None, data: Array) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(function(data)).astype(data.dtype, copy=False)

    return reference


def _as_bool(function: Callable[..., Array]) -> Callable[..., Array]:
    return lambda attrs, data: np.asarray(function(data), dtype=bool)


_DESCRIPTIONS = {
    "exp": "e to the power",
    "log": "The natural logarithm",
    "sqrt": "The square root",
    "rsqrt": "1 over the square root",
    "tanh": "The hyperbolic tangent",
    "fast_exp": "e to the power, to a relative error of 4e-5,",
    "fast_tanh": "The hyperbolic tangent, as a quotient of polynomials,",
    "fast_erf": "The error function, as a quotient of polynomials,",
    "erf": "The error function",
    "sigmoid": "1 / (1 + exp(-x))",
    "sin": "The sine",
    "cos": "The cosine",
    "abs": "The absolute value",
    "negative": "The negative",
    "sign": "-1, 0 or 1, the sign",
    "floor": "The largest whole number not above",
    "ceil": "The smallest whole number not below",
    "round": "The nearest whole number, the even one of two,",
    "copy": "A copy",
    "logical_not": "Whether the element is 0 or False,",
    "isnan": "Whether the element is not a number,",
    "isinf": "Whether the element is infinite,",
}
"""Descriptions of the operators, which "of each element" follows."""


def declare_unary(
    name: str,
    function: Callable[..., Array],
    compute: Callable[[Tensor], Tensor],
    relation: Callable[[str], Relation] = identity_relation,
    result: Callable[[Callable[..., Array]], Callable[..., Array]] = _in_data_dtype,
    mixed: PrecisionPolicy = PrecisionPolicy.UNKNOWN,
    fast: str = "",
    lowest: LowestOf | None = None,
) -> Callable[[Expr], Call]:
    """Declare an elementwise unary operator, and return the function that calls it. Roots, powers
    and transcendental functions accept floats only.
    """
    register_op(
        OpDef(
            name=name,
            arguments=("data",),
            precision=mixed,
            relation=relation(name),
            reference=result(function),
            lower=lambda attrs, inputs, out: [compute(inputs[0])],
            pattern=OpPattern.ELEMWISE,
            is_expensive=relation is _float_relation,
            fast=fast,
            lowest=lowest,
            result="data's shape, bool" if relation is _bool_relation else "the type of data",
        )
    )

    def build_call(data: Expr) -> Call:
        """Return a call of the operator."""
        return call_op(name, data)

    build_call.__name__ = build_call.__qualname__ = name
    build_call.__doc__ = f"{_DESCRIPTIONS.get(name, f'`{name}`')} of each element."
    return build_call


def _sigmoid_reference(x: Array) -> Array:
    """Return sigmoid as (tanh(x / 2) + 1) / 2, since exp(-x) overflows for x below -709."""
    return np.asarray(0.5 * (np.tanh(0.5 * x.astype(np.float64)) + 1))


def _rsqrt_reference(x: Array) -> Array:
    return np.asarray(1 / np.sqrt(x.astype(np.float64)))


def _erf_reference(x: Array) -> Array:
    return np.asarray(INTRINSICS["erf"].reference(x.astype(np.float64)))


FOLLOW, NEVER = PrecisionPolicy.FOLLOW, PrecisionPolicy.NEVER


def _zero_bound(attrs: Attrs | None) -> float:
    """Return 0, the lower bound of non-negative operators' results."""
    return 0.0


# fmt: off
exp         = declare_unary("exp",         np.exp,       topi.exp, _float_relation, mixed=NEVER,
                            fast="fast_exp", lowest=_zero_bound)
log         = declare_unary("log",         np.log,       topi.log, _float_relation, mixed=NEVER)
sqrt        = declare_unary("sqrt",        np.sqrt,      topi.sqrt, _float_relation, mixed=FOLLOW)
rsqrt    = declare_unary("rsqrt",    _rsqrt_reference,    topi.rsqrt, _float_relation, mixed=FOLLOW)
tanh        = declare_unary("tanh",        np.tanh,      topi.tanh, _float_relation, mixed=FOLLOW,
                            fast="fast_tanh")
fast_exp    = declare_unary("fast_exp",    np.exp,       topi.fast_exp, _float_relation)
fast_tanh   = declare_unary("fast_tanh",   np.tanh,      topi.fast_tanh, _float_relation)
fast_erf    = declare_unary("fast_erf",    _erf_reference,         topi.fast_erf, _float_relation)
tan         = declare_unary("tan",         np.tan,       topi.tan, _float_relation)
asin        = declare_unary("asin",        np.arcsin,    topi.asin, _float_relation)
acos        = declare_unary("acos",        np.arccos,    topi.acos, _float_relation)
atan        = declare_unary("atan",        np.arctan,    topi.atan, _float_relation)
sinh        = declare_unary("sinh",        np.sinh,      topi.sinh, _float_relation)
cosh        = declare_unary("cosh",        np.cosh,      topi.cosh, _float_relation)
asinh       = declare_unary("asinh",       np.arcsinh,   topi.asinh, _float_relation)
acosh       = declare_unary("acosh",       np.arccosh,   topi.acosh, _float_relation)
atanh       = declare_unary("atanh",       np.arctanh,   topi.atanh, _float_relation)
log2        = declare_unary("log2",        np.log2,      topi.log2, _float_relation)
log10       = declare_unary("log10",       np.log10,     topi.log10, _float_relation)
erf       = declare_unary("erf",       _erf_reference,       topi.erf, _float_relation, mixed=NEVER,
                          fast="fast_erf")
sigmoid  = declare_unary("sigmoid", _sigmoid_reference, topi.sigmoid, _float_relation, mixed=FOLLOW,
                         lowest=_zero_bound)
sin         = declare_unary("sin",         np.sin,       topi.sin, _float_relation)
cos         = declare_unary("cos",         np.cos,       topi.cos, _float_relation)
abs         = declare_unary("abs",         np.abs,       topi.abs, mixed=FOLLOW, lowest=_zero_bound)
negative   = declare_unary("negative",  np.negative,  topi.negative, _number_relation, mixed=FOLLOW)
sign        = declare_unary("sign",        np.sign,      topi.sign, _number_relation, mixed=FOLLOW)
floor       = declare_unary("floor",       np.floor,     topi.floor, mixed=FOLLOW)
ceil        = declare_unary("ceil",        np.ceil,      topi.ceil, mixed=FOLLOW)
round       = declare_unary("round",       np.round,     topi.round, mixed=FOLLOW)
trunc       = declare_unary("trunc",       np.trunc,     topi.trunc)
bitwise_not = declare_unary("bitwise_not", np.invert,    topi.bitwise_not, _integer_relation)
copy        = declare_unary("copy",        np.array,     topi.copy, mixed=FOLLOW)
logical_not = declare_unary("logical_not", np.logical_not, topi.logical_not, _bool_relation,
                            _as_bool)
isnan       = declare_unary("isnan",       np.isnan,     topi.isnan, _bool_relation, _as_bool)
isfinite    = declare_unary("isfinite",    np.isfinite,  topi.isfinite, _bool_relation, _as_bool)
isinf       = declare_unary("isinf",       np.isinf,     topi.isinf, _bool_relation, _as_bool)
# fmt: on


@node("relay.attrs.CastAttrs")
class CastAttrs(Attrs):
    """Attributes of cast: the target dtype."""

    dtype: str = "float32"


def _cast_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("cast", types, 1)
    return TensorType(data.shape, check_attrs(CastAttrs, attrs).dtype)


def _cast_reference(attrs: CastAttrs, data: Array) -> Array:
    """Convert as NumPy does. Values out of the target's range (NaN or 1e10 as int32) are undefined
    as in C, and may differ between kernels and interpreter.
    """
    # NaN and values out of range become integers in a way that the machine decides.
    with np.errstate(invalid="ignore"):
        return data.astype(to_numpy(attrs.dtype))


register_op(
    OpDef(
        name="cast",
        precision=PrecisionPolicy.NEVER,
        arguments=("data",),
        attrs=CastAttrs,
        relation=_cast_relation,
        reference=_cast_reference,
        lower=lambda attrs, inputs, out: [topi.cast(inputs[0], attrs.dtype)],
        pattern=OpPattern.ELEMWISE,
        result="data's shape, with `dtype`",
    )
)


def cast(data: Expr, dtype: str) -> Call:
    """Convert each element to `dtype`; floats truncate towards zero, non-zero values
    become True.
    """
    return call_op("cast", data, attrs=CastAttrs(dtype))


def _reinterpret_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    (data,) = check_tensors("reinterpret", types, 1)
    dtype = check_attrs(CastAttrs, attrs).dtype
    # The bits of one element are those of another: extents do not change.
    if SCALAR_BITS[data.dtype] != SCALAR_BITS[dtype]:
        raise_type_error("reinterpret", f"{data.dtype} and {dtype} have different sizes")
    return TensorType(data.shape, dtype)


register_op(
    OpDef(
        name="reinterpret",
        arguments=("data",),
        attrs=CastAttrs,
        relation=_reinterpret_relation,
        reference=lambda attrs, data: data.view(to_numpy(attrs.dtype)),
        lower=lambda attrs, inputs, out: [topi.reinterpret(inputs[0], attrs.dtype)],
        pattern=OpPattern.ELEMWISE,
        result="data's shape, with `dtype`",
    )
)


def reinterpret(data: Expr, dtype: str) -> Call:
    """Reinterpret the bits of each element as a `dtype` of the same size."""
    return call_op("reinterpret", data, attrs=CastAttrs(dtype))


@node("relay.attrs.ClipAttrs")
class ClipAttrs(Attrs):
    """Attributes of clip: the inclusive bounds."""

    a_min: float = -np.inf
    a_max: float = np.inf


def _clip_reference(attrs: ClipAttrs, data: Array) -> Array:
    """Clip by float bounds; for integer data they are first limited to the dtype's range, as inf
    has no integer value. NaN stays NaN; where a_min > a_max the result is a_max.
    """
    if data.dtype.kind == "b":
        # False is 0 and True is 1: bounds either force a value or leave it.
        return np.asarray((data | (attrs.a_min > 0)) & (attrs.a_max >= 1))
    if data.dtype.kind in "iu":
        info = np.iinfo(data.dtype)
        # inf has no integer, and a bound beyond the dtype would wrap around.
        low, high = (int(min(max(x, info.min), info.max)) for x in (attrs.a_min, attrs.a_max))
        return np.asarray(np.clip(data, low, high), dtype=data.dtype)
    return np.asarray(np.clip(data, attrs.a_min, attrs.a_max), dtype=data.dtype)


register_op(
    OpDef(
        name="clip",
        precision=PrecisionPolicy.FOLLOW,
        arguments=("a",),
        attrs=ClipAttrs,
        relation=identity_relation("clip"),
        reference=_clip_reference,
        lower=lambda attrs, inputs, out: [topi.clip(inputs[0], attrs.a_min, attrs.a_max)],
        pattern=OpPattern.ELEMWISE,
        lowest=lambda attrs: min(attrs.a_min, attrs.a_max),
        result="the type of data",
    )
)


def clip(a: Expr, a_min: float, a_max: float) -> Call:
    """Return max(min(x, a_max), a_min) elementwise, lower bound first.

    Bounds beyond the limits of an integer dtype become these limits.
    """
    return call_op("clip", a, attrs=ClipAttrs(float(a_min), float(a_max)))


__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atanh",
    "bitwise_not",
    "cast",
    "ceil",
    "clip",
    "copy",
    "cos",
    "cosh",
    "erf",
    "exp",
    "fast_erf",
    "fast_exp",
    "fast_tanh",
    "floor",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log2",
    "log10",
    "logical_not",
    "negative",
    "reinterpret",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]  # fmt: skip
