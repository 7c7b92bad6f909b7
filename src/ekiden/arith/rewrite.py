"""Rewrite rule engine: compile rules to patterns indexed by node kind, and apply the first that
matches.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np

from ekiden.arith.rules import NORMAL, REWRITES, Rule
from ekiden.ir import dtype as dt
from ekiden.ir import prim
from ekiden.ir.intrinsic import call_intrin, row_of
from ekiden.ir.prim import (
    BinaryExpr,
    Cast,
    FloatImm,
    IntImm,
    Intrinsic,
    Not,
    PrimExpr,
    Select,
    binary,
    const,
)
from ekiden.ir.prim_visitor import children, same
from ekiden.runtime.lazy_dataclass import dataclass

Match: TypeAlias = dict[str, PrimExpr]
Prove: TypeAlias = Callable[[PrimExpr], bool]

# Rules are written as Python expressions and read by Python's own parser: a row is text that a
# reader knows, and a mistake in it is a SyntaxError when the tables are first used. Three things
# are made of a row: patterns of its left side (one for each order of operands that commute), a
# closure that builds its right side, and the parts of its condition.
_OPERATORS: dict[type[ast.AST], type[BinaryExpr]] = {
    ast.Add: prim.Add,
    ast.Sub: prim.Sub,
    ast.Mult: prim.Mul,
    ast.FloorDiv: prim.FloorDiv,
    ast.Mod: prim.FloorMod,
    ast.And: prim.And,
    ast.Or: prim.Or,
    ast.Eq: prim.EQ,
    ast.NotEq: prim.NE,
    ast.Lt: prim.LT,
    ast.LtE: prim.LE,
    ast.Gt: prim.GT,
    ast.GtE: prim.GE,
}
_FUNCTIONS: dict[str, type[BinaryExpr]] = {
    "min": prim.Min,
    "max": prim.Max,
    "truncdiv": prim.Div,
}
_COMMUTE = (prim.Add, prim.Mul, prim.Min, prim.Max, prim.And, prim.Or, prim.EQ, prim.NE)
_NUMBERS, _CONDITIONS, _CONSTANTS = frozenset("xyzw"), frozenset("pqr"), ("c1", "c2", "c3")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Pattern of a rule's left side: a variable, a number, or a node kind over patterns.

    `head` is a class, the name of an intrinsic, a name, or a number.
    """

    head: type[PrimExpr] | str | int
    parts: tuple[Pattern, ...] = ()
    is_name: bool = False


_Parts: TypeAlias = tuple[type[PrimExpr] | str | int, Sequence[ast.expr], bool]
"""What a pattern is made of: its head, its operands as trees, whether it is a name."""


def _pattern(node: ast.expr) -> Pattern:
    head, operands, is_name = _parts(node)
    return Pattern(head, tuple(map(_pattern, operands)), is_name)


def _parts(node: ast.expr) -> _Parts:
    match node:
        case ast.Name(id=name):
            return name, (), True
        case ast.Constant(value=bool() | int() as number):
            return int(number), (), False
        case ast.BinOp(left=a, op=op, right=b):
            return _OPERATORS[type(op)], (a, b), False
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            return _OPERATORS[type(op)], (a, b), False
        case ast.BoolOp(op=op, values=[a, b]):
            return _OPERATORS[type(op)], (a, b), False
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return Not, (a,), False
        case ast.Call(func=ast.Name(id="truncmod"), args=[a, b]):
            return _parts(_rest(a, b))
        case ast.Call(func=ast.Name(id="select"), args=args):
            return Select, args, False
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS.get(name, name), args, False
    raise ValueError(f"no pattern: {ast.unparse(node)}")


def _rest(a: ast.expr, b: ast.expr) -> ast.expr:
    """Expand truncmod(a, b) to a - truncdiv(a, b) * b."""
    quotient = ast.Call(ast.Name("truncdiv"), [a, b], [])
    return ast.BinOp(a, ast.Sub(), ast.BinOp(quotient, ast.Mult(), b))


def _orders(p: Pattern) -> list[Pattern]:
    """Return all variants of a pattern under commutativity."""
    choices = [_orders(operand) for operand in p.parts]
    patterns = [Pattern(p.head, operands, p.is_name) for operands in itertools.product(*choices)]
    if p.head in _COMMUTE and p.parts[0] != p.parts[1]:
        patterns += [Pattern(f.head, f.parts[::-1], False) for f in list(patterns)]
    return patterns


# A name's first letter is its type: rules of whole numbers never match floats, whose sums round.
def _accepts(name: str, e: PrimExpr) -> bool:
    if name in _CONSTANTS:
        return isinstance(e, IntImm)
    if name in _NUMBERS:
        return e.dtype in ("int64", "int32") and (name != "w" or not isinstance(e, IntImm))
    return name not in _CONDITIONS or e.dtype == "bool"


def _kind(e: PrimExpr) -> object:
    """Return the kind of a node that pattern heads compare with."""
    return e.op if isinstance(e, Intrinsic) else type(e)


