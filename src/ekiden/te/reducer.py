"""Commutative reducers and reductions over axes, of one value or of tuples.

Reduce (only as a whole body of a computation) combines `sources` over all values of `axis` with a
CommReducer. The built-in ones are REDUCERS; `comm_reducer` makes others, such as an argmax over
(position, value) pairs.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import overload

from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.node import ignored_field, node
from ekiden.ir.prim import (
    Add,
    ExprLike,
    IntImm,
    Mul,
    PrimExpr,
    Var,
    const,
    convert,
    convert_operands,
    fold_binary,
    is_const,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import substitute
from ekiden.ir.range import Range
from ekiden.tir.comm_reducer import CommReducer

COMBINE: Mapping[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "sum": lambda a, b: fold_binary(Add, a, b),
    "prod": lambda a, b: fold_binary(Mul, a, b),
    "max": maximum,
    "min": minimum,
}
"""Combiner expression of each built-in reduction."""
REDUCERS = tuple(COMBINE)


@node("te.ReduceAxis")
class ReduceAxis(Var):
    """Reduction variable over [begin, begin + extent). In a Reduce all axes begin at 0: the sources
    are shifted when it is created, and `origin` is the original axis.
    """

    extent: PrimExpr = IntImm(1)
    begin: PrimExpr = IntImm(0)
    origin: ReduceAxis | None = ignored_field(default=None)

    @property
    def dom(self) -> Range:
        """Return the axis's range."""
        return Range.from_min_extent(self.begin, self.extent)

    @property
    def iter_type(self) -> int:
        """Return 2, `IterVar.CommReduce`."""
        return 2

    @property
    def var(self) -> ReduceAxis:
        """Return the axis itself, which is a variable."""
        return self


@node("te.Reduce")
class Reduce(PrimExpr):
    """One component of a reduction: `value_index` of the combination of `sources` over all values
    of `axis`.
    """

    reducer: CommReducer
    sources: tuple[PrimExpr, ...]
    axis: tuple[ReduceAxis, ...]
    value_index: int
    dtype: str

    @property
    def kind(self) -> str:
        """Return the built-in reducer's name; "" for a custom reducer."""
        return self.reducer.name if self.reducer.name in COMBINE else ""

    @property
    def source(self) -> PrimExpr:
        """Return the source of this component."""
        return self.sources[self.value_index]


def identity(kind: str, dtype: str) -> PrimExpr:
    """Return the identity of a built-in reduction, its value over nothing."""
    if kind in ("sum", "prod"):
        return const(0 if kind == "sum" else 1, dtype)
    return max_value(dtype) if kind == "min" else min_value(dtype)


def _dtype_limits(dtype: str) -> tuple[float, float]:
    if dt.is_float(dtype):
        return -math.inf, math.inf
    if dtype == "bool":
        return 0, 1
    bits = dt.SCALAR_BITS[dtype]
    return (0, 2**bits - 1) if dt.is_unsigned(dtype) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def min_value(dtype: str) -> PrimExpr:
    """Return the lowest value of a dtype: minus infinity for floats."""
    return const(_dtype_limits(dtype)[0], dtype)


def max_value(dtype: str) -> PrimExpr:
    """Return the highest value of a dtype: infinity for floats."""
    return const(_dtype_limits(dtype)[1], dtype)


@functools.cache
def _builtin_reducer(kind: str, dtype: str) -> CommReducer:
    x, y = Var("x", dtype), Var("y", dtype)
    return CommReducer(kind, (x,), (y,), (COMBINE[kind](x, y),), (identity(kind, dtype),))


def reduce_axis(
    dom: tuple[ExprLike, ExprLike], name: str = "rv", thread_tag: str = ""
) -> ReduceAxis:
    """Return a reduction variable over [dom[0], dom[1]). Raises ValueError for a thread tag: a
    schedule binds axes to threads (tir.Schedule.bind).
    """
    if thread_tag:
        raise ValueError(f"reduce_axis {name!r}: bind it to {thread_tag!r} by a schedule")
    if len(dom) != 2:
        raise ValueError(f"reduce_axis {name!r}: expected a range (begin, end), got {dom!r}")
    begin, end = convert(dom[0], "int64"), convert(dom[1], "int64")
    return ReduceAxis(name, "int64", end - begin, begin)


AxisLike = ReduceAxis | Sequence[ReduceAxis]


def make_reduce(
    reducer: CommReducer,
    sources: Sequence[PrimExpr],
    axis: AxisLike,
    where: PrimExpr | None = None,
) -> tuple[PrimExpr, ...]:
    """Return the components of a reduction; the sources themselves if there is no axis.

    Args:
        reducer: the combination.
        sources: the reduced expressions.
        axis: one axis or several.
        where: where false, nothing is read and the identity is combined.

    Returns:
        The components.

    Raises:
        TypeError: for an axis of another kind.
        ValueError: for a reduction inside another expression.
    """
    axes = (axis,) if isinstance(axis, ReduceAxis) else tuple(axis)
    if any(not isinstance(a, ReduceAxis) for a in axes):
        raise TypeError(f"{reducer.name}: expected axes made by te.reduce_axis, got {axis!r}")
    if any(isinstance(e, Reduce) for e in sources):
        raise ValueError(f"{reducer.name}: a reduction must be a computation of its own")
    if where is not None:
        identities = reducer.identity_element
        # A masked term becomes the identity, so that it does not change the result; if_then_else
        # does not evaluate the source there.
        sources = [if_then_else(where, s, i) for s, i in zip(sources, identities, strict=True)]
    if not axes:
        return tuple(sources)
    # Reductions count from 0, as block iterators do; a begin other than 0 moves into the source.
    from_zero = tuple(
        a if is_const(a.begin, 0) else ReduceAxis(a.name, a.dtype, a.extent, origin=a) for a in axes
    )
    shift: dict[Var, PrimExpr] = {
        a: z + a.begin for a, z in zip(axes, from_zero, strict=True) if a is not z
    }
    shifted = tuple(substitute(s, shift) for s in sources)
    return tuple(Reduce(reducer, shifted, from_zero, n, s.dtype) for n, s in enumerate(shifted))


