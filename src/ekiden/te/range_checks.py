"""Run-time bounds checks of data that index tensors.

A computation lists its checks in the attribute RANGE_CHECKS_ATTR_KEY. The lowering emits
`emit_violation_search` before the computation's loops (or a vectorised pass that guards the
search), so that nothing is written, or read at an index, before all indices are validated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

from ekiden.arith import Analyzer
from ekiden.ir import dtype as dt
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.node import Node, node
from ekiden.ir.prim import (
    ExprLike,
    IntImm,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    convert,
    logical_and,
)
from ekiden.te import reducer
from ekiden.te.tensor import Operation, Tensor, compute
from ekiden.tir.stmt import AssertStmt, For, ForKind, Stmt

RANGE_CHECKS_ATTR_KEY = "checks"
"""Attribute key of a computation's run-time checks."""
RANGE_ERROR = "IndexRangeError"
"""Error kind of an index out of range."""
NUMERIC_ERROR = "LinAlgError"
"""Error kind of a failed matrix decomposition."""
_CURRENT_CHECK_SITE: ContextVar[int | None] = ContextVar("site", default=None)


@node("te.RangeCheck")
class RangeCheck(Node):
    """Check that every element of `values` is in [low, high).

    subject: begins the message: "take: index". bound: what the numbers are out of range for, with a
    "{}" for each of `shown`: "axis 0 of size {}". site: which of the operators of a kernel this is,
    None where that is unknown. kind: the class of the error. problem: what is wrong with a value
    that is not a place: "is 0, the matrix is singular".
    """

    subject: str
    values: Tensor
    low: PrimExpr
    high: PrimExpr
    bound: str = ""
    shown: tuple[PrimExpr, ...] = ()
    site: int | None = None
    kind: str = RANGE_ERROR
    problem: str = ""

    def is_in_range(self, value: PrimExpr) -> PrimExpr:
        """Return whether a value is in range."""
        wide = cast(value, "int64")
        return logical_and(wide >= self.low, wide < self.high)

    def map_bounds(self, change: Callable[[PrimExpr], PrimExpr]) -> RangeCheck:
        """Return the check with its bounds mapped, which may be data."""
        shown = tuple(map(change, self.shown))
        return self.with_fields(low=change(self.low), high=change(self.high), shown=shown)

    def create_assert(self, value: PrimExpr, position: Sequence[PrimExpr]) -> AssertStmt:
        """Return the assertion that fails for an out-of-range value at a position."""
        text = check_message_format(self.subject, len(position), self.bound, self.problem)
        text = text if self.site is None else f"#{self.site} {text}"
        ends = () if self.problem else (*self.shown, self.low, self.high - 1)
        shown = (value, *position, *ends)
        return AssertStmt(
            self.is_in_range(value),
            text,
            self.kind,
            tuple(cast(convert(v), "int64") for v in shown),
        )


def check_message_format(subject: str, rank: int, bound: str, problem: str = "") -> str:
    """Return the format string of a check's message: of the value, its position, the numbers of
    `bound`, and the valid range; of the first two alone where `problem` is given.
    """
    at = ", ".join(["{}"] * rank)
    position_text = f" at position {at if rank == 1 else f'({at})'}" if rank else ""
    if problem:
        return f"{subject} {{}}{position_text} {problem}"
    what = f" for {bound}" if bound else ""
    return f"{subject} {{}}{position_text} is out of range{what} ([{{}}, {{}}] are valid)"


@contextmanager
def check_site(number: int | None) -> Iterator[None]:
    """Attribute the checks created inside to the operator of this number."""
    token = _CURRENT_CHECK_SITE.set(number)
    try:
        yield
    finally:
        _CURRENT_CHECK_SITE.reset(token)


def range_check(
    subject: str,
    values: Tensor,
    low: ExprLike,
    high: ExprLike,
    bound: str = "",
    shown: Sequence[PrimExpr] = (),
) -> RangeCheck:
    """Return a check of numbers that are no indices, such as lengths or coordinates."""
    lowest, end = (cast(convert(e, "int64"), "int64") for e in (low, high))
    return RangeCheck(subject, values, lowest, end, bound, tuple(shown), _CURRENT_CHECK_SITE.get())