def _match(p: Pattern, e: PrimExpr, bindings: Match) -> bool:
    """Match an expression against a pattern, and fill in the bindings."""
    head = p.head
    if p.is_name:
        assert isinstance(head, str)
        bound = bindings.get(head)
        if bound is not None:
            return same(bound, e)
        # A name that occurs twice must match identical expressions.
        bindings[head] = e
        return _accepts(head, e)
    if isinstance(head, int):
        return isinstance(e, IntImm) and int(e.value) == head
    return _kind(e) == head and all(
        _match(operand, child, bindings)
        for operand, child in zip(p.parts, children(e), strict=True)
    )


Builder: TypeAlias = Callable[[Mapping[str, PrimExpr], str], PrimExpr]
"""An expression from what the names stand for; numbers get the dtype."""


def build(node: ast.expr, names: Mapping[str, PrimExpr], dtype: str) -> PrimExpr:
    """Build the right side or a condition from bindings; constants fold."""
    return builder(node)(names, dtype)


def builder(node: ast.expr) -> Builder:
    """Compile a side of a rule to a builder function.

    The tree is read once, here. Raises ValueError for a tree that is no expression.
    """
    match node:
        case ast.Name(id=name):
            return lambda names, dtype: names[name]
        case ast.Constant(value=bool() as truth):
            return lambda names, dtype: const(truth, "bool")
        case ast.Constant(value=int() as number):
            return lambda names, dtype: const(number, dtype)
        case ast.UnaryOp(op=ast.USub(), operand=a):
            inner = builder(a)
            return lambda names, dtype: binary(prim.Sub, 0, inner(names, dtype))
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return _negation(builder(a))
        case ast.BinOp(left=a, op=ast.Pow(), right=b):
            return _of_two(_power, a, b)
        case ast.BinOp(left=a, op=op, right=b):
            return _of_two(partial(binary, _OPERATORS[type(op)]), a, b)
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            return _of_two(partial(binary, _OPERATORS[type(op)]), a, b)
        case ast.BoolOp(op=op, values=[*before, b]):
            a = before[0] if len(before) == 1 else ast.BoolOp(op, before)
            return _of_two(partial(binary, _OPERATORS[type(op)]), a, b)
        case ast.Call(func=ast.Name(id="truncmod"), args=[a, b]):
            return builder(_rest(a, b))
        case ast.Call(func=ast.Name(id="select"), args=args):
            return _of_many(lambda c, yes, no: Select(c, yes, no, yes.dtype), args)
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _FUNCTIONS:
            return _of_two(partial(binary, _FUNCTIONS[name]), a, b)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _of_many(partial(call_intrin, name), args)
    raise ValueError(f"no expression: {ast.unparse(node)}")


def _of_two(make: Callable[[PrimExpr, PrimExpr], PrimExpr], a: ast.expr, b: ast.expr) -> Builder:
    first, second = builder(a), builder(b)
    return lambda names, dtype: make(first(names, dtype), second(names, dtype))


def _of_many(make: Callable[..., PrimExpr], args: list[ast.expr]) -> Builder:
    builders = [builder(arg) for arg in args]
    return lambda names, dtype: make(*(build_arg(names, dtype) for build_arg in builders))


def _negation(inner: Builder) -> Builder:
    def negated(names: Mapping[str, PrimExpr], dtype: str) -> PrimExpr:
        value = inner(names, dtype)
        return const(not value.value, "bool") if isinstance(value, IntImm) else Not(value)

    return negated


def _power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    assert isinstance(a, IntImm) and isinstance(b, IntImm)
    return const(a.value**b.value, a.dtype)


@dataclass(frozen=True, slots=True)
class Condition:
    """Condition of a rule, with the names it divides by."""

    build: Builder
    divisors: tuple[str, ...]


def _condition(node: ast.expr) -> Condition:
    divisors = [
        n.right.id
        for n in ast.walk(node)
        if isinstance(n, ast.BinOp)
        and isinstance(n.op, (ast.Mod, ast.FloorDiv))
        and isinstance(n.right, ast.Name)
    ]
    return Condition(builder(node), tuple(divisors))


@dataclass(frozen=True, slots=True)
class Compiled:
    """Compiled rule."""

    pattern: Pattern
    right: Builder
    conditions: tuple[Condition, ...]
    rule: Rule


def _conditions(text: str) -> tuple[Condition, ...]:
    body = parsed(text)
    if isinstance(body, ast.Constant):
        return ()
    return tuple(map(_condition, body.values if isinstance(body, ast.BoolOp) else (body,)))


def parsed(text: str) -> ast.expr:
    """Parse a side of a rule to a Python AST."""
    return ast.parse(text, mode="eval").body


Written: TypeAlias = tuple[Rule, ast.expr]
"""A rule and the tree of its left side."""


