"""Arithmetic on shape dimensions, shared by type relations and computations.

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
from ekiden.ir.expr_text import format_prim_expr, format_shape
from ekiden.ir.prim import (
    EQ,
    AnyDim,
    ExprLike,
    IntImm,
    Or,
    PrimExpr,
    Select,
    convert,
    fold_binary,
    is_const,
    maximum,
    minimum,
)
from ekiden.ir.prim_visitor import is_same_expr

Dim = int | PrimExpr
Dims = tuple[Dim, ...]
Shape = tuple[PrimExpr, ...]

OPEN_SLICE_END = 2**31 - 1
"""Slice bound that means "to the end" of an axis of dynamic extent; models spell it as the largest
int32 or int64.
"""
NO_BOUND = 2**63 - 1
"""Slice bound of an omitted bound, beyond every extent."""


MAX_RANK = 64
"""Maximum tensor rank that VM instructions encode."""


def require_result_rank(rank: int, what: str) -> int:
    """Return the rank of a result. Raises ValueError above MAX_RANK, before that many dimensions
    are created.
    """
    if not 0 <= rank <= MAX_RANK:
        raise ValueError(f"{what}: a result of 0 to {MAX_RANK} dimensions expected, got {rank}")
    return rank


def as_dim(value: ExprLike) -> PrimExpr:
    """Return a dimension as an expression."""
    return convert(value, "int64")


def as_shape(dims: Iterable[Dim]) -> Shape:
    """Return dimensions of attributes as a shape."""
    return tuple(as_dim(d) for d in dims)


def to_attr_dims(dims: Iterable[Dim] | Dim) -> Dims:
    """Return a shape as attributes store it: constants as ints, other dimensions as expressions.
    One dimension may be passed alone.
    """
    dim_list = (dims,) if isinstance(dims, (int, PrimExpr)) else dims
    return tuple(d.value if isinstance(d, IntImm) else d for d in dim_list)


def to_attr_axes(axis: int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Return axes as attributes store them; None stands for all axes."""
    if axis is None:
        return None
    return (axis,) if isinstance(axis, int) else tuple(axis)


def known_int(dim: Dim) -> int | None:
    """Return a dimension as an int, or None if it is not constant."""
    if isinstance(dim, IntImm):
        return dim.value
    return dim if isinstance(dim, int) else None


def as_ints(dims: Iterable[Dim]) -> tuple[int, ...]:
    """Return constant dimensions as ints. Raises ValueError naming the first symbolic one."""
    numbers = []
    for dim in dims:
        number = known_int(dim)
        if number is None:
            raise ValueError(f"expected a number, got the symbolic dimension {dim!r}")
        numbers.append(number)
    return tuple(numbers)


def is_unknown_dim(dim: PrimExpr) -> bool:
    """Return whether a dimension is Any."""
    return isinstance(dim, AnyDim)


def _has_unknown_dim(dims: Iterable[PrimExpr]) -> bool:
    return any(is_unknown_dim(d) for d in dims)


def are_equal_dims(a: PrimExpr, b: PrimExpr) -> bool:
    """Return whether two dimensions are provably equal."""
    if a is b:
        return not is_unknown_dim(a)
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return a.value == b.value
    return not _has_unknown_dim((a, b)) and prove_equal(a, b)


def are_unequal_dims(a: PrimExpr, b: PrimExpr) -> bool:
    """Return whether two dimensions are constant and different."""
    return known_int(a) is not None and known_int(b) is not None and not are_equal_dims(a, b)


def simplify_dim(dim: PrimExpr) -> PrimExpr:
    """Return the dimension simplified."""
    return dim if isinstance(dim, (IntImm, AnyDim)) else simplify(dim)


def product_of_dims(dims: Iterable[PrimExpr]) -> PrimExpr:
    """Return the product of dimensions; Any if one is Any."""
    factors = tuple(dims)
    if _has_unknown_dim(factors):
        return AnyDim()
    total: PrimExpr = as_dim(1)
    for factor in factors:
        total = total * factor
    return simplify_dim(total)