def info_check(subject: str, info: Tensor, problem: str) -> RangeCheck:
    """Return a check of a decomposition's status for each of its matrices: 0 is success."""
    low, high = const(0, "int64"), const(1, "int64")
    return RangeCheck(
        subject,
        info,
        low,
        high,
        site=_CURRENT_CHECK_SITE.get(),
        kind=NUMERIC_ERROR,
        problem=problem,
    )


def index_check(
    name: str, indices: Tensor, size: PrimExpr, axis: int | None, what: str = "index"
) -> RangeCheck:
    """Return the check of indices of an axis (None: of the flattened data); negative ones count
    from the end.
    """
    bound = index_bound_text(axis)
    # Unsigned indices cannot count from the end.
    low = const(0) if dt.is_unsigned(indices.dtype) else const(0) - size
    return range_check(f"{name}: {what}", indices, low, size, bound, (size,))


def extent_checks(
    name: str,
    inner: Sequence[PrimExpr],
    outer: Sequence[PrimExpr],
    indexed: int | None = None,
    what: tuple[str, str] = ("indices", "data"),
) -> tuple[RangeCheck, ...]:
    """Return the checks that indices are not longer than the data along all axes but the indexed
    one; `what` names other arguments. Raises ValueError where they are known to be.
    """
    checks, prove = [], Analyzer().can_prove
    for axis, (size, limit) in enumerate(zip(inner, outer, strict=False)):
        if axis == indexed or prove(size <= limit):
            continue
        if prove(size > limit):
            raise ValueError(
                f"{name}: {what[0]!r} must not be longer than {what[1]!r} along axis {axis}, got"
                f" {format_prim_expr(size)} and {format_prim_expr(limit)}"
            )
        # An extent that only the run knows is checked as a tensor of rank 0, with the same code as
        # indices.
        extent = compute((), partial(_identity, size), name="extent", tag="injective")
        subject = f"{name}: extent of {what[0]!r} along axis {axis}"
        checks.append(range_check(subject, extent, 0, limit + 1))
    return tuple(checks)


def _identity(value: PrimExpr) -> PrimExpr:
    return value


def index_bound_text(axis: int | None) -> str:
    """Return the text of what an index is out of range for."""
    return "{} elements" if axis is None else f"axis {axis} of size {{}}"


def normalize_negative_index(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    """Return the position of a checked index."""
    wide = cast(index, "int64")
    if dt.is_unsigned(dt.element_dtype(index.dtype)):
        return wide
    if isinstance(index, IntImm):
        return wide if index.value >= 0 else wide + size
    return Select(wide < 0, wide + size, wide, "int64")


def range_checks_of(op: Operation) -> tuple[RangeCheck, ...]:
    """Return the checks of a computation."""
    checks = op.attrs.get(RANGE_CHECKS_ATTR_KEY, ())
    assert isinstance(checks, tuple)
    return checks


def out_of_range_flag(check: RangeCheck) -> Tensor:
    """Return a tensor of rank 0 that is above 0 where any value is out of range."""
    values = check.values
    axes = [reducer.reduce_axis((0, d), f"at{n}") for n, d in enumerate(values.shape)]
    right, wrong = const(0, "int32"), const(1, "int32")
    return compute(
        (),
        lambda: reducer.max(Select(check.is_in_range(values[axes]), right, wrong, "int32"), axes),
        name="out_of_range",
    )


def emit_violation_search(
    check: RangeCheck, element: Callable[[Sequence[PrimExpr]], PrimExpr]
) -> Stmt:
    """Emit loops over the checked values that fail at the first one out of range. `element` gives
    the value at a position.
    """
    at = [Var(f"at{n}") for n in range(check.values.ndim)]
    body: Stmt = check.create_assert(element(at), at)
    for var, extent in zip(reversed(at), reversed(check.values.shape), strict=True):
        body = For(var, const(0), extent, ForKind.SERIAL, body)
    return body
