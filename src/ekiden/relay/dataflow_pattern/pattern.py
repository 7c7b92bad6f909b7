"""Dataflow patterns (TVM's relay.dataflow_pattern).

    conv = is_op("nn.conv2d")(wildcard(), is_constant()).has_attr({"kernel_size": (3, 3)})
    block = conv.optional(lambda x: is_op("nn.relu")(x)) | is_op("nn.dense")(wildcard(), wildcard())

A pattern object that stands in several places must match the same expression in all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import get
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import Type
from ekiden.runtime.lazy_dataclass import dataclass


class DFPattern:
    """Base class of dataflow patterns. `p(args)` matches calls, `p | q` either, `p + q` and its
    kind the operators of that name.
    """

    __slots__ = ()

    def __call__(self, *args: DFPattern | None) -> CallPattern:
        """Return the pattern of calls of this with these arguments; `(None)` means any
        arguments.
        """
        if len(args) == 1 and args[0] is None:
            return CallPattern(self, None)
        return CallPattern(self, tuple(a for a in args if a is not None))

    def __or__(self, alternative: DFPattern) -> AltPattern:
        return AltPattern(self, alternative)

    def __add__(self, operand: DFPattern) -> CallPattern:
        return is_op("add")(self, operand)

    def __sub__(self, operand: DFPattern) -> CallPattern:
        return is_op("subtract")(self, operand)

    def __mul__(self, operand: DFPattern) -> CallPattern:
        return is_op("multiply")(self, operand)

    def __truediv__(self, operand: DFPattern) -> CallPattern:
        return is_op("divide")(self, operand)

    def has_attr(self, attrs: Mapping[str, object]) -> AttrPattern:
        """Return this pattern constrained to attribute values.

        They are those of a call, a function, or an operator (`TOpPattern`).
        """
        return AttrPattern(self, dict(attrs))

    def has_type(self, kind: Type) -> TypePattern:
        """Return this pattern constrained to a type."""
        return TypePattern(self, kind)

    def has_dtype(self, dtype: str) -> DataTypePattern:
        """Return this pattern constrained to a dtype."""
        return DataTypePattern(self, dtype)

    def has_shape(self, shape: Sequence[int | PrimExpr]) -> ShapePattern:
        """Return this pattern constrained to a shape."""
        return ShapePattern(self, tuple(shape))

    def optional(self, option: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """Return an alternative of this pattern with and without `option` around it; the longer is
        tried first.
        """
        return AltPattern(option(self), self)

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        """Return this pattern as the child of a DominatorPattern."""
        return DominatorPattern(parent, wildcard() if path is None else path, self)

    def match(self, expr: RelayExpr) -> bool:
        """Return whether an expression matches."""
        return DFPattern.matcher(self, expr)

    def partition(
        self,
        expr: RelayExpr,
        attrs: Mapping[str, object] | None = None,
        check: Callable[[RelayExpr], bool] = lambda expr: True,
    ) -> RelayExpr:
        """Partition every match into a function; see `partition`."""
        return DFPattern.partitioner(self, expr, attrs, check)

    matcher: ClassVar[Callable[[DFPattern, RelayExpr], bool]]
    """Matching function, set by matcher.py to avoid an import cycle."""
    partitioner: ClassVar[Callable[..., RelayExpr]]
    """Partitioning function, set by partition.py to avoid an import cycle."""


@dataclass(frozen=True, eq=False, slots=True)
class WildcardPattern(DFPattern):
    """Pattern of any expression, or a forward reference set by redirect_to, for recursive
    patterns.
    """

    redirected: DFPattern | None = field(default=None, init=False)

    def redirect_to(self, pat: DFPattern) -> None:
        """Redirect this wildcard to a pattern, which may contain it.

        A chain that matches so costs a few frames of Python's stack for each link.
        """
        object.__setattr__(self, "redirected", pat)


@dataclass(frozen=True, eq=False, slots=True)
class ExprPattern(DFPattern):
    """Pattern of a structurally equal expression, such as an operator."""

    expr: RelayExpr


@dataclass(frozen=True, eq=False, slots=True)
class PredicatePattern(DFPattern):
    """Pattern of expressions accepted by a predicate."""

    accepts: Callable[[RelayExpr], bool]


@dataclass(frozen=True, eq=False, slots=True)
class VarPattern(DFPattern):
    """Pattern of a variable by name; any if the name is empty."""

    name: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class ConstantPattern(DFPattern):
    """Pattern of a constant."""


@dataclass(frozen=True, eq=False, slots=True)
class CallPattern(DFPattern):
    """Pattern of a call; `args` None matches any arguments.

    The two arguments of add, multiply, maximum and minimum match in either order.
    """

    op: DFPattern
    args: tuple[DFPattern, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class FunctionPattern(DFPattern):
    """Pattern of a function; `params` None matches any parameters."""

    params: tuple[DFPattern, ...] | None
    body: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class TuplePattern(DFPattern):
    """Pattern of a tuple; `fields` None matches any fields."""

    fields: tuple[DFPattern, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class TupleGetItemPattern(DFPattern):
    """Pattern of a projection; `index` None matches any index."""

    tuple: DFPattern
    index: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class IfPattern(DFPattern):
    """Pattern of an If."""

    cond: DFPattern
    true_branch: DFPattern
    false_branch: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class LetPattern(DFPattern):
    """Pattern of a Let."""

    var: DFPattern
    value: DFPattern
    body: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class AltPattern(DFPattern):
    """Pattern of alternatives, left before right."""

    left: DFPattern
    right: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class AttrPattern(DFPattern):
    """Pattern with attribute constraints."""

    pattern: DFPattern
    attrs: Mapping[str, object]


@dataclass(frozen=True, eq=False, slots=True)
class TypePattern(DFPattern):
    """Pattern with a type constraint."""

    pattern: DFPattern
    type: Type


@dataclass(frozen=True, eq=False, slots=True)
class DataTypePattern(DFPattern):
    """Pattern with a dtype constraint."""

    pattern: DFPattern
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class ShapePattern(DFPattern):
    """Pattern with a shape constraint."""

    pattern: DFPattern
    shape: tuple[int | PrimExpr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class DominatorPattern(DFPattern):
    """Pattern of a diamond: all paths from `child` back over `path` nodes reach one `parent` that
    the child post-dominates.
    """

    parent: DFPattern
    path: DFPattern
    child: DFPattern


def wildcard() -> WildcardPattern:
    """Return a fresh wildcard pattern."""
    return WildcardPattern()


def is_op(name: str) -> ExprPattern:
    """Return a pattern of an operator.

    Raises:
        KeyError: There is no operator of that name.
    """
    return ExprPattern(get(name))


def is_expr(expr: RelayExpr) -> ExprPattern:
    """Return a pattern of a structurally equal expression."""
    return ExprPattern(expr)


def is_var(name: str = "") -> VarPattern:
    """Return a pattern of a variable, by name unless it is empty."""
    return VarPattern(name)


def is_constant() -> ConstantPattern:
    """Return a pattern of a constant."""
    return ConstantPattern()


def is_tuple(fields: Sequence[DFPattern] | None) -> TuplePattern:
    """Return a pattern of a tuple; None matches any fields."""
    return TuplePattern(None if fields is None else tuple(fields))


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    """Return a pattern of a projection; `index` None matches any field."""
    return TupleGetItemPattern(tuple_value, index)


def is_if(cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> IfPattern:
    """Return the pattern of an If."""
    return IfPattern(cond, true_branch, false_branch)


def is_let(var: DFPattern, value: DFPattern, body: DFPattern) -> LetPattern:
    """Return the pattern of a Let."""
    return LetPattern(var, value, body)


def has_attr(attrs: Mapping[str, object], pattern: DFPattern | None = None) -> AttrPattern:
    """Constrain a pattern (default: a wildcard) to attribute values."""
    return AttrPattern(pattern or wildcard(), dict(attrs))


def has_type(kind: Type, pattern: DFPattern | None = None) -> TypePattern:
    """Constrain a pattern (default: a wildcard) to a type."""
    return TypePattern(pattern or wildcard(), kind)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    """Constrain a pattern (default: a wildcard) to a dtype."""
    return DataTypePattern(pattern or wildcard(), dtype)


def has_shape(shape: Sequence[int | PrimExpr], pattern: DFPattern | None = None) -> ShapePattern:
    """Constrain a pattern (default: a wildcard) to a shape."""
    return ShapePattern(pattern or wildcard(), tuple(shape))


def dominates(
    parent: DFPattern, path: DFPattern | None = None, child: DFPattern | None = None
) -> DominatorPattern:
    """Return a dominator pattern; omitted patterns are wildcards."""
    return DominatorPattern(parent, path or wildcard(), child or wildcard())
