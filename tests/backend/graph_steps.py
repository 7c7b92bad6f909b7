"""Steps of random graphs: what each draws from the values that are there.

A row of STEPS takes the numbers and the values, and gives a step over some of them, or None where
none of them fits. What a step is refused for by the types is not drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ekiden.ir.dtype import is_float, to_numpy
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.type import TensorType
from ekiden.relay import If, const, op
from ekiden.relay.expr import Expr
from ekiden.relay.qnn import op as qnn
from ekiden.relay.transform.graph.call_rewrites import infer_new_types

T = TypeVar("T")
Make = Callable[..., Expr]


@dataclass(frozen=True)
class Step:
    """An expression over values by index. rounds: whether its floats are rounded."""

    make: Make
    args: tuple[int, ...]
    rounds: bool = True

    def typed(self, *args: Expr) -> Expr:
        """The expression with its type. Raises TypeInferenceError."""
        result = self.make(*args)
        if not isinstance(result, If):
            return infer_new_types(result)
        yes, no = infer_new_types(result.true_branch), infer_new_types(result.false_branch)
        whole = If(infer_new_types(result.cond), yes, no)
        whole.set_checked_type(yes.checked_type)
        return whole


@dataclass(frozen=True)
class Value:
    """An expression, the extents of its tensor that are numbers, and its dtype."""

    index: int
    expr: Expr
    shape: tuple[int | PrimExpr, ...]
    dtype: str

    @classmethod
    def of(cls, index: int, expr: Expr) -> Value:
        """The value of a typed expression."""
        kind = expr.checked_type
        assert isinstance(kind, TensorType)
        shape = tuple(d.value if isinstance(d, IntImm) else d for d in kind.shape)
        return cls(index, expr, shape, kind.dtype)

    @property
    def rank(self) -> int:
        """How many axes it has."""
        return len(self.shape)


class Pick:
    """Choices by random numbers."""

    def __init__(self, numbers: np.random.Generator) -> None:
        self.numbers = numbers

    def one(self, of: Sequence[T]) -> T:
        """One of several."""
        return of[int(self.numbers.integers(len(of)))]

    def often(self, share: float) -> bool:
        """True in a share of the cases."""
        return bool(self.numbers.random() < share)

    def between(self, low: int, high: int) -> int:
        """low, ..., high - 1."""
        return int(self.numbers.integers(low, high))

    def value(self, pool: Sequence[Value], fits: Callable[[Value], bool]) -> Value | None:
        """One of those that fit, later ones more often."""
        result = [v for v in pool if fits(v)]
        if not result:
            return None
        return result[max(self.between(0, len(result)), self.between(0, len(result)))]

    def weight(self, shape: Sequence[int], dtype: str) -> Expr:
        """A constant; floats of both signs, small integers."""
        data = self.numbers.normal(size=shape)
        return const((data if is_float(dtype) else np.round(data * 3)).astype(to_numpy(dtype)))


Draw = Callable[[Pick, Sequence[Value]], Step | None]


def _floats(v: Value) -> bool:
    return is_float(v.dtype)


def _numbers(v: Value) -> bool:
    return v.dtype != "bool"


def _any(v: Value) -> bool:
    return True


def _has_axes(v: Value) -> bool:
    return v.rank > 0


def _static(v: Value) -> bool:
    return all(isinstance(d, int) for d in v.shape)


def _of_one(fits: Callable[[Value], bool], make: Callable[[Pick, Value], Make | None],
            rounds: bool = True) -> Draw:  # fmt: skip
    """A step over one value that fits, made by what `make` draws for it."""

    def draw(pick: Pick, pool: Sequence[Value]) -> Step | None:
        """The step, or None."""
        x = pick.value(pool, fits)
        result = None if x is None else make(pick, x)
        return None if x is None or result is None else Step(result, (x.index,), rounds)

    return draw


UNARY: tuple[Make, ...] = (
    op.exp, op.log, op.sqrt, op.tanh, op.sigmoid, op.erf, op.rsqrt, op.sin, op.cos, op.nn.relu,
    op.log2, op.atan, op.floor, op.ceil, op.round, op.trunc, op.sign, op.abs, op.negative,
)  # fmt: skip
OF_INTEGERS: tuple[Make, ...] = (op.abs, op.negative, op.sign)
ORDERS: tuple[Make, ...] = (op.less, op.less_equal, op.equal, op.not_equal, op.greater)


def _unary(pick: Pick, x: Value) -> Make | None:
    if _floats(x):
        return pick.one(UNARY)
    return op.logical_not if x.dtype == "bool" else pick.one(OF_INTEGERS)


def _binary(pick: Pick, pool: Sequence[Value]) -> Step | None:
    x = pick.value(pool, _any)
    if x is None:
        return None
    y = pick.value(pool, lambda v: v.dtype == x.dtype)
    if y is None or pick.often(0.25):
        by = pick.weight(pick.one(((), (1,), *(x.shape[-1:],) * _static(x))), x.dtype)  # type: ignore[arg-type]
        function = pick.one(_binaries(x.dtype))
        if pick.often(0.5):
            return Step(lambda a: function(a, by), (x.index,))
        return Step(lambda a: function(by, a), (x.index,))
    return Step(pick.one(_binaries(x.dtype)), (x.index, y.index))


def _binaries(dtype: str) -> Sequence[Make]:
    if dtype == "bool":
        return (op.logical_and, op.logical_or, op.logical_xor)
    extremes: tuple[Make, ...] = (op.maximum, op.minimum, op.add, op.subtract, op.multiply)
    if is_float(dtype):
        return (*extremes, *extremes, op.divide, *ORDERS)
    # int32 and int64 count as numbers without ends (arith/canonical.py): x + 1 > x is true there
    orders = ORDERS if dtype == "int8" else ()
    return (*extremes, *extremes, op.bitwise_and, op.bitwise_or, op.bitwise_xor, *orders)


def _where(pick: Pick, pool: Sequence[Value]) -> Step | None:
    mask = pick.value(pool, lambda v: v.dtype == "bool")
    x = pick.value(pool, _any)
    y = None if x is None else pick.value(pool, lambda v: v.dtype == x.dtype)
    if mask is None or x is None or y is None:
        return None
    return Step(op.where, (mask.index, x.index, y.index), rounds=False)


def _cast(pick: Pick, x: Value) -> Make | None:
    to = pick.one(("float32", "float16", "int8", "int32", "int64", "bool", "float64"))
    if _floats(x) and to.startswith("int"):  # what no integer is has no one value
        return lambda a: op.cast(op.clip(op.where(op.isnan(a), op.zeros_like(a), a), -99, 99), to)
    if _floats(x) and to == "bool":
        return lambda a: op.not_equal(a, op.zeros_like(a))
    return lambda a: op.cast(a, to)


def _clip(pick: Pick, x: Value) -> Make:
    low = pick.one((-128.0, -1.0, 0.0, 2.0, -300.0))
    high = low + pick.one((0.0, 1.0, 6.0, 255.0, 600.0))
    return lambda a: op.clip(a, low, high)


def _axes(pick: Pick, x: Value) -> list[int] | None:
    if pick.often(0.2):
        return None
    chosen = [a for a in range(x.rank) if pick.often(0.5)] or [x.rank - 1]
    return [a - x.rank if pick.often(0.3) else a for a in chosen]


def _reduce(pick: Pick, x: Value) -> Make:
    if x.dtype == "bool":
        names: Sequence[Make] = (op.any, op.all)
    else:
        names = (op.sum, op.max, op.min, *((op.mean, op.prod, op.variance) if _floats(x) else ()))
    function, axes, kept = pick.one(names), _axes(pick, x), pick.often(0.5)
    if function in (op.mean, op.prod, op.variance):
        return lambda a: function(_held(a, 8.0), axis=axes, keepdims=kept)
    if function is op.sum:
        return lambda a: function(_summed(a, x.dtype), axis=axes, keepdims=kept)
    return lambda a: function(a, axis=axes, keepdims=kept)


def _held(x: Expr, most: float) -> Expr:
    """Without numbers whose products or squares a float may not hold: how these are put together is
    a kernel's own, and the interpreter has wider ones."""
    return op.clip(x, -most, most)


