"""Sample calls of every operator: what the generated tests run.

A case is a constructor call on given arrays. `expected` is an independent NumPy expression where
the operator's reference is more than one NumPy function. `symbolic` says whether its dimensions may
be replaced by symbols, or which extents.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

import ekiden.relay.op as op
from ekiden.ir.op import Array
from ekiden.ir.prim import IntImm
from ekiden.relay.expr import Call, Tuple, Var, const, var

RNG = np.random.default_rng(7)
FLOATS = ("float32", "float64")
INTS = ("int8", "uint8", "int32", "int64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (1,), (7,), (3, 0, 2), (2, 1, 5), (3, 33))


@dataclass(frozen=True, slots=True)
class Case:
    """One call: the operator's name, the expression, its parameters and their values."""

    name: str
    call: Call
    params: tuple[Var, ...]
    inputs: tuple[Array, ...]
    expected: Callable[..., object] | None
    symbolic: bool | tuple[int, ...]
    tolerance: float

    @property
    def label(self) -> str:
        """A readable test id."""
        shapes = ",".join("x".join(map(str, a.shape)) or "scalar" for a in self.inputs)
        dtypes = ",".join(sorted({str(a.dtype) for a in self.inputs}))
        return f"{self.name}-{shapes}-{dtypes}"


def case(
    build: Callable[..., Call],
    *inputs: Array,
    expected: Callable[..., object] | None = None,
    symbolic: bool | tuple[int, ...] = True,
    tolerance: float = 2e-6,
) -> Case:
    """A case whose call is `build` of one variable per array."""
    params = tuple(var(f"x{n}", shape=a.shape, dtype=str(a.dtype)) for n, a in enumerate(inputs))
    call = build(*params)
    return Case(call.op.name, call, params, inputs, expected, symbolic, tolerance)  # type: ignore[attr-defined]


def normal(*shape: int, dtype: str = "float32") -> Array:
    """Random values: floats around 0, integers small, bools."""
    values = RNG.normal(size=shape) * (1 if dtype.startswith("float") else 20)
    if dtype == "bool":
        return np.asarray(values > 0)
    return np.asarray(np.abs(values) if dtype.startswith("uint") else values).astype(dtype)


def positive(*shape: int, dtype: str = "float32") -> Array:
    """Random values above 0."""
    return np.asarray(np.abs(RNG.normal(size=shape)) + 0.1).astype(dtype)


def integers(low: int, high: int, *shape: int, dtype: str = "int64") -> Array:
    """Random integers in [low, high)."""
    return RNG.integers(low, high, size=shape).astype(dtype)


