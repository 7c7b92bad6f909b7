"""Arithmetic on dimensions: what type relations and computations both need to know about result
shapes.

A dimension is an int64 PrimExpr; attributes may hold plain ints instead (`Dim`). Everything here
stays symbolic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import islice

from ekiden.arith import Analyzer, prove_equal, simplify
from ekiden.ir.prim import (
    EQ,
    AnyDim,
    ExprLike,
    IntImm,
    Or,
    PrimExpr,
    Select,
    binary,
    convert,
    is_const,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import same
from ekiden.ir.text import prim_text, shape_text

Dim = int | PrimExpr
Dims = tuple[Dim, ...]
Shape = tuple[PrimExpr, ...]

OPEN_END = 2**30
"""A slice bound of at least this size means "to the end" (the largest int32 and int64 are spelled
so in models)."""


MAX_RANK = 64
"""Dimensions of a tensor, at most: what the virtual machine's instructions take."""


def expect_result_rank(rank: int, what: str) -> int:
    """Return the rank of a result. Raises ValueError where no tensor has it: before as many
    dimensions are made as an attribute says."""
    if not 0 <= rank <= MAX_RANK:
        raise ValueError(f"{what}: a result of 0 to {MAX_RANK} dimensions expected, got {rank}")
    return rank


def as_dim(value: ExprLike) -> PrimExpr:
    """A dimension as an expression."""
    return convert(value, "int64")


def as_shape(dims: Iterable[Dim]) -> Shape:
    """Attribute dimensions as a shape."""
    return tuple(as_dim(d) for d in dims)


def as_attr(dims: Iterable[Dim] | Dim) -> Dims:
    """A shape as attributes hold it: constants are plain ints, the rest expressions. One dimension
    may come alone."""
    many = (dims,) if isinstance(dims, (int, PrimExpr)) else dims
    return tuple(d.value if isinstance(d, IntImm) else d for d in many)


