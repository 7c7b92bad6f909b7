"""The patterns: what an expression may look like (TVM's relay.dataflow_pattern).

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
    """Base of patterns. `p(args)` matches calls, `p | q` either, `p + q` and its kind the operators
    of that name.
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
        """Return the same pattern with attributes of these values.

        They are those of a call, a function, or an operator (`TOpPattern`).
        """
        return AttrPattern(self, dict(attrs))

    def has_type(self, kind: Type) -> TypePattern:
        """Return the same pattern with this type."""
        return TypePattern(self, kind)

    def has_dtype(self, dtype: str) -> DataTypePattern:
        """Return the same pattern for a tensor of this dtype."""
        return DataTypePattern(self, dtype)

    def has_shape(self, shape: Sequence[int | PrimExpr]) -> ShapePattern:
        """Return the same pattern for a tensor of this shape."""
        return ShapePattern(self, tuple(shape))

    def optional(self, option: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """Return this pattern with or without `option` around it; the longer form is tried
        first.
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
        """Return the expression with every match in a function of its own; see `partition`."""
        return DFPattern.partitioner(self, expr, attrs, check)

    matcher: ClassVar[Callable[[DFPattern, RelayExpr], bool]]
    """Set by matcher.py, which stands on this file."""
    partitioner: ClassVar[Callable[..., RelayExpr]]
    """Set by partition.py."""


@dataclass(frozen=True, eq=False, slots=True)
class WildcardPattern(DFPattern):
    """Anything, or what it was redirected to: so a pattern holds itself."""

    redirected: DFPattern | None = field(default=None, init=False)

    def redirect_to(self, pat: DFPattern) -> None:
        """Match, from now on, the same as `pat`, which may hold this one.

        A chain that matches so costs a few frames of Python's stack for each link.
        """
        object.__setattr__(self, "redirected", pat)


@dataclass(frozen=True, eq=False, slots=True)
class ExprPattern(DFPattern):
    """An expression that is structurally equal to this one; an operator."""

    expr: RelayExpr


@dataclass(frozen=True, eq=False, slots=True)
class PredicatePattern(DFPattern):
    """An expression that a function accepts."""

    accepts: Callable[[RelayExpr], bool]


@dataclass(frozen=True, eq=False, slots=True)
class VarPattern(DFPattern):
    """A variable, of any name if this one is empty."""

    name: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class ConstantPattern(DFPattern):
    """A constant."""


@dataclass(frozen=True, eq=False, slots=True)
class CallPattern(DFPattern):
    """A call; `args` None: of any arguments.

    The two arguments of add, multiply, maximum and minimum match in either order.
    """

    op: DFPattern
    args: tuple[DFPattern, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class FunctionPattern(DFPattern):
    """A function; `params` None: of any parameters."""

    params: tuple[DFPattern, ...] | None
    body: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class TuplePattern(DFPattern):
    """A tuple; `fields` None: of any fields."""

    fields: tuple[DFPattern, ...] | None


@dataclass(frozen=True, eq=False, slots=True)
class TupleGetItemPattern(DFPattern):
    """A projection; `index` None: any."""

    tuple: DFPattern
    index: int | None = None


@dataclass(frozen=True, eq=False, slots=True)
class IfPattern(DFPattern):
    """An If."""

    cond: DFPattern
    true_branch: DFPattern
    false_branch: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class LetPattern(DFPattern):
    """A Let."""

    var: DFPattern
    value: DFPattern
    body: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class AltPattern(DFPattern):
    """The left pattern, or else the right one."""

    left: DFPattern
    right: DFPattern


@dataclass(frozen=True, eq=False, slots=True)
class AttrPattern(DFPattern):
    """A pattern with attributes."""

    pattern: DFPattern
    attrs: Mapping[str, object]


@dataclass(frozen=True, eq=False, slots=True)
class TypePattern(DFPattern):
    """A pattern of a type."""

    pattern: DFPattern
    type: Type


@dataclass(frozen=True, eq=False, slots=True)
class DataTypePattern(DFPattern):
    """A pattern of a dtype."""

    pattern: DFPattern
    dtype: str


@dataclass(frozen=True, eq=False, slots=True)
class ShapePattern(DFPattern):
    """A pattern of a shape."""

    pattern: DFPattern
    shape: tuple[int | PrimExpr, ...]


@dataclass(frozen=True, eq=False, slots=True)
class DominatorPattern(DFPattern):
    """`child`, all of whose inputs lead back over `path` nodes to one `parent`, and every use of
    the parent leads to the child.
    """

    parent: DFPattern
    path: DFPattern
    child: DFPattern


def wildcard() -> WildcardPattern:
    """Return a pattern of anything, a new object each time, so that two of them may match
    differently.
    """
    return WildcardPattern()


def is_op(name: str) -> ExprPattern:
    """Return the pattern of an operator.

    Raises:
        KeyError: There is no operator of that name.
    """
    return ExprPattern(get(name))


def is_expr(expr: RelayExpr) -> ExprPattern:
    """Return the pattern of an expression structurally equal to this one."""
    return ExprPattern(expr)


def is_var(name: str = "") -> VarPattern:
    """Return the pattern of a variable, of this name if it is not empty."""
    return VarPattern(name)


def is_constant() -> ConstantPattern:
    """Return the pattern of a constant."""
    return ConstantPattern()


def is_tuple(fields: Sequence[DFPattern] | None) -> TuplePattern:
    """Return the pattern of a tuple of these fields; None means any fields."""
    return TuplePattern(None if fields is None else tuple(fields))


def is_tuple_get_item(tuple_value: DFPattern, index: int | None = None) -> TupleGetItemPattern:
    """Return the pattern of a projection of a tuple; `index` None means any field."""
    return TupleGetItemPattern(tuple_value, index)


def is_if(cond: DFPattern, true_branch: DFPattern, false_branch: DFPattern) -> IfPattern:
    """Return the pattern of an If."""
    return IfPattern(cond, true_branch, false_branch)


def is_let(var: DFPattern, value: DFPattern, body: DFPattern) -> LetPattern:
    """Return the pattern of a Let."""
    return LetPattern(var, value, body)


def has_attr(attrs: Mapping[str, object], pattern: DFPattern | None = None) -> AttrPattern:
    """Return the pattern, or a wildcard, with these attributes."""
    return AttrPattern(pattern or wildcard(), dict(attrs))


def has_type(kind: Type, pattern: DFPattern | None = None) -> TypePattern:
    """Return the pattern, or a wildcard, with this type."""
    return TypePattern(pattern or wildcard(), kind)


def has_dtype(dtype: str, pattern: DFPattern | None = None) -> DataTypePattern:
    """Return the pattern, or a wildcard, for a tensor of this dtype."""
    return DataTypePattern(pattern or wildcard(), dtype)


def has_shape(shape: Sequence[int | PrimExpr], pattern: DFPattern | None = None) -> ShapePattern:
    """Return the pattern, or a wildcard, for a tensor of this shape."""
    return ShapePattern(pattern or wildcard(), tuple(shape))


def dominates(
    parent: DFPattern, path: DFPattern | None = None, child: DFPattern | None = None
) -> DominatorPattern:
    """Return a DominatorPattern; omitted patterns are wildcards."""
    return DominatorPattern(parent, path or wildcard(), child or wildcard())