def elementwise() -> Iterator[Case]:
    """Unary operators over shapes, and dtypes where they take all."""
    fast = (op.fast_exp, op.fast_tanh, op.fast_erf)
    floating = (op.exp, op.tanh, op.erf, op.sigmoid, op.sin, op.cos, *fast)
    above_zero = (op.log, op.sqrt, op.rsqrt)
    any_dtype = (op.abs, op.negative, op.sign, op.floor, op.ceil, op.round, op.copy, op.nn.relu)
    for shape in SHAPES:
        yield from (case(f, normal(*shape)) for f in floating)
        yield from (case(f, positive(*shape)) for f in above_zero)
        yield from (case(f, normal(*shape)) for f in (*any_dtype, op.zeros_like, op.ones_like))
        yield case(
            lambda x: op.nn.leaky_relu(x, 0.1),
            normal(*shape),
            expected=lambda x: np.where(x > 0, x, x * 0.1),
        )
        yield case(lambda x: op.clip(x, -0.5, 0.5), normal(*shape))
    for dtype in (*INTS, "float64", "bool"):
        whole = any_dtype if dtype != "bool" else (op.copy,)
        yield from (case(f, normal(3, 5, dtype=dtype)) for f in whole)
        yield case(op.logical_not, normal(3, 5, dtype=dtype))
        for target in (*INTS, *FLOATS, "bool"):
            yield case(lambda x, t=target: op.cast(x, t), _small(dtype, target))
    yield case(lambda x: op.reinterpret(x, "int32"), normal(3, 4))
    for f in (*floating, *above_zero):
        yield case(f, positive(9, dtype="float64"))
    yield case(lambda x: op.clip(x, -3, 200), normal(20, dtype="int8"))
    beyond = [("int8", 200, 300, 127), ("int8", -300, -200, -128), ("uint8", -5, -1, 0)]
    for dtype, low, high, end in beyond:
        yield case(
            lambda x, low=low, high=high: op.clip(x, low, high),
            normal(20, dtype=dtype),
            expected=lambda x, end=end: np.full_like(x, end),
        )
    step, low, high = (np.array(value, "float32") for value in (0.25, -4.0, 3.0))
    yield case(op.annotation.simulated_quantize, normal(4, 5), step, low, high)
    yield case(
        lambda x: op.clip(x, 2, np.inf),
        normal(20, dtype="int64"),
        expected=lambda x: np.maximum(x, 2),
    )
    special = np.array([0.0, np.nan, np.inf, -np.inf, 1.5], "float32")
    yield from (case(f, special) for f in (op.isnan, op.isinf))
    yield from (case(f, normal(3, 5)) for f in (op.isnan, op.isinf, op.logical_not))


def _small(dtype: str, target: str) -> Array:
    """Values that both dtypes hold after truncation."""
    values = normal(4, 6, dtype=dtype)
    return np.abs(values) if target.startswith("uint") and dtype != "bool" else values


def broadcasting() -> Iterator[Case]:
    """Binary operators over pairs of shapes that broadcast, and over dtypes."""
    arithmetic = (
        op.add,
        op.subtract,
        op.multiply,
        op.divide,
        op.maximum,
        op.minimum,
        op.floor_divide,
        op.floor_mod,
        op.mod,
    )
    comparisons = (op.equal, op.not_equal, op.less, op.less_equal, op.greater, op.greater_equal)
    logic = (op.logical_and, op.logical_or, op.logical_xor)
    pairs = (
        ((), ()),
        ((), (3, 4)),
        ((5,), (3, 5)),
        ((3, 1), (1, 4)),
        ((2, 1, 3), (4, 1)),
        ((0,), (1,)),
        ((2, 0), (1, 0)),
    )
    for a, b in pairs:
        yield from (case(f, normal(*a), positive(*b)) for f in (*arithmetic, *comparisons, *logic))
        yield case(op.power, positive(*a), normal(*b), tolerance=2e-5)
    for exponent in (-1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 2.5):
        yield case(lambda x, e=exponent: op.power(x, const(e)), positive(3, 17), tolerance=2e-5)
    for divisor in (-1, 0, 3):
        functions = (op.divide, op.floor_divide, op.floor_mod, op.mod)
        yield from (
            case(lambda x, f=f, d=divisor: f(x, const(d, "int32")), normal(4, 5, dtype="int32"))
            for f in functions
        )
    for dtype in INTS:
        lhs, rhs = normal(5, 7, dtype=dtype), integers(0, 3, 7, dtype=dtype)
        yield from (case(f, lhs, rhs) for f in (*arithmetic, *comparisons, *logic))
        yield from (case(f, lhs, rhs) for f in (op.bitwise_and, op.bitwise_or, op.bitwise_xor))
        yield case(op.power, integers(0, 4, 5, 7, dtype=dtype), rhs)
    # exact beyond 2**53; of negative exponents the quotient without its fraction
    bases, exponents = (
        np.array([3, -3, 7, 1, -1, -1, 2, 0, -2]),
        np.array([39, 5, 64, -2, -3, -4, -1, -1, 63]),
    )
    powers = [3**39, -(3**5), 7**64 % 2**64, 1, -1, 1, 0, 0, -(2**63)]
    yield case(op.power, bases, exponents, expected=lambda a, b: np.array(powers, "int64"))
    signed = integers(-3, 4, 7, dtype="int32")
    yield from (
        case(f, normal(5, 7, dtype="int32"), signed)
        for f in (op.divide, op.floor_divide, op.floor_mod, op.mod)
    )
    flags = normal(4, 6, dtype="bool"), normal(6, dtype="bool")
    on_bools = (
        op.add,
        op.multiply,
        op.maximum,
        op.minimum,
        *comparisons,
        *logic,
        op.bitwise_and,
        op.bitwise_xor,
    )
    yield from (case(f, *flags) for f in on_bools)
    for condition in ((4, 1), (), (3, 4, 5)):
        yield case(op.where, normal(*condition, dtype="bool"), normal(3, 4, 5), normal(5))
    yield case(
        op.where, normal(3, dtype="int32"), normal(3, dtype="int64"), normal(1, dtype="int64")
    )