def _summed(x: Expr, dtype: str) -> Expr:
    """As `_held`, with infinities: sums are added up in any order."""
    if not is_float(dtype):
        return x
    return op.where(op.isinf(x), x, _held(x, 8.0 if dtype == "float16" else 1e15))


def _axis(pick: Pick, x: Value) -> int:
    axis = pick.between(0, x.rank)
    return axis - x.rank if pick.often(0.4) else axis


def _place(pick: Pick, x: Value) -> Make:
    function, axis, kept = pick.one((op.argmax, op.argmin)), _axis(pick, x), pick.often(0.5)
    last = pick.often(0.3)
    return lambda a: function(a, axis=axis, keepdims=kept, select_last_index=last)


def _running(pick: Pick, x: Value) -> Make:
    function, axis = pick.one((op.cumsum, op.cumsum, op.cumprod)), _axis(pick, x)
    exclusive = pick.often(0.3)
    return lambda a: function(_summed(a, x.dtype), axis=axis, exclusive=exclusive)


def _sorted(pick: Pick, x: Value) -> Make:
    axis, up = _axis(pick, x), pick.often(0.5)
    return pick.one((
        lambda a: op.sort(a, axis=axis, is_ascend=up),
        lambda a: op.argsort(a, axis=axis, is_ascend=up),
    ))  # fmt: skip