def by_kind(rules: Sequence[Rule]) -> dict[object, list[Written]]:
    """Group rules by the kind of their root.

    All left sides are parsed at once, which takes a third of the time that they take one by one.
    """
    rules_by_kind: dict[object, list[Written]] = {}
    # One parse of all left sides: calling the parser for each rule takes longer than parsing.
    for rule, line in zip(rules, ast.parse("\n".join(r.left for r in rules)).body, strict=True):
        assert isinstance(line, ast.Expr), "a left side is an expression"
        rules_by_kind.setdefault(_parts(line.value)[0], []).append((rule, line.value))
    return rules_by_kind


def compiled(rules: Sequence[Written], written_first: bool) -> tuple[Compiled, ...]:
    """Compile rules in all commutative variants."""
    first: list[Compiled] = []
    # The written order of operands is tried for all rules first, so that results look like the
    # rule.
    exchanged = [] if written_first else first
    for rule, lhs in rules:
        right, conditions = builder(parsed(rule.right)), _conditions(rule.condition)
        written = _pattern(lhs)
        orders = [written] if rule.fixed else _orders(written)
        variants = [Compiled(pattern, right, conditions, rule) for pattern in orders]
        first.append(variants[0])
        exchanged += variants[1:]
    return (*first, *exchanged) if written_first else tuple(first)


class Rules:
    """Rule set compiled lazily by root kind, since most programs use few kinds.

    `written_first`: every rule is tried as it is written before any is with operands exchanged, so
    that what stands in a rule's order stays in it.
    """

    def __init__(self, *rules: Rule, written_first: bool = False) -> None:
        self._rules, self._written_first = rules, written_first
        self._by_kind: dict[object, list[Written]] | None = None
        self._table: dict[object, tuple[Compiled, ...]] = {}
        self._found: dict[tuple[object, tuple[object, ...]], tuple[Compiled, ...]] = {}

    # Found once for each combination of kinds that is met; the order of rules stays, as the first
    # that fits is applied.
    def candidates(self, e: PrimExpr) -> tuple[Compiled, ...]:
        """Return the rules whose root and child kinds match a node.

        Most others fail at once.
        """
        # Most rules are excluded by the kinds of the children alone, without matching.
        kind, inside = _kind(e), tuple(map(_kind, children(e)))
        candidates = self._found.get((kind, inside))
        if candidates is None:
            candidates = self._found[kind, inside] = tuple(
                compiled_rule
                for compiled_rule in self._of(kind)
                if all(
                    _may_be(p, k) for p, k in zip(compiled_rule.pattern.parts, inside, strict=True)
                )
            )
        return candidates

    def _of(self, kind: object) -> tuple[Compiled, ...]:
        """Return the rules for nodes of a kind."""
        compiled_rules = self._table.get(kind)
        if compiled_rules is None:
            if self._by_kind is None:
                self._by_kind = by_kind(self._rules)
            rows = self._by_kind.get(kind, ())
            compiled_rules = self._table[kind] = compiled(rows, self._written_first)
        return compiled_rules

    def apply(self, e: PrimExpr, prove: Prove) -> tuple[PrimExpr, Rule] | None:
        """Apply the first matching rule whose conditions are provable; return (result, rule) or
        None.
        """
        for candidate in self.candidates(e):
            bindings: Match = {}
            if not _match(candidate.pattern, e, bindings):
                continue
            # Constants of the right side take the dtype of what the rule has matched.
            dtype = next((v.dtype for n, v in bindings.items() if n in _NUMBERS), "int64")
            if all(_holds(c, bindings, dtype, prove) for c in candidate.conditions):
                right = candidate.right(bindings, e.dtype if e.dtype != "bool" else dtype)
                return right, candidate.rule
        return None


CANONICAL = Rules(*REWRITES, *NORMAL)
"""What brings a node to its normal form."""


def _may_be(p: Pattern, kind: object) -> bool:
    """Return whether a pattern can match a node of a kind."""
    if p.is_name:
        return kind is IntImm or p.head not in _CONSTANTS
    return kind is IntImm if isinstance(p.head, int) else kind == p.head


def folded(e: PrimExpr) -> PrimExpr | None:
    """Fold a cast or a pure intrinsic of constants, or return None."""
    match e:
        case Cast(value=IntImm() | FloatImm() as value) if dt.lanes(e.dtype) == 1:
            result = prim.cast(value, e.dtype)
            return None if isinstance(result, Cast) else result
        case Intrinsic(args=[IntImm() as x]) if e.op in ("popcount", "clz", "abs", "bitwise_not"):
            operand = np.asarray(x.value, x.dtype)
            return const(int(row_of(e.op).reference(operand)), e.dtype)  # type: ignore[call-overload]
    return None


# A condition may divide by a constant of the program before another part of it has said that this
# is not 0, so that is asked first: the rule does not fit then.
def _holds(condition: Condition, names: Match, dtype: str, prove: Prove) -> bool:
    if any(isinstance(d := names[n], IntImm) and d.value == 0 for n in condition.divisors):
        return False
    value = condition.build(names, dtype)
    return bool(value.value) if isinstance(value, IntImm) else prove(value)


__all__ = ["CANONICAL", "Rules", "build", "compiled", "parsed"]