def reductions() -> Iterator[Case]:
    """Reductions over axes, keeping them or not."""
    functions = (op.sum, op.mean, op.max, op.min, op.prod)
    searches = (op.argmax, op.argmin)
    for axis, keep in ((None, False), (0, True), (-1, False), ((0, 2), False), ((1, -1), True)):
        for f in functions:
            yield case(lambda x, f=f, a=axis, k=keep: f(x, a, k), normal(3, 4, 17), tolerance=1e-5)
        for f in (op.all, op.any):
            yield case(
                lambda x, f=f, a=axis, k=keep: f(x, a, k), np.asarray(normal(3, 4, 17) > -1.5)
            )
        for f in searches:
            yield case(
                lambda x, f=f, a=axis, k=keep: f(x, a, k), integers(0, 5, 3, 4, 17, dtype="float32")
            )
            yield case(
                lambda x, f=f, a=axis, k=keep: f(x, a, k, select_last_index=True),
                integers(0, 5, 3, 4, 17, dtype="int32"),
            )
    for dtype in (*INTS, "float64"):
        yield from (
            case(lambda x, f=f: f(x, 1), normal(4, 9, dtype=dtype))
            for f in (op.sum, op.max, op.min, op.mean)
        )
    yield case(
        lambda x: op.sum(x, 1, exclude=True),
        normal(3, 4, 5),
        expected=lambda x: x.sum((0, 2)),
        tolerance=1e-5,
    )
    yield from (case(lambda x, f=f: f(x, 0), normal(0, 3)) for f in (op.sum, op.prod))
    yield from (case(lambda x, f=f: f(x, 1), normal(0, 3)) for f in (op.sum, op.max, op.argmax))
    yield from (case(lambda x, f=f: f(x), normal()) for f in (op.sum, op.mean, op.max))
    yield case(lambda x: op.argmax(x, 0), np.array([1, np.nan, 3, np.nan], "float32"))