def _build_reducer(
    name: str,
    fcombine: Callable[..., PrimExpr | Sequence[PrimExpr]],
    fidentity: Callable[..., ExprLike | Sequence[ExprLike]],
    dtypes: Sequence[str],
    is_tuple: bool,
) -> CommReducer:
    lhs = tuple(Var(f"x{n}", t) for n, t in enumerate(dtypes))
    rhs = tuple(Var(f"y{n}", t) for n, t in enumerate(dtypes))
    combined = fcombine(lhs, rhs) if is_tuple else fcombine(lhs[0], rhs[0])
    result = tuple(combined) if isinstance(combined, (tuple, list)) else (combined,)
    start = fidentity(*dtypes)
    starts = tuple(start) if isinstance(start, (tuple, list)) else (start,)
    for what, values in (("fcombine", result), ("fidentity", starts)):
        if len(values) != len(dtypes):
            raise ValueError(
                f"comm_reducer {name!r}: {what} must give {len(dtypes)} values, got {len(values)}"
            )
    elements = tuple(convert(s, t) for s, t in zip(starts, dtypes, strict=True))
    for what, entries in (("fcombine", result), ("fidentity", elements)):
        found_dtypes = [e.dtype for e in entries]
        if found_dtypes != list(dtypes):
            raise TypeError(
                f"comm_reducer {name!r}: {what} must give {', '.join(dtypes)}, got"
                f" {', '.join(found_dtypes)}"
            )
    # Schedule rules trust the built-in names: a custom reducer must not pass for one.
    own = f"own_{name}" if name in COMBINE else name
    return CommReducer(own, lhs, rhs, result, elements)


def comm_reducer(
    fcombine: Callable[..., PrimExpr | Sequence[PrimExpr]],
    fidentity: Callable[..., ExprLike | Sequence[ExprLike]],
    name: str = "reduce",
) -> Callable[..., PrimExpr | tuple[PrimExpr, ...]]:
    """Return a custom reduction: a function of (expression or tuple, axis, where=None). The
    combination must be commutative and associative, which is not checked. Called with two
    expressions instead of an axis, it combines them.

    Args:
        fcombine: fcombine(x, y) combines two values, or two tuples.
        fidentity: fidentity(*dtypes) returns the identity.
        name: the reducer's name.

    Returns:
        The reduction.

    Raises:
        ValueError: if the functions return another number of values.
        TypeError: if the functions return other dtypes.
    """
    if len(inspect.signature(fcombine).parameters) != 2:
        raise ValueError(f"comm_reducer {name!r}: fcombine must take two arguments")

    def apply_reducer(
        expr: PrimExpr | Sequence[PrimExpr],
        axis: AxisLike | PrimExpr,
        where: PrimExpr | None = None,
    ) -> PrimExpr | tuple[PrimExpr, ...]:
        """Return the reduction over `axis` (or of two expressions). Raises what `comm_reducer`
        documents.
        """
        is_tuple = not isinstance(expr, PrimExpr)
        sources = (expr,) if isinstance(expr, PrimExpr) else tuple(expr)
        reducer = _build_reducer(name, fcombine, fidentity, [s.dtype for s in sources], is_tuple)
        if isinstance(axis, PrimExpr) and not isinstance(axis, ReduceAxis):
            return reducer.combine(sources, (axis,))[0]
        components = make_reduce(reducer, sources, axis, where)
        return components if is_tuple else components[0]

    apply_reducer.__name__ = apply_reducer.__qualname__ = name
    return apply_reducer


class _BuiltinReduction:
    """A built-in reduction such as `te.sum`: over axes, or of two values."""

    def __init__(self, kind: str, doc: str) -> None:
        self.kind = self.__name__ = kind
        self.__doc__ = doc

    @overload
    def __call__(
        self, expr: ExprLike, axis: AxisLike, where: PrimExpr | None = None
    ) -> PrimExpr: ...
    @overload
    def __call__(self, expr: ExprLike, axis: ExprLike) -> PrimExpr: ...
    def __call__(
        self, expr: ExprLike, axis: AxisLike | ExprLike, where: PrimExpr | None = None
    ) -> PrimExpr:
        if isinstance(axis, (int, float)) or (
            isinstance(axis, PrimExpr) and not isinstance(axis, ReduceAxis)
        ):
            return COMBINE[self.kind](*convert_operands(expr, axis))
        value = convert(expr)
        return make_reduce(_builtin_reducer(self.kind, value.dtype), (value,), axis, where)[0]


sum = _BuiltinReduction(
    "sum", "The sum over `axis` (of two values, if that is one); 0 if it is empty."
)
prod = _BuiltinReduction("prod", "The product over `axis`; 1 if it is empty.")
max = _BuiltinReduction(
    "max", "The largest over `axis`; the lowest value of the type if it is empty."
)
min = _BuiltinReduction(
    "min", "The smallest over `axis`; the highest value of the type if it is empty."
)

__all__ = [
    "COMBINE",
    "REDUCERS",
    "CommReducer",
    "Reduce",
    "ReduceAxis",
    "comm_reducer",
    "identity",
    "max",
    "max_value",
    "min",
    "min_value",
    "prod",
    "reduce_axis",
    "sum",
]  # fmt: skip