def axes_attr(axis: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return axes as attributes hold them; None stands for all."""
    if axis is None:
        return None
    return (axis,) if isinstance(axis, int) else tuple(axis)


def known(dim: Dim) -> int | None:
    """The number a dimension is known to be, or None."""
    if isinstance(dim, IntImm):
        return dim.value
    return dim if isinstance(dim, int) else None


def as_ints(dims: Iterable[Dim]) -> tuple[int, ...]:
    """Dimensions as numbers. Raises ValueError naming the first that is still symbolic."""
    numbers = []
    for each in dims:
        number = known(each)
        if number is None:
            raise ValueError(f"expected a number, got the symbolic dimension {each!r}")
        numbers.append(number)
    return tuple(numbers)


def is_any(dim: PrimExpr) -> bool:
    """Whether nothing is known of a dimension."""
    return isinstance(dim, AnyDim)


def _has_any(dims: Iterable[PrimExpr]) -> bool:
    return any(is_any(d) for d in dims)


def equal(a: PrimExpr, b: PrimExpr) -> bool:
    """Whether two dimensions are known to be equal."""
    if a is b:
        return not is_any(a)
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    return not _has_any((a, b)) and prove_equal(a, b)


def tidy(dim: PrimExpr) -> PrimExpr:
    """The dimension in its simplest form."""
    return dim if isinstance(dim, (IntImm, AnyDim)) else simplify(dim)


def product(dims: Iterable[PrimExpr]) -> PrimExpr:
    """The product of dimensions; unknown if one is."""
    many = tuple(dims)
    if _has_any(many):
        return AnyDim()
    total: PrimExpr = as_dim(1)
    for each in many:
        total = total * each
    return tidy(total)


def replaced(shape: Sequence[PrimExpr], axis: int, dim: PrimExpr) -> Shape:
    """The shape (or indices) with one entry exchanged."""
    return (*shape[:axis], dim, *shape[axis + 1 :])


def normalize_axis(axis: int, rank: int, what: str) -> int:
    """`axis` counted from the front. Raises ValueError when it is out of range; `what` names the
    operator."""
    if not -rank <= axis < rank:
        raise ValueError(f"{what}: axis must be in [{-rank}, {rank}), got {axis}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int] | int | None, rank: int, what: str) -> tuple[int, ...]:
    """Distinct axes in increasing order; None means all of them."""
    if axes is None:
        return tuple(range(rank))
    many = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({normalize_axis(a, rank, what) for a in many}))


def check_rank(what: str, shape: Sequence[PrimExpr], *ranks: int) -> None:
    """Raise ValueError where a shape has none of some ranks; `what` names operator and argument."""
    if len(shape) not in ranks:
        wanted = " or ".join(map(str, ranks))
        raise ValueError(
            f"{what} must have {wanted} dimensions, got {len(shape)}: {shape_text(tuple(shape))}"
        )


_assumed: ContextVar[list[PrimExpr] | None] = ContextVar("assumed", default=None)


@contextmanager
def assumptions() -> Iterator[list[PrimExpr]]:
    """Collect what type relations take for granted of symbolic dimensions inside of the block:
    conditions that a run must meet, or its kernels read where nothing is.
    """
    found: list[PrimExpr] = []
    token = _assumed.set(found)
    try:
        yield found
    finally:
        _assumed.reset(token)


def assume(condition: Callable[[], PrimExpr], dims: Iterable[PrimExpr]) -> None:
    """Note a condition on dimensions, of which none is unknown, while somebody collects them."""
    found = _assumed.get()
    if found is not None and not _has_any(dims):
        found.append(condition())


def unify_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """What two dimensions that must be equal are: the better known one; None if they cannot be
    equal."""
    if equal(a, b):
        return a if known(a) is not None else b
    if known(a) is not None and known(b) is not None:
        return None
    assume(lambda: a.equal(b), (a, b))
    if known(a) is not None or is_any(b):
        return a
    return b if known(b) is not None or is_any(a) else a


def expect_shape(
    name: str, what: str, shape: Sequence[PrimExpr], wanted: Sequence[Dim | None]
) -> None:
    """Check a shape; None is any extent. What is not known is assumed, so that a run is refused.

    Raises ValueError where it is known to differ.
    """
    fits = len(shape) == len(wanted) and all(
        w is None or unify_dim(d, as_dim(w)) is not None for d, w in zip(shape, wanted, strict=True)
    )
    if not fits:
        shown = ", ".join("?" if w is None else shape_text((as_dim(w),))[1:-2] for w in wanted)
        raise ValueError(
            f"{name}: {what!r} must have shape ({shown}), got {shape_text(tuple(shape))}"
        )


def expect_multiple(what: str, extent: PrimExpr, factor: int, of: str) -> None:
    """Check that an extent is a multiple of a factor, which is named `of`. What is not known is
    assumed, so that a run is refused.

    Raises ValueError where it is known not to be.
    """
    number = known(extent)
    if number is not None and number % factor:
        raise ValueError(f"{what} must be a multiple of {of}, got {number} and {factor}")
    if number is None and factor > 1:
        assume(lambda: (extent % factor).equal(0), (extent,))


def expect_least(
    name: str, what: str, shape: Sequence[PrimExpr], least: Sequence[Dim | None]
) -> None:
    """Check that extents are not below others; None is any extent. What is not known is assumed.

    Raises ValueError where one is known to be less.
    """
    for axis, (size, limit) in enumerate(zip(shape, least, strict=True)):
        if limit is None or Analyzer().can_prove(size >= limit):
            continue
        wanted = as_dim(limit)
        if Analyzer().can_prove(size < wanted):
            raise ValueError(
                f"{name}: {what!r} must have at least {prim_text(wanted)} elements along axis"
                f" {axis}, got {prim_text(size)}"
            )
        assume(partial(_is_least, size, wanted), (size, wanted))


def _is_least(size: PrimExpr, least: PrimExpr) -> PrimExpr:
    return size >= least


def expect_positive(name: str, **numbers: int) -> None:
    """Check attributes that count something. Raises ValueError."""
    for what, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: {what!r} must be positive, got {number}")


MAX_STEP = 2**31 - 1
"""Of a window's steps, where a tensor beside the data says how many windows there are: so that no
place leaves int64."""


def expect_small(name: str, **numbers: Sequence[int]) -> None:
    """Check attributes that places are multiples of. Raises ValueError."""
    for what, many in numbers.items():
        if any(abs(number) > MAX_STEP for number in many):
            raise ValueError(f"{name}: {what!r} must be at most {MAX_STEP}, got {tuple(many)}")


def broadcast_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """The broadcast of two dimensions; None if they are known to disagree.

    A symbol against a constant c > 1 gives c; against another symbol, a choice made when both are
    known. A choice among extents of which the other is one stays as it is, so that what is added
    to itself again and again (residuals under a mask) has one extent: select(n == 1, m, n).
    """
    if is_const(b, 1) or equal(a, b):
        return a
    if is_const(a, 1):
        return b
    if known(a) is not None and known(b) is not None:
        return None
    assume(lambda: _broadcasts(a, b), (a, b))
    if known(a) is not None or known(b) is not None:
        return a if known(a) is not None else b
    if _has_any((a, b)):
        return AnyDim()
    mine, others = broadcast_factors(a), broadcast_factors(b)
    if _are_among(others, mine):
        return a
    if _are_among(mine, others):
        return b
    *first, extent = mine + [each for each in others if not _are_among([each], mine)]
    for each in reversed(first):
        extent = Select(binary(EQ, each, 1), extent, each, "int64")
    return extent


def broadcast_factors(dim: PrimExpr) -> list[PrimExpr]:
    """Return the extents that a dimension is the broadcast of: n and m of select(n == 1, m, n), n,
    m and k of select(n == 1, select(m == 1, k, m), n); itself if it is none.
    """
    factors: list[PrimExpr] = []
    while True:
        match dim:
            case Select(condition=EQ(a=a, b=b), true_value=others, false_value=one) if is_const(
                b, 1
            ) and same(a, one):
                factors.append(one)
                dim = others
            case _:
                return [*factors, dim]


def _are_among(some: Sequence[PrimExpr], others: Sequence[PrimExpr]) -> bool:
    """Whether each of some expressions is written like one of the others."""
    return all(any(same(each, other) for other in others) for each in some)


def _broadcasts(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """That two dimensions are equal, or one of them 1."""
    condition = a.equal(b)
    for dim in (a, b):
        if known(dim) is None:
            condition = Or(condition, dim.equal(1), "bool")
    return condition


def broadcast_shape(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Shape | None:
    """NumPy's broadcasting, aligned at the last axis; None if two axes are known to disagree."""
    rank = max(len(a), len(b))
    one = as_dim(1)
    left = (one,) * (rank - len(a)) + tuple(a)
    right = (one,) * (rank - len(b)) + tuple(b)
    dims = [broadcast_dim(x, y) for x, y in zip(left, right, strict=True)]
    return None if None in dims else tuple(d for d in dims if d is not None)


def broadcasts_to(shape: Sequence[PrimExpr], wanted: Sequence[PrimExpr]) -> bool:
    """Whether a shape may broadcast to another one, which stays as it is: an extent where 1 is
    wanted must be 1. What is not known is assumed, so that a run is refused.
    """
    if len(shape) > len(wanted) or broadcast_shape(shape, wanted) is None:
        return False
    for own, whole in zip(reversed(shape), reversed(wanted), strict=False):
        if is_const(whole, 1) and unify_dim(own, whole) is None:
            return False
    return True


def ceil_div(a: PrimExpr, b: int) -> PrimExpr:
    """`a / b` rounded up."""
    return (a + (b - 1)) // b if b != 1 else a


def window_extent(
    size: PrimExpr, kernel: Dim, stride: int, before: int, after: int, dilation: int = 1
) -> PrimExpr:
    """How many windows of a convolution or pooling fit: (size + before + after - reach) // stride +
    1."""
    expect_positive("a window", stride=stride, dilation=dilation)
    if is_any(size):
        return size
    expect_least("a window", "kernel", (as_dim(kernel),), (1,))
    reach = (as_dim(kernel) - 1) * dilation + 1
    assume(lambda: windows_fit(size, reach, stride, before, after), (size, reach))
    return _count_of_windows(tidy((size + (before + after) - reach) // stride + 1), size, reach)


def _count_of_windows(count: PrimExpr, size: PrimExpr, reach: PrimExpr) -> PrimExpr:
    """The count. Raises ValueError where it is known to be negative."""
    if (known(count) or 0) < 0:
        raise ValueError(
            f"a window that reaches over {prim_text(tidy(reach))} elements does not fit an axis of"
            f" {prim_text(size)} with its padding"
        )
    return count


def windows_fit(size: PrimExpr, reach: PrimExpr, slack: int, before: int, after: int) -> PrimExpr:
    """Whether the number of windows is not negative: none begins beyond `slack` elements outside,
    a stride where numbers are rounded down."""
    return size >= tidy(reach - (before + after + slack))


def window_extent_ceil(
    size: PrimExpr, kernel: int, stride: int, before: int, after: int, dilation: int = 1
) -> PrimExpr:
    """As `window_extent`, rounded up; a last window that would start in the padding after is
    dropped."""
    expect_positive("a window", stride=stride, dilation=dilation)
    if is_any(size):
        return size
    reach = (kernel - 1) * dilation + 1
    assume(lambda: windows_fit(size, as_dim(reach), 2 * stride - 1, before, after), (size,))
    count = ceil_div(size + (before + after) - reach, stride) + 1
    return tidy(minimum(count, ceil_div(size + before, stride)))


def transposed_extent(
    size: PrimExpr,
    kernel: Dim,
    stride: int,
    before: int,
    after: int,
    dilation: int = 1,
    extra: int = 0,
) -> PrimExpr:
    """Of a transposed convolution: (size - 1) * stride - before - after + reach + extra."""
    if is_any(size):
        return size
    reach = (as_dim(kernel) - 1) * dilation + 1
    extent = tidy((size - 1) * stride + reach + (extra - before - after))
    assume(lambda: extent >= 0, (size, reach))
    return extent


def _is_negative(value: PrimExpr) -> bool | None:
    number = known(value)
    if number is not None:
        return number < 0
    analyzer = Analyzer()
    if analyzer.can_prove(value >= 0):
        return False
    return True if analyzer.can_prove(value < 0) else None


def _from_front(position: Dim, size: PrimExpr) -> PrimExpr:
    """A slice bound counted from the front: negative ones count from the end."""
    value = as_dim(position)
    negative = _is_negative(value)
    if negative is None:
        return Select(value < 0, value + size, value, "int64")
    return value + size if negative else value


def slice_range(begin: Dim, end: Dim, stride: int, size: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """(first index, number of elements) of `begin:end:stride` over an axis, as NumPy slices."""
    if is_any(size):
        return as_dim(0), AnyDim()
    first, last = known(begin), known(end)
    if stride > 0:
        open_end = last is not None and last >= OPEN_END
        start = maximum(_from_front(begin, size), 0)
        stop = size if open_end else minimum(_from_front(end, size), size)
        return tidy(start), tidy(maximum(ceil_div(tidy(stop - start), stride), 0))
    open_begin = first is not None and first >= OPEN_END
    open_end = last is not None and last <= -OPEN_END
    start = size - 1 if open_begin else minimum(_from_front(begin, size), size - 1)
    stop = as_dim(-1) if open_end else maximum(_from_front(end, size), -1)
    return tidy(start), tidy(maximum(ceil_div(tidy(start - stop), -stride), 0))


def infer_reshape(
    shape: Sequence[PrimExpr], newshape: Sequence[Dim], allow_zero: bool = False
) -> Shape:
    """The shape `newshape` asks for, whose numbers read the data's dimensions from the left:

    n > 0  that extent                   -2  all dimensions that are left
    0      copies one (unless allowed)   -3  the product of two
    -1     what is left, in one place    -4  splits one into the next two, of which one may be -1

    Each but -2, -3 and -4 passes over one dimension. An expression that is 0, a symbol's value say,
    is the dimension itself.

    Raises ValueError for what has no meaning, and when the numbers of elements are known to differ.
    """
    factors = _decoded(shape, newshape, allow_zero)
    wanted = [None if many is None else product(many) for many in factors]
    given = [d for d in wanted if d is not None]
    holes = len(wanted) - len(given)
    if holes > 1:
        raise ValueError(f"at most one dimension may be -1, got {holes}")
    if holes == 0:
        before, after = _count(shape), _count(given)
        if before is not None and after is not None and before != after:
            raise ValueError(f"{before} elements cannot become {after}")
        return tuple(given)
    rest = _quotient(shape, [d for many in factors for d in many or ()])
    return tuple(rest if d is None else d for d in wanted)


def _decoded(
    shape: Sequence[PrimExpr], newshape: Sequence[Dim], allow_zero: bool
) -> list[Sequence[PrimExpr] | None]:
    """The factors of each dimension of a new shape, None for a -1; see `infer_reshape`."""
    found: list[Sequence[PrimExpr] | None] = []
    codes = iter(enumerate(newshape))
    source = 0
    for position, each in codes:
        match known(each):
            case 0 if isinstance(each, int) and not allow_zero:
                what = f"0 at axis {position} copies a dimension"
                found.append(_read(shape, source, 1, what))
                source += 1
            case -1:
                found.append(None)
                source += 1
            case -2:
                found += [(d,) for d in shape[source:]]
                source = max(source, len(shape))
            case -3:
                what = f"-3 at axis {position} joins two dimensions"
                found.append(_read(shape, source, 2, what))
                source += 2
            case -4:
                what = f"-4 at axis {position} splits a dimension"
                (whole,) = _read(shape, source, 1, what)
                parts = [part for _, part in islice(codes, 2)]
                found += [(d,) for d in _split(whole, parts, what)]
                source += 1
            case int() as number if number < 0:
                raise ValueError(f"a dimension must be at least -4, got {number}")
            case _:
                found.append((as_dim(each),))
                source += 1
    return found


def _read(shape: Sequence[PrimExpr], at: int, count: int, what: str) -> Sequence[PrimExpr]:
    if at + count > len(shape):
        raise ValueError(f"{what} that an input of rank {len(shape)} lacks")
    return shape[at : at + count]


def _split(whole: PrimExpr, parts: Sequence[Dim], what: str) -> list[PrimExpr]:
    """The two dimensions that one becomes."""
    numbers = [known(part) for part in parts]
    if len(parts) != 2 or any(n is not None and n < 1 and n != -1 for n in numbers):
        raise ValueError(f"{what}: two parts must follow, of which one may be -1, got {parts}")
    if numbers == [-1, -1]:
        raise ValueError(f"{what}: one of its parts must be a number, got {parts}")
    if -1 not in numbers:
        if (size := known(whole)) is not None and None not in numbers:
            count = math.prod(n for n in numbers if n is not None)
            if count != size:
                raise ValueError(f"{what}: {size} cannot become {parts[0]} times {parts[1]}")
        made = [as_dim(part) for part in parts]
        if None in (size, *numbers):
            assume(lambda: whole.equal(product(made)), (whole, *made))
        return made
    other = as_dim(parts[1 - numbers.index(-1)])
    rest = AnyDim() if is_any(whole) else _divide([whole], [other])
    return [rest if number == -1 else other for number in numbers]


def _count(shape: Sequence[PrimExpr]) -> int | None:
    numbers = [known(d) for d in shape]
    return None if None in numbers else math.prod(n for n in numbers if n is not None)


def _quotient(shape: Sequence[PrimExpr], given: Sequence[PrimExpr]) -> PrimExpr:
    """product(shape) / product(given) after cancelling equal factors."""
    above, below = list(shape), []
    for each in given:
        at = next((i for i, d in enumerate(above) if equal(d, each) or d is each), None)
        if at is None:
            below.append(each)
        else:
            del above[at]
    return AnyDim() if _has_any(above) or _has_any(below) else _divide(above, below)


def _divide(above: Sequence[PrimExpr], below: Sequence[PrimExpr]) -> PrimExpr:
    top, numerator = _split_constant(above)
    bottom, denominator = _split_constant(below)
    common = math.gcd(top, bottom) or 1
    top, bottom = top // common, bottom // common
    if bottom == 0 or (not numerator and not denominator and top % bottom):
        raise ValueError(f"{top * common} elements do not divide by {bottom * common}")
    whole = product([as_dim(top), *numerator])
    if numerator and not denominator and bottom > 1:  # of no elements any count is right
        assume(lambda: (whole % bottom).equal(0), numerator)
    return tidy(whole // product([as_dim(bottom), *denominator]))


def _split_constant(dims: Sequence[PrimExpr]) -> tuple[int, list[PrimExpr]]:
    """The product of the known dimensions, and the others."""
    numbers = [n for n in map(known, dims) if n is not None]
    return math.prod(numbers), [d for d in dims if known(d) is None]