def shapes() -> Iterator[Case]:
    """Operators that change only the shape."""
    x = normal(2, 3, 4)
    for newshape in ((6, 4), (-1,), (0, -1), (2, 1, -1, 2), (0, 0, 2, -1), (-1, 24)):
        yield case(lambda v, s=newshape: op.reshape(v, s), x)
    for newshape, shape in (
        ((-1, -2), (2, 3, 4)), ((-2,), (2, 3, 4)), ((-2, 1, 1), (2, 3, 4, 1, 1)),
        ((-3, -2), (6, 4)), ((0, -3), (2, 12)), ((-3, -1), (6, 4)),
        ((-4, 1, 2, -2), (1, 2, 3, 4)), ((2, -4, -1, 3, -2), (2, 1, 3, 4)),
        ((-4, -1, 2, -3), (1, 2, 12)), ((0, 0, -4, 2, -1), (2, 3, 2, 2)),
    ):  # fmt: skip
        yield case(
            lambda v, s=newshape: op.reshape(v, s), x, expected=lambda v, s=shape: v.reshape(s)
        )
    yield case(
        lambda v: op.reshape(v, (3, 0), allowzero=True),
        normal(0, 3),
        expected=lambda v: v.reshape(3, 0),
    )
    yield case(lambda v: op.reshape(v, ()), normal(1, 1), expected=lambda v: v.reshape(()))
    yield from (
        case(lambda v, a=a, n=n: op.expand_dims(v, a, n), x) for a, n in ((0, 1), (-1, 2), (2, 1))
    )
    yield case(lambda v: op.expand_dims(v, 0), normal(), expected=lambda v: v[None])
    yield from (case(lambda v, a=a: op.squeeze(v, a), normal(1, 3, 1, 2)) for a in (0, -2, (0, 2)))
    yield case(lambda v: op.squeeze(v), normal(1, 3, 1, 2), symbolic=False)
    yield from (case(op.nn.batch_flatten, normal(*s)) for s in ((2, 3, 4), (5,), (0, 3)))


def movement() -> Iterator[Case]:
    """Operators that move elements."""
    x = normal(3, 4, 5)
    yield from (case(lambda v, a=a: op.transpose(v, a), x) for a in (None, (1, 0, 2), (-1, 0, 1)))
    yield case(op.transpose, normal())
    for axis in (0, 1, -1):
        parts = [
            normal(*(n if i == axis % 3 else d for i, d in enumerate((2, 3, 4)))) for n in (1, 0, 5)
        ]
        yield case(lambda *v, a=axis: op.concatenate(v, a), *parts)
    yield case(lambda *v: op.concatenate(v, 0), integers(0, 9, 3), expected=lambda v: v)
    yield from (
        case(lambda *v, a=a: op.stack(v, a), normal(2, 3), normal(2, 3), normal(2, 3))
        for a in (0, 1, -1)
    )
    yield case(lambda *v: op.stack(v), normal(), normal(), expected=lambda a, b: np.array([a, b]))
    yield case(lambda v: op.split(v, 2, 1), x, expected=lambda v: np.split(v, 2, 1))
    yield case(
        lambda v: op.split(v, (1, 1, 4), -1), x, expected=lambda v: np.split(v, (1, 1, 4), 2)
    )
    yield from slices()
    yield from (
        case(lambda v, s=s: op.broadcast_to(v, s), normal(3, 1))
        for s in ((3, 4), (2, 3, 1), (2, 3, 5))
    )
    yield case(lambda v: op.broadcast_to(v, (2, 0)), normal(1), expected=lambda v: np.zeros((2, 0)))
    yield from (
        case(lambda v, r=r: op.tile(v, r), normal(2, 3)) for r in ((2,), (2, 1), (3, 1, 2), (0, 2))
    )
    yield from (case(lambda v, a=a: op.repeat(v, 3, a), normal(2, 3)) for a in (0, -1))
    yield from (case(lambda v, a=a: op.reverse(v, a), x) for a in (0, -1, (0, 2)))
    image = normal(2, 8, 3, 4)
    yield case(
        lambda v: op.layout_transform(v, "NCHW", "NHWC"),
        image,
        expected=lambda v: v.transpose(0, 2, 3, 1),
    )
    blocked = image.reshape(2, 2, 4, 3, 4).transpose(0, 1, 3, 4, 2)
    to_blocked = lambda v: v.reshape(2, 2, 4, 3, 4).transpose(0, 1, 3, 4, 2)  # noqa: E731
    yield case(
        lambda v: op.layout_transform(v, "NCHW", "NCHW4c"),
        image,
        expected=to_blocked,
        symbolic=False,
    )
    yield case(
        lambda v: op.layout_transform(v, "NCHW4c", "NCHW"),
        blocked,
        expected=lambda v: image,
        symbolic=False,
    )
    yield from (case(lambda v, a=a: op.cumsum(v, a), x, tolerance=1e-5) for a in (0, 1, -1, None))
    before = lambda v: np.cumsum(v, 1) - v  # noqa: E731
    yield case(
        lambda v: op.cumsum(v, 1, exclusive=True), normal(3, 4, dtype="int32"), expected=before
    )
    yield case(
        lambda v: op.cumsum(v, 0, "int64"),
        integers(0, 2, 6, dtype="int32"),
        expected=lambda v: np.cumsum(v),
    )