def replace_dim(shape: Sequence[PrimExpr], axis: int, dim: PrimExpr) -> Shape:
    """Return the shape (or indices) with one entry replaced."""
    return (*shape[:axis], dim, *shape[axis + 1 :])


def normalize_axis(axis: int, rank: int, what: str) -> int:
    """Return `axis` counted from the front. Raises ValueError, naming the operator, if it is out of
    range.
    """
    if not -rank <= axis < rank:
        raise ValueError(f"{what}: axis must be in [{-rank}, {rank}), got {axis}")
    return axis + rank if axis < 0 else axis


def normalize_axes(axes: Sequence[int] | int | None, rank: int, what: str) -> tuple[int, ...]:
    """Return distinct axes in increasing order; None means all."""
    if axes is None:
        return tuple(range(rank))
    axis_list = (axes,) if isinstance(axes, int) else axes
    return tuple(sorted({normalize_axis(a, rank, what) for a in axis_list}))


def require_rank(what: str, shape: Sequence[PrimExpr], *ranks: int) -> None:
    """Raise ValueError unless a shape has one of some ranks; `what` names operator and argument."""
    if len(shape) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise ValueError(
            f"{what} must have {allowed} dimensions, got {len(shape)}: {format_shape(tuple(shape))}"
        )


_assumed: ContextVar[list[PrimExpr] | None] = ContextVar("assumed", default=None)


@contextmanager
def collect_assumptions() -> Iterator[list[PrimExpr]]:
    """Collect the conditions on symbolic dimensions that type relations assume within the context;
    kernels are out of bounds where a run violates them.
    """
    conditions: list[PrimExpr] = []
    token = _assumed.set(conditions)
    try:
        yield conditions
    finally:
        _assumed.reset(token)


def assume_condition(condition: Callable[[], PrimExpr], dims: Iterable[PrimExpr]) -> None:
    """Record a condition on known dimensions, if assumptions are being collected."""
    collected = _assumed.get()
    if collected is not None and not _has_unknown_dim(dims):
        collected.append(condition())


def unify_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """Unify two dimensions that must be equal into the more specific one; None if they cannot be
    equal.
    """
    if are_equal_dims(a, b):
        return a if known_int(a) is not None else b
    if known_int(a) is not None and known_int(b) is not None:
        return None
    assume_condition(lambda: a.equal(b), (a, b))
    if known_int(a) is not None or is_unknown_dim(b):
        return a
    return b if known_int(b) is not None or is_unknown_dim(a) else a


def require_shape(
    name: str, what: str, shape: Sequence[PrimExpr], expected: Sequence[Dim | None]
) -> None:
    """Raise ValueError unless a shape matches the expected one; None matches any extent. Unknown
    extents are assumed to match and checked at run time.
    """
    fits = len(shape) == len(expected) and all(
        w is None or unify_dim(d, as_dim(w)) is not None
        for d, w in zip(shape, expected, strict=True)
    )
    if not fits:
        shown = ", ".join("?" if w is None else format_shape((as_dim(w),))[1:-2] for w in expected)
        raise ValueError(
            f"{name}: {what!r} must have shape ({shown}), got {format_shape(tuple(shape))}"
        )


def require_multiple(what: str, extent: PrimExpr, factor: int, of: str) -> None:
    """Raise ValueError unless an extent is a multiple of a factor; `of` names the factor. Unknown
    extents are assumed to be one and checked at run time.

    Raises ValueError where it is known not to be.
    """
    number = known_int(extent)
    if number is not None and number % factor:
        raise ValueError(f"{what} must be a multiple of {of}, got {number} and {factor}")
    if number is None and factor > 1:
        assume_condition(lambda: (extent % factor).equal(0), (extent,))


def require_min_extent(
    name: str, what: str, shape: Sequence[PrimExpr], minimum: Sequence[Dim | None]
) -> None:
    """Raise ValueError if an extent is below its minimum; None is any extent. Unknown extents are
    assumed to fit.
    """
    for axis, (size, limit) in enumerate(zip(shape, minimum, strict=True)):
        if limit is None or Analyzer().can_prove(size >= limit):
            continue
        limit_dim = as_dim(limit)
        if Analyzer().can_prove(size < limit_dim):
            raise ValueError(
                f"{name}: {what!r} must have at least {format_prim_expr(limit_dim)} elements along"
                f" axis {axis}, got {format_prim_expr(size)}"
            )
        assume_condition(partial(_at_least_condition, size, limit_dim), (size, limit_dim))