def _shares(pick: Pick, x: Value) -> Make:
    axis = _axis(pick, x)
    return pick.one((
        lambda a: op.nn.softmax(a, axis=axis), lambda a: op.nn.log_softmax(a, axis=axis)
    ))  # fmt: skip


def _norm(pick: Pick, x: Value) -> Make | None:
    width = x.shape[-1]
    if not isinstance(width, int):
        return None
    scale, shift = pick.weight((width,), x.dtype), pick.weight((width,), x.dtype)
    return lambda a: op.nn.layer_norm(_held(a, 30.0), scale, shift)


def _product(pick: Pick, x: Value) -> Make | None:
    depth = x.shape[-1] if x.rank > 1 else None
    if not isinstance(depth, int):
        return None
    if x.rank == 2:
        by = pick.weight((pick.one((1, 3, 8, 16, 20)), depth), x.dtype)
        return lambda a: op.nn.dense(_summed(a, x.dtype), by)
    if x.rank == 3 and pick.often(0.5):
        return lambda a: op.nn.batch_matmul(_summed(a, x.dtype), _summed(a, x.dtype))
    by = pick.weight((depth, pick.one((1, 4, 16))), x.dtype)
    return lambda a: op.nn.matmul(_summed(a, x.dtype), by)


def _convolution(pick: Pick, x: Value) -> Make | None:
    channels = x.shape[1] if x.rank == 4 else None
    if not isinstance(channels, int) or not channels:
        return None
    groups = channels if pick.often(0.25) else 1
    out, size, step = pick.one((1, 4, 16)) * groups, pick.one((1, 1, 3)), pick.one((1, 1, 2))
    weight, side = pick.weight((out, channels // groups, size, size), x.dtype), size // 2
    return lambda a: op.nn.conv2d(
        _summed(a, x.dtype), weight, (step, step), (side, side), groups=groups
    )


def _pool(pick: Pick, x: Value) -> Make | None:
    size, step, side = pick.one((1, 2, 3)), pick.one((1, 2)), pick.one((0, 0, 1))
    options: dict[str, Any] = {"ceil_mode": pick.often(0.3)}
    if size <= side:
        return None
    function: Make = op.nn.max_pool2d
    if _floats(x) and pick.often(0.5):
        function, options["count_include_pad"] = op.nn.avg_pool2d, pick.often(0.5)
    return lambda a: function(_summed(a, x.dtype), size, step, 1, side, **options)


def _join(pick: Pick, pool: Sequence[Value]) -> Step | None:
    x = pick.value(pool, _has_axes)
    if x is None:
        return None
    others = [x.index]
    for _ in range(pick.between(1, 4)):
        y = pick.value(pool, lambda v: v.dtype == x.dtype and v.rank == x.rank)
        others.append(x.index if y is None else y.index)
    axis = _axis(pick, x)
    if pick.often(0.25):
        return Step(lambda *a: op.stack(a, axis), tuple(others), rounds=False)
    return Step(lambda *a: op.concatenate(a, axis), tuple(others), rounds=False)


def _slice(pick: Pick, x: Value) -> Make:
    axis, step = pick.between(0, x.rank), pick.one((1, 1, 2, 3, -1, -2))
    begin, end = pick.one((0, 1, -2, 2)), pick.one((1, 3, -1, 100))
    if step < 0:
        begin, end = pick.one((-1, 2, 100)), pick.one((-100, 0, 1))
    return lambda a: op.strided_slice(a, [begin], [end], [step], axes=[axis])


def _moved(pick: Pick, x: Value) -> Make | None:
    """A view, or elements copied about."""
    kind, axis = pick.between(0, 8), pick.between(0, x.rank)
    order = [int(i) for i in pick.numbers.permutation(x.rank)]
    wide = [(pick.between(0, 3), pick.between(0, 2)) for _ in x.shape]
    flat: list[Any] = [*x.shape[:axis], -1]
    fill = const(1, x.dtype)
    zero_or_more: tuple[Make, ...] = (
        lambda a: op.transpose(a, order),
        lambda a: op.reshape(a, flat),
        lambda a: op.expand_dims(a, axis),
        lambda a: op.squeeze(a),
        lambda a: op.reverse(a, axis),
        lambda a: op.repeat(a, 2, axis),
        lambda a: op.tile(a, (2, *[1] * (x.rank - 1))),
        lambda a: op.nn.pad(a, wide, fill),
    )
    return zero_or_more[kind]


def _taken(pick: Pick, x: Value) -> Make:
    """Elements at constant places, some of them beyond the axis."""
    axis = _axis(pick, x)
    at = pick.numbers.integers(-2, 6, pick.one(((), (3,), (2, 2))))
    mode = pick.one(("clip", "wrap"))
    return lambda a: op.take(a, const(np.asarray(at, np.int64)), axis=axis, mode=mode)


def _taken_at(pick: Pick, pool: Sequence[Value]) -> Step | None:
    """Elements at places that are data."""
    x = pick.value(pool, _has_axes)
    at = pick.value(pool, lambda v: v.dtype in ("int32", "int64") and v.rank < 3)
    if x is None or at is None:
        return None
    axis, mode = _axis(pick, x), pick.one(("clip", "wrap"))
    return Step(lambda a, i: op.take(a, i, axis=axis, mode=mode), (x.index, at.index), rounds=False)


def _added_at(pick: Pick, x: Value) -> Make | None:
    """Rows added to, or put in the place of, the first ones."""
    first = x.shape[0]
    if not isinstance(first, int) or not first:
        return None
    at = pick.numbers.integers(0, first, (1, 3))
    if (mode := pick.one(("add", "update", "max"))) == "update":
        at = np.arange(min(first, 3)).reshape(1, -1)
    rows = const(np.asarray(at[0] % first, np.int64))
    return lambda a: op.scatter_nd(
        a, const(np.asarray(at, np.int64)), op.reverse(op.take(a, rows, axis=0), 0), mode
    )


def _quantized(pick: Pick, x: Value) -> Make:
    """To levels and back, with something in between perhaps."""
    dtype, scale, point = (
        pick.one(("int8", "uint8")),
        pick.one((0.1, 0.02, 1.0)),
        pick.between(0, 9),
    )
    inputs = const(np.float32(scale)), const(np.int32(point))

    def make(a: Expr) -> Expr:
        """Quantised numbers, as integers or as floats again."""
        wide = op.cast(a, "float32")
        known = op.where(op.isnan(wide), op.zeros_like(wide), wide)
        return qnn.dequantize(qnn.quantize(known, *inputs, out_dtype=dtype), *inputs)

    return make


def _chosen(pick: Pick, pool: Sequence[Value]) -> Step | None:
    """A branch by data."""
    test = pick.value(pool, lambda v: v.dtype == "bool")
    x = pick.value(pool, _numbers)
    if test is None or x is None:
        return None
    yes, no = pick.one((op.negative, op.abs)), pick.one((op.sign, lambda a: op.add(a, a)))
    return Step(lambda t, a: If(op.any(t), yes(a), no(a)), (test.index, x.index))


def _times(pick: Pick, x: Value) -> Make:
    """A hot one at each index."""
    depth, axis = pick.one((1, 3, 5)), pick.one((-1, 0))
    return lambda a: op.one_hot(a, const(2.0, "float32"), const(0.5, "float32"), depth, axis)


STEPS: tuple[Draw, ...] = (
    *[_of_one(_any, _unary)] * 4,
    *[_binary] * 6,
    *[_where] * 2,
    *[_of_one(_any, _cast)] * 3,
    *[_of_one(_numbers, _clip, rounds=False)] * 2,
    *[_of_one(_has_axes, _reduce)] * 3,
    _of_one(lambda v: _has_axes(v) and _numbers(v), _place),
    *[_of_one(lambda v: _has_axes(v) and _numbers(v), _running)] * 2,
    _of_one(lambda v: _has_axes(v) and _numbers(v), _sorted, rounds=False),
    _of_one(lambda v: _has_axes(v) and _floats(v), _shares),
    _of_one(lambda v: _has_axes(v) and _floats(v), _norm),
    *[_of_one(lambda v: v.dtype in ("float32", "float16", "int32"), _product)] * 3,
    *[_of_one(lambda v: v.rank == 4 and v.dtype in ("float32", "float16"), _convolution)] * 4,
    *[_of_one(lambda v: v.rank == 4 and _numbers(v), _pool)] * 2,
    *[_join] * 3,
    *[_of_one(_has_axes, _slice, rounds=False)] * 3,
    *[_of_one(_has_axes, _moved, rounds=False)] * 5,
    _of_one(_has_axes, _taken, rounds=False),
    _taken_at,
    _of_one(lambda v: _has_axes(v) and _numbers(v), _added_at),
    *[_of_one(_floats, _quantized)] * 2,
    _chosen,
    _of_one(lambda v: v.dtype in ("int32", "int64"), _times, rounds=False),
)
"""What is drawn, as often as it stands here."""