def slices() -> Iterator[Case]:
    """Slices against Python's own."""
    huge = 2**63 - 1
    for begin, end, step in (
        (1, 3, 1), (0, huge, 1), (-2, huge, 1), (0, -1, 1), (-3, -1, 1), (0, huge, 2), (1, 10, 3),
        (3, 1, 1), (9, 12, 1),
        (-1, -huge, -1), (huge, -huge, -2), (3, 0, -1), (-1, -3, -1), (0, 3, -1), (-20, 20, 1),
    ):  # fmt: skip
        yield case(
            lambda v, b=begin, e=end, s=step: op.strided_slice(v, (b,), (e,), (s,), axes=(1,)),
            normal(2, 7, 3),
            expected=lambda v, b=begin, e=end, s=step: v[:, b:e:s],
        )
    yield case(
        lambda v: op.strided_slice(v, (1, 0), (3, 2)), normal(4, 5), expected=lambda v: v[1:3, 0:2]
    )
    yield case(
        lambda v: op.strided_slice(v, (1, 2), (-1, 3), slice_mode="size"),
        normal(4, 6),
        expected=lambda v: v[1:, 2:5],
    )
    yield case(lambda v: op.strided_slice(v, (0,), (3,)), normal(0, 2), expected=lambda v: v)
    # lists that are shorter than the others: from the start, to the end, by 1
    for begin, end, step, cut in (
        ((1, 1, 0), (4, 4, 3), (2, 1), np.s_[1:4:2, 1:4]),
        ((1, 1, 0), (4, 4), None, np.s_[1:4, 1:4]),
        ((1,), (4, 4, 2), None, np.s_[1:4, :4, :2]),
        ((0,), (3,), (1, -1, 2), np.s_[:, ::-1, ::2]),
        ((2, 3), (0,), (-1, -2), np.s_[2:0:-1, 3::-2]),
    ):
        yield case(
            lambda v, b=begin, e=end, s=step: op.strided_slice(v, b, e, s),
            normal(3, 4, 3),
            expected=lambda v, c=cut: v[c],
        )
    for begin, end, cut in (
        ((1, 1), (1,), np.s_[1:2, 1:]),
        ((-2,), (2, 3), np.s_[1:3, :3]),
        ((-9, 2), (2, -1), np.s_[:2, 2:]),
    ):
        yield case(
            lambda v, b=begin, e=end: op.strided_slice(v, b, e, (2, 2), slice_mode="size"),
            normal(3, 4, 3),
            expected=lambda v, c=cut: v[c],
        )
    yield case(
        lambda v: op.vm.prefix(v, (IntImm(3), IntImm(0))),
        normal(4, 5),
        expected=lambda v: v[:3, :0],
    )
    yield case(
        lambda v: op.vm.prefix(v, (IntImm(3), IntImm(5))), normal(4, 5), expected=lambda v: v[:3]
    )
    # in a larger tensor, its kernel leaves the rest as it is: tests of ConcatenateInPlace
    yield case(lambda v: op.vm.part(v, (IntImm(4), IntImm(5))), normal(4, 5), expected=lambda v: v)