def _at_least_condition(size: PrimExpr, minimum: PrimExpr) -> PrimExpr:
    return size >= minimum


def require_positive(name: str, **numbers: int) -> None:
    """Raise ValueError for attribute values that are not positive."""
    for what, number in numbers.items():
        if number < 1:
            raise ValueError(f"{name}: {what!r} must be positive, got {number}")


def require_natural(name: str, what: str, numbers: Sequence[PrimExpr]) -> None:
    """Raise ValueError for negative numbers of elements, and assume that symbolic ones are not
    negative. Unknown ones are assumed not to be, so that a run is refused. Raises ValueError where
    one is known to be.
    """
    for number in numbers:
        value = known_int(number)
        if value is None:
            _assume_natural(number)
        elif value < 0:
            raise ValueError(f"{name}: {what!r} must not be negative, got {value}")


def _assume_natural(number: PrimExpr) -> None:
    assume_condition(lambda: number >= 0, (number,))


MAX_POSITION_FACTOR = 2**31 - 1
"""Maximum window stride where the number of windows is data-dependent, so that positions fit int64.
"""


def require_small_factor(name: str, **numbers: Sequence[int]) -> None:
    """Raise ValueError for attributes that multiply positions and exceed MAX_POSITION_FACTOR."""
    for what, values in numbers.items():
        if any(abs(number) > MAX_POSITION_FACTOR for number in values):
            raise ValueError(
                f"{name}: {what!r} must be at most {MAX_POSITION_FACTOR}, got {tuple(values)}"
            )


def broadcast_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr | None:
    """Broadcast two dimensions; None if they are provably incompatible. A symbol with a constant c
    > 1 gives c; with another symbol, a choice made when both are known: select(n == 1, m, n). A
    choice that already contains the other extent stays as it is, so that repeated additions
    (residuals under a mask) have one extent.
    """
    if is_const(b, 1) or are_equal_dims(a, b):
        return a
    if is_const(a, 1):
        return b
    if known_int(a) is not None and known_int(b) is not None:
        return None
    # Symbolic dimensions may still be equal or 1: the result is formed, and a run checks the
    # assumption.
    assume_condition(lambda: _broadcast_condition(a, b), (a, b))
    if known_int(a) is not None or known_int(b) is not None:
        return a if known_int(a) is not None else b
    if _has_unknown_dim((a, b)):
        return AnyDim()
    factors, other_factors = broadcast_factors(a), broadcast_factors(b)
    if _are_all_among(other_factors, factors):
        return a
    if _are_all_among(factors, other_factors):
        return b
    *first, extent = factors + [
        factor for factor in other_factors if not _are_all_among([factor], factors)
    ]
    for extent_factor in reversed(first):
        extent = Select(fold_binary(EQ, extent_factor, 1), extent, extent_factor, "int64")
    return extent


def broadcast_factors(dim: PrimExpr) -> list[PrimExpr]:
    """Return the extents that a broadcast dimension was built from, or the dimension itself."""
    factors: list[PrimExpr] = []
    while True:
        match dim:
            case Select(condition=EQ(a=a, b=b), true_value=remaining, false_value=one) if is_const(
                b, 1
            ) and is_same_expr(a, one):
                factors.append(one)
                dim = remaining
            case _:
                return [*factors, dim]


def _are_all_among(some: Sequence[PrimExpr], candidates: Sequence[PrimExpr]) -> bool:
    """Return whether every expression is structurally equal to one of the candidates."""
    return all(any(is_same_expr(expr, candidate) for candidate in candidates) for expr in some)