def indexing() -> Iterator[Case]:
    """Operators whose indices are data."""
    x = normal(4, 5, 6)
    for dtype in ("int32", "int64"):
        yield from (
            case(lambda v, i, a=a: op.take(v, i, a), x, integers(0, 4, 2, 3, dtype=dtype))
            for a in (0, 1, -1)
        )
    yield case(lambda v, i: op.take(v, i, 1, mode="wrap"), x, integers(-5, 5, 7))
    yield case(
        lambda v, i: op.take(v, i, 1),
        x,
        integers(-9, 19, 7),
        expected=lambda v, i: v[:, np.clip(i, 0, 4)],
    )
    yield case(lambda v, i: op.take(v, i, 0), normal(4, 3), integers(0, 4))
    yield case(lambda v, i: op.take(v, i), x, integers(0, 120, 3, 2))
    yield case(lambda v, i: op.take(v, i, 0), x, integers(0, 4, 0))
    for axis, shape in ((0, (2, 5, 6)), (1, (4, 3, 6)), (-1, (4, 5, 9))):
        yield case(
            lambda v, i, a=axis: op.gather(v, a, i), x, integers(-4, 4, *shape),
            expected=lambda v, i, a=axis: np.take_along_axis(v, i, a),
        )  # fmt: skip
    yield case(
        op.gather_nd, x, integers(-4, 4, 2, 7), expected=lambda v, i: v[i[0], i[1]], symbolic=False
    )
    yield case(
        op.gather_nd,
        x,
        integers(0, 4, 3, 2, 2),
        expected=lambda v, i: v[i[0], i[1], i[2]],
        symbolic=False,
    )
    rows = lambda v, i: np.stack([v[b, i[0, b]] for b in range(4)])  # noqa: E731
    yield case(
        lambda v, i: op.gather_nd(v, i, batch_dims=1),
        x,
        integers(0, 5, 1, 4),
        expected=rows,
        symbolic=False,
    )
    values = np.array(2.5, "float32"), np.array(-1, "float32")
    hot = lambda i, on, off: np.where(i[..., None] == np.arange(4), on, off)  # noqa: E731
    yield case(
        lambda i, on, off: op.one_hot(i, on, off, 4), integers(0, 5, 3, 2), *values, expected=hot
    )
    first = lambda i, on, off: np.moveaxis(hot(i, on, off), -1, 0)  # noqa: E731
    yield case(
        lambda i, on, off: op.one_hot(i, on, off, 4, axis=0),
        integers(0, 4, 3),
        *values,
        expected=first,
    )


def creation() -> Iterator[Case]:
    """Operators that make tensors out of numbers and shapes."""
    yield from (case(lambda v, s=s: op.full(v, s), normal()) for s in ((), (3, 4), (0,)))
    yield case(
        lambda v: op.full(v, (2,), "int64"),
        np.array(3.7, "float32"),
        expected=lambda v: np.array([3, 3]),
    )
    for dtype in ("float32", "int64", "bool"):
        yield from (case(lambda f=f, d=dtype: f((2, 3), d)) for f in (op.zeros, op.ones))
    for bounds in ((5,), (2, 9, 3), (0, 1, 0.25), (5, 0, -2), (3, 3)):
        yield case(lambda b=bounds: op.arange(*b), expected=lambda b=bounds: np.arange(*b))
        yield case(lambda b=bounds: op.arange(*b, dtype="int64"), symbolic=False)
    for shape in ((), (3, 0, 2), (4, 5)):
        yield case(op.shape_of, normal(*shape), expected=lambda v: np.array(v.shape, np.int64))
        yield case(
            lambda v: op.ndarray_size(v, "int32"),
            normal(*shape),
            expected=lambda v: np.array(v.size),
        )


def all_of(groups: Sequence[Callable[[], Iterator[Case]]]) -> list[Case]:
    """The cases of several groups."""
    return [item for group in groups for item in group()]


CASES = all_of((elementwise, broadcasting, reductions, shapes, movement, indexing, creation))


def is_variadic(case: Case) -> bool:
    """Whether the call's one argument is a tuple."""
    return len(case.call.args) == 1 and isinstance(case.call.args[0], Tuple)