def _broadcast_condition(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return the condition that two dimensions are equal, or one of them 1."""
    condition = a.equal(b)
    for dim in (a, b):
        if known_int(dim) is None:
            condition = Or(condition, dim.equal(1), "bool")
    return condition


def broadcast_shape(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> Shape | None:
    """Broadcast two shapes as NumPy does; None if they are provably incompatible."""
    rank = max(len(a), len(b))
    one = as_dim(1)
    padded_a = (one,) * (rank - len(a)) + tuple(a)
    padded_b = (one,) * (rank - len(b)) + tuple(b)
    dims = [broadcast_dim(x, y) for x, y in zip(padded_a, padded_b, strict=True)]
    return None if None in dims else tuple(d for d in dims if d is not None)


def is_broadcastable_to(shape: Sequence[PrimExpr], target: Sequence[PrimExpr]) -> bool:
    """Return whether a shape broadcasts to a fixed target shape. Unknown extents are assumed to
    match and checked at run time.
    """
    if len(shape) > len(target) or broadcast_shape(shape, target) is None:
        return False
    for own, target_dim in zip(reversed(shape), reversed(target), strict=False):
        if is_const(target_dim, 1) and unify_dim(own, target_dim) is None:
            return False
    return True


def ceil_div(a: PrimExpr, b: int) -> PrimExpr:
    """Return `a / b` rounded up."""
    return (a + (b - 1)) // b if b != 1 else a


def window_extent(
    size: PrimExpr, kernel: Dim, stride: int, before: int, after: int, dilation: int = 1
) -> PrimExpr:
    """Return the number of windows of a convolution or pooling: (size + before + after - reach) //
    stride + 1.
    """
    require_positive("a window", stride=stride, dilation=dilation)
    if is_unknown_dim(size):
        return size
    require_min_extent("a window", "kernel", (as_dim(kernel),), (1,))
    reach = (as_dim(kernel) - 1) * dilation + 1
    assume_condition(
        lambda: windows_fit_condition(size, reach, stride, before, after), (size, reach)
    )
    return _num_windows(simplify_dim((size + (before + after) - reach) // stride + 1), size, reach)


def _num_windows(count: PrimExpr, size: PrimExpr, reach: PrimExpr) -> PrimExpr:
    """Return the number of windows, with its non-negativity assumed where it is symbolic. Raises
    ValueError where it is known to be negative.
    """
    if (known_int(count) or 0) < 0:
        raise ValueError(
            f"a window that reaches over {format_prim_expr(simplify_dim(reach))} elements does not"
            f" fit an axis of {format_prim_expr(size)} with its padding"
        )
    return count


def windows_fit_condition(
    size: PrimExpr, reach: PrimExpr, slack: int, before: int, after: int
) -> PrimExpr:
    """Return the condition that the number of windows is not negative."""
    return size >= simplify_dim(reach - (before + after + slack))


def window_extent_ceil(
    size: PrimExpr, kernel: int, stride: int, before: int, after: int, dilation: int = 1
) -> PrimExpr:
    """Return `window_extent` rounded up; a last window that would start in the padding after is
    dropped.
    """
    require_positive("a window", stride=stride, dilation=dilation)
    if is_unknown_dim(size):
        return size
    reach = (kernel - 1) * dilation + 1
    assume_condition(
        lambda: windows_fit_condition(size, as_dim(reach), 2 * stride - 1, before, after), (size,)
    )
    count = ceil_div(size + (before + after) - reach, stride) + 1
    return simplify_dim(minimum(count, ceil_div(size + before, stride)))


def transposed_window_extent(
    size: PrimExpr,
    kernel: Dim,
    stride: int,
    before: int,
    after: int,
    dilation: int = 1,
    extra: int = 0,
) -> PrimExpr:
    """Return the extent of a transposed convolution: (size - 1) * stride - before - after + reach +
    extra.
    """
    if is_unknown_dim(size):
        return size
    reach = (as_dim(kernel) - 1) * dilation + 1
    extent = simplify_dim((size - 1) * stride + reach + (extra - before - after))
    assume_condition(lambda: extent >= 0, (size, reach))
    return extent


def _is_known_negative(value: PrimExpr) -> bool | None:
    number = known_int(value)
    if number is not None:
        return number < 0
    analyzer = Analyzer()
    if analyzer.can_prove(value >= 0):
        return False
    return True if analyzer.can_prove(value < 0) else None


def _normalize_bound(position: Dim, size: PrimExpr) -> PrimExpr:
    """Return a slice bound counted from the front: negative ones count from the end."""
    value = as_dim(position)
    negative = _is_known_negative(value)
    if negative is None:
        return Select(value < 0, value + size, value, "int64")
    return value + size if negative else value


def slice_range(begin: Dim, end: Dim, stride: int, size: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
    """Return (first index, number of elements) of the NumPy slice `begin:end:stride` of an axis."""
    if is_unknown_dim(size):
        return as_dim(0), AnyDim()
    is_exact = known_int(size) is not None
    first, last = (None if is_exact else known_int(bound) for bound in (begin, end))
    if stride > 0:
        # Larger than any axis: no clamping to the size is needed, which keeps the extent a constant
        # expression.
        open_end = last is not None and last >= OPEN_SLICE_END
        start = maximum(_normalize_bound(begin, size), 0)
        stop = size if open_end else minimum(_normalize_bound(end, size), size)
        return simplify_dim(start), simplify_dim(
            maximum(ceil_div(simplify_dim(stop - start), stride), 0)
        )
    open_begin = first is not None and first >= OPEN_SLICE_END
    open_end = last is not None and last <= -OPEN_SLICE_END
    start = size - 1 if open_begin else minimum(_normalize_bound(begin, size), size - 1)
    stop = as_dim(-1) if open_end else maximum(_normalize_bound(end, size), -1)
    return simplify_dim(start), simplify_dim(
        maximum(ceil_div(simplify_dim(start - stop), -stride), 0)
    )


def infer_reshape(
    shape: Sequence[PrimExpr], newshape: Sequence[Dim], allow_zero: bool = False
) -> Shape:
    """Return the shape that `newshape` with TVM's special values describes for data of `shape`.

    n > 0  that extent                   -2  all dimensions that are left
    0      copies one (unless allowed)   -3  the product of two
    -1     what is left, in one place    -4  splits one into the next two, of which one may be -1

    Each but -2, -3 and -4 passes over one dimension. An expression that is 0, a symbol's value say,
    is the dimension itself.

    Raises ValueError for what has no meaning, and when the numbers of elements are known to differ.
    """
    factors = _parse_newshape(shape, newshape, allow_zero)
    dims = [
        None if dim_factors is None else product_of_dims(dim_factors) for dim_factors in factors
    ]
    known_dims = [d for d in dims if d is not None]
    holes = len(dims) - len(known_dims)
    if holes > 1:
        raise ValueError(f"at most one dimension may be -1, got {holes}")
    if holes == 0:
        before, after = _known_num_elements(shape), _known_num_elements(known_dims)
        if before is not None and after is not None and before != after:
            raise ValueError(f"{before} elements cannot become {after}")
        return tuple(known_dims)
    # Cancelling symbolic factors keeps the dimension exact: n * 4 / n is 4, without a division at
    # run time.
    inferred = _exact_quotient(shape, [d for hole_factors in factors for d in hole_factors or ()])
    return tuple(inferred if d is None else d for d in dims)


def _parse_newshape(
    shape: Sequence[PrimExpr], newshape: Sequence[Dim], allow_zero: bool
) -> list[Sequence[PrimExpr] | None]:
    """Return the factors of each dimension of a new shape; None for the inferred one (-1)."""
    decoded: list[Sequence[PrimExpr] | None] = []
    codes = iter(enumerate(newshape))
    source = 0
    for position, code in codes:
        match known_int(code):
            case 0 if isinstance(code, int) and not allow_zero:
                what = f"0 at axis {position} copies a dimension"
                decoded.append(_read_dims(shape, source, 1, what))
                source += 1
            case -1:
                decoded.append(None)
                source += 1
            case -2:
                decoded += [(d,) for d in shape[source:]]
                source = max(source, len(shape))
            case -3:
                what = f"-3 at axis {position} joins two dimensions"
                decoded.append(_read_dims(shape, source, 2, what))
                source += 2
            case -4:
                what = f"-4 at axis {position} splits a dimension"
                (source_dim,) = _read_dims(shape, source, 1, what)
                split_dims = [split_dim for _, split_dim in islice(codes, 2)]
                decoded += [(d,) for d in _split_dim(source_dim, split_dims, what)]
                source += 1
            case int() as number if number < 0:
                raise ValueError(f"a dimension must be at least -4, got {number}")
            case _:
                decoded.append((as_dim(code),))
                source += 1
    return decoded


def _read_dims(shape: Sequence[PrimExpr], at: int, count: int, what: str) -> Sequence[PrimExpr]:
    if at + count > len(shape):
        raise ValueError(f"{what} that an input of rank {len(shape)} lacks")
    return shape[at : at + count]


def _split_dim(source_dim: PrimExpr, split_dims: Sequence[Dim], what: str) -> list[PrimExpr]:
    """Return the two dimensions that one is split into."""
    numbers = [known_int(split_dim) for split_dim in split_dims]
    if len(split_dims) != 2 or any(n is not None and n < 1 and n != -1 for n in numbers):
        raise ValueError(f"{what}: two parts must follow, of which one may be -1, got {split_dims}")
    if numbers == [-1, -1]:
        raise ValueError(f"{what}: one of its parts must be a number, got {split_dims}")
    if -1 not in numbers:
        if (size := known_int(source_dim)) is not None and None not in numbers:
            count = math.prod(n for n in numbers if n is not None)
            if count != size:
                raise ValueError(
                    f"{what}: {size} cannot become {split_dims[0]} times {split_dims[1]}"
                )
        two_dims = [as_dim(target_dim) for target_dim in split_dims]
        if None in (size, *numbers):
            assume_condition(
                lambda: source_dim.equal(product_of_dims(two_dims)), (source_dim, *two_dims)
            )
        return two_dims
    known_dim = as_dim(split_dims[1 - numbers.index(-1)])
    inferred = AnyDim() if is_unknown_dim(source_dim) else _divide_dims([source_dim], [known_dim])
    return [inferred if number == -1 else known_dim for number in numbers]


def _known_num_elements(shape: Sequence[PrimExpr]) -> int | None:
    numbers = [known_int(d) for d in shape]
    return None if None in numbers else math.prod(n for n in numbers if n is not None)


def _exact_quotient(shape: Sequence[PrimExpr], divisors: Sequence[PrimExpr]) -> PrimExpr:
    """Return product(shape) / product(divisors) after cancelling equal factors."""
    above, below = list(shape), []
    for divisor in divisors:
        position = next(
            (i for i, d in enumerate(above) if are_equal_dims(d, divisor) or d is divisor), None
        )
        if position is None:
            below.append(divisor)
        else:
            del above[position]
    return (
        AnyDim()
        if _has_unknown_dim(above) or _has_unknown_dim(below)
        else _divide_dims(above, below)
    )


def _divide_dims(above: Sequence[PrimExpr], below: Sequence[PrimExpr]) -> PrimExpr:
    top, numerator = _split_known_product(above)
    bottom, denominator = _split_known_product(below)
    # gcd(0, 0) is 0, by which nothing divides.
    common = math.gcd(top, bottom) or 1
    top, bottom = top // common, bottom // common
    if bottom == 0 or (not numerator and not denominator and top % bottom):
        raise ValueError(f"{top * common} elements do not divide by {bottom * common}")
    total = product_of_dims([as_dim(top), *numerator])
    if numerator and not denominator and bottom > 1:  # with 0 elements any count is valid
        assume_condition(lambda: (total % bottom).equal(0), numerator)
    return simplify_dim(total // product_of_dims([as_dim(bottom), *denominator]))


def _split_known_product(dims: Sequence[PrimExpr]) -> tuple[int, list[PrimExpr]]:
    """Return the product of the constant dimensions, and the symbolic ones."""
    numbers = [n for n in map(known_int, dims) if n is not None]
    return math.prod(numbers), [d for d in dims if known_int(d) is None]
