"""Rewrite rule engine: compile rules to patterns indexed by node kind, and apply the first that
matches; walk an expression and apply them to every node.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Generic, TypeAlias, TypeVar

import numpy as np

from ekiden.arith.rewrite_rules import RewriteRule
from ekiden.ir import dtype as dt
from ekiden.ir import prim
from ekiden.ir.intrinsic import call_intrin, find_intrinsic
from ekiden.ir.prim import (
    BinaryExpr,
    Cast,
    FloatImm,
    IntImm,
    Intrinsic,
    Not,
    PrimExpr,
    Select,
    const,
    fold_binary,
)
from ekiden.ir.prim_visitor import children, is_same_expr
from ekiden.runtime.lazy_dataclass import dataclass

PatternBindings: TypeAlias = dict[str, PrimExpr]
ConditionProver: TypeAlias = Callable[[PrimExpr], bool]

# Rules are written as Python expressions and read by Python's own parser: a row is text that a
# reader knows, and a mistake in it is a SyntaxError when the tables are first used. Three things
# are made of a row: patterns of its left side (one for each order of operands that commute), a
# closure that builds its right side, and the parts of its condition.
_NODE_BY_AST_OPERATOR: dict[type[ast.AST], type[BinaryExpr]] = {
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
_NODE_BY_FUNCTION: dict[str, type[BinaryExpr]] = {
    "min": prim.Min,
    "max": prim.Max,
    "truncdiv": prim.Div,
}
_COMMUTATIVE_NODES = (prim.Add, prim.Mul, prim.Min, prim.Max, prim.And, prim.Or, prim.EQ, prim.NE)
_INTEGER_NAMES, _BOOLEAN_NAMES, _CONSTANT_NAMES = (
    frozenset("xyzw"),
    frozenset("pqr"),
    ("c1", "c2", "c3"),
)


@dataclass(frozen=True, slots=True)
class RulePattern:
    """Pattern of a rule's left side: a variable, a number, or a node kind over patterns.

    `root` is a class, the name of an intrinsic, a name, or a number.
    """

    root: type[PrimExpr] | str | int
    operands: tuple[RulePattern, ...] = ()
    is_name: bool = False


_Parts: TypeAlias = tuple[type[PrimExpr] | str | int, Sequence[ast.expr], bool]
"""Parts of a pattern: its head, its operands as syntax trees, and whether it is a name."""


def _compile_pattern(node: ast.expr) -> RulePattern:
    head, operands, is_name = _pattern_parts(node)
    return RulePattern(head, tuple(map(_compile_pattern, operands)), is_name)


def _pattern_parts(node: ast.expr) -> _Parts:
    match node:
        case ast.Name(id=name):
            return name, (), True
        case ast.Constant(value=bool() | int() as number):
            return int(number), (), False
        case ast.BinOp(left=a, op=op, right=b):
            return _NODE_BY_AST_OPERATOR[type(op)], (a, b), False
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            return _NODE_BY_AST_OPERATOR[type(op)], (a, b), False
        case ast.BoolOp(op=op, values=[a, b]):
            return _NODE_BY_AST_OPERATOR[type(op)], (a, b), False
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return Not, (a,), False
        case ast.Call(func=ast.Name(id="truncmod"), args=[a, b]):
            return _pattern_parts(_expand_truncmod(a, b))
        case ast.Call(func=ast.Name(id="select"), args=args):
            return Select, args, False
        case ast.Call(func=ast.Name(id=name), args=args):
            return _NODE_BY_FUNCTION.get(name, name), args, False
    raise ValueError(f"no pattern: {ast.unparse(node)}")


def _expand_truncmod(a: ast.expr, b: ast.expr) -> ast.expr:
    """Expand truncmod(a, b) to a - truncdiv(a, b) * b."""
    quotient = ast.Call(ast.Name("truncdiv"), [a, b], [])
    return ast.BinOp(a, ast.Sub(), ast.BinOp(quotient, ast.Mult(), b))


def _commutative_variants(p: RulePattern) -> list[RulePattern]:
    """Return all variants of a pattern under commutativity."""
    choices = [_commutative_variants(operand) for operand in p.operands]
    patterns = [
        RulePattern(p.root, operands, p.is_name) for operands in itertools.product(*choices)
    ]
    if p.root in _COMMUTATIVE_NODES and p.operands[0] != p.operands[1]:
        patterns += [RulePattern(f.root, f.operands[::-1], False) for f in list(patterns)]
    return patterns


# A name's first letter is its type: rules of whole numbers never match floats, whose sums round.
def _accepts_binding(name: str, e: PrimExpr) -> bool:
    if name in _CONSTANT_NAMES:
        return isinstance(e, IntImm)
    if name in _INTEGER_NAMES:
        return e.dtype in ("int64", "int32") and (name != "w" or not isinstance(e, IntImm))
    return name not in _BOOLEAN_NAMES or e.dtype == "bool"


def _node_kind(e: PrimExpr) -> object:
    """Return the kind of a node that pattern heads compare with."""
    return e.op if isinstance(e, Intrinsic) else type(e)


def _match_pattern(p: RulePattern, e: PrimExpr, bindings: PatternBindings) -> bool:
    """Match an expression against a pattern, and fill in the bindings."""
    head = p.root
    if p.is_name:
        assert isinstance(head, str)
        bound = bindings.get(head)
        if bound is not None:
            return is_same_expr(bound, e)
        # A name that occurs twice must match identical expressions.
        bindings[head] = e
        return _accepts_binding(head, e)
    if isinstance(head, int):
        return isinstance(e, IntImm) and int(e.value) == head
    return _node_kind(e) == head and all(
        _match_pattern(operand, child, bindings)
        for operand, child in zip(p.operands, children(e), strict=True)
    )


ExprBuilder: TypeAlias = Callable[[Mapping[str, PrimExpr], str], PrimExpr]
"""Function (bindings of names, dtype) -> expression; numbers get the dtype."""


def build_expr(node: ast.expr, names: Mapping[str, PrimExpr], dtype: str) -> PrimExpr:
    """Build the right side or a condition from bindings; constants fold."""
    return compile_builder(node)(names, dtype)


def compile_builder(node: ast.expr) -> ExprBuilder:
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
            inner = compile_builder(a)
            return lambda names, dtype: fold_binary(prim.Sub, 0, inner(names, dtype))
        case ast.UnaryOp(op=ast.Not(), operand=a):
            return _not_builder(compile_builder(a))
        case ast.BinOp(left=a, op=ast.Pow(), right=b):
            return _binary_builder(_fold_power, a, b)
        case ast.BinOp(left=a, op=op, right=b):
            return _binary_builder(partial(fold_binary, _NODE_BY_AST_OPERATOR[type(op)]), a, b)
        case ast.Compare(left=a, ops=[op], comparators=[b]):
            return _binary_builder(partial(fold_binary, _NODE_BY_AST_OPERATOR[type(op)]), a, b)
        case ast.BoolOp(op=op, values=[*before, b]):
            a = before[0] if len(before) == 1 else ast.BoolOp(op, before)
            return _binary_builder(partial(fold_binary, _NODE_BY_AST_OPERATOR[type(op)]), a, b)
        case ast.Call(func=ast.Name(id="truncmod"), args=[a, b]):
            return compile_builder(_expand_truncmod(a, b))
        case ast.Call(func=ast.Name(id="select"), args=args):
            return _nary_builder(lambda c, yes, no: Select(c, yes, no, yes.dtype), args)
        case ast.Call(func=ast.Name(id=name), args=[a, b]) if name in _NODE_BY_FUNCTION:
            return _binary_builder(partial(fold_binary, _NODE_BY_FUNCTION[name]), a, b)
        case ast.Call(func=ast.Name(id=name), args=args):
            return _nary_builder(partial(call_intrin, name), args)
    raise ValueError(f"no expression: {ast.unparse(node)}")


def _binary_builder(
    make: Callable[[PrimExpr, PrimExpr], PrimExpr], a: ast.expr, b: ast.expr
) -> ExprBuilder:
    first, second = compile_builder(a), compile_builder(b)
    return lambda names, dtype: make(first(names, dtype), second(names, dtype))


def _nary_builder(make: Callable[..., PrimExpr], args: list[ast.expr]) -> ExprBuilder:
    builders = [compile_builder(arg) for arg in args]
    return lambda names, dtype: make(*(build_arg(names, dtype) for build_arg in builders))


def _not_builder(inner: ExprBuilder) -> ExprBuilder:
    def negated(names: Mapping[str, PrimExpr], dtype: str) -> PrimExpr:
        value = inner(names, dtype)
        return const(not value.value, "bool") if isinstance(value, IntImm) else Not(value)

    return negated


def _fold_power(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    assert isinstance(a, IntImm) and isinstance(b, IntImm)
    return const(a.value**b.value, a.dtype)


@dataclass(frozen=True, slots=True)
class RuleCondition:
    """Condition of a rule, with the names it divides by."""

    build: ExprBuilder
    divisors: tuple[str, ...]


def _compile_condition(node: ast.expr) -> RuleCondition:
    divisors = [
        n.right.id
        for n in ast.walk(node)
        if isinstance(n, ast.BinOp)
        and isinstance(n.op, (ast.Mod, ast.FloorDiv))
        and isinstance(n.right, ast.Name)
    ]
    return RuleCondition(compile_builder(node), tuple(divisors))


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """Compiled rule."""

    pattern: RulePattern
    build_right: ExprBuilder
    conditions: tuple[RuleCondition, ...]
    rule: RewriteRule


def _compile_conditions(text: str) -> tuple[RuleCondition, ...]:
    body = parse_side(text)
    if isinstance(body, ast.Constant):
        return ()
    return tuple(map(_compile_condition, body.values if isinstance(body, ast.BoolOp) else (body,)))


def parse_side(text: str) -> ast.expr:
    """Parse a side of a rule to a Python AST."""
    return ast.parse(text, mode="eval").body


ParsedRule: TypeAlias = tuple[RewriteRule, ast.expr]
"""Rule with the syntax tree of its left side."""


def group_by_root_kind(rules: Sequence[RewriteRule]) -> dict[object, list[ParsedRule]]:
    """Group rules by the kind of their root.

    All left sides are parsed at once, which takes a third of the time that they take one by one.
    """
    rules_by_kind: dict[object, list[ParsedRule]] = {}
    # One parse of all left sides: calling the parser for each rule takes longer than parsing.
    for rule, line in zip(rules, ast.parse("\n".join(r.left for r in rules)).body, strict=True):
        assert isinstance(line, ast.Expr), "a left side is an expression"
        rules_by_kind.setdefault(_pattern_parts(line.value)[0], []).append((rule, line.value))
    return rules_by_kind


def compile_rules(rules: Sequence[ParsedRule], written_first: bool) -> tuple[CompiledRule, ...]:
    """Compile rules in all commutative variants."""
    first: list[CompiledRule] = []
    # The written order of operands is tried for all rules first, so that results look like the
    # rule.
    exchanged = [] if written_first else first
    for rule, lhs in rules:
        right, conditions = (
            compile_builder(parse_side(rule.right)),
            _compile_conditions(rule.condition),
        )
        written = _compile_pattern(lhs)
        orders = [written] if rule.is_noncommutative else _commutative_variants(written)
        variants = [CompiledRule(pattern, right, conditions, rule) for pattern in orders]
        first.append(variants[0])
        exchanged += variants[1:]
    return (*first, *exchanged) if written_first else tuple(first)


class RuleSet:
    """Rule set compiled lazily by root kind, since most programs use few kinds.

    `written_first`: every rule is tried as it is written before any is with operands exchanged, so
    that what stands in a rule's order stays in it.
    """

    def __init__(self, *rules: RewriteRule, written_first: bool = False) -> None:
        self._rules, self._written_first = rules, written_first
        self._by_kind: dict[object, list[ParsedRule]] | None = None
        self._rules_by_kind: dict[object, tuple[CompiledRule, ...]] = {}
        self._candidates_by_kinds: dict[
            tuple[object, tuple[object, ...]], tuple[CompiledRule, ...]
        ] = {}

    # Found once for each combination of kinds that is met; the order of rules stays, as the first
    # that fits is applied.
    def candidates(self, e: PrimExpr) -> tuple[CompiledRule, ...]:
        """Return the rules whose root and child kinds match a node.

        Most others fail at once.
        """
        # Most rules are excluded by the kinds of the children alone, without matching.
        kind, inside = _node_kind(e), tuple(map(_node_kind, children(e)))
        candidates = self._candidates_by_kinds.get((kind, inside))
        if candidates is None:
            candidates = self._candidates_by_kinds[kind, inside] = tuple(
                compiled_rule
                for compiled_rule in self._rules_for_kind(kind)
                if all(
                    _may_match_kind(p, k)
                    for p, k in zip(compiled_rule.pattern.operands, inside, strict=True)
                )
            )
        return candidates

    def _rules_for_kind(self, kind: object) -> tuple[CompiledRule, ...]:
        """Return the rules for nodes of a kind."""
        compiled_rules = self._rules_by_kind.get(kind)
        if compiled_rules is None:
            if self._by_kind is None:
                self._by_kind = group_by_root_kind(self._rules)
            rows = self._by_kind.get(kind, ())
            compiled_rules = self._rules_by_kind[kind] = compile_rules(rows, self._written_first)
        return compiled_rules

    def apply(self, e: PrimExpr, prove: ConditionProver) -> tuple[PrimExpr, RewriteRule] | None:
        """Apply the first matching rule whose conditions are provable; return (result, rule) or
        None.
        """
        for candidate in self.candidates(e):
            bindings: PatternBindings = {}
            if not _match_pattern(candidate.pattern, e, bindings):
                continue
            # Constants of the right side take the dtype of what the rule has matched.
            dtype = next((v.dtype for n, v in bindings.items() if n in _INTEGER_NAMES), "int64")
            if all(_is_proven(c, bindings, dtype, prove) for c in candidate.conditions):
                right = candidate.build_right(bindings, e.dtype if e.dtype != "bool" else dtype)
                return right, candidate.rule
        return None


Form = TypeVar("Form")


class RuleWalker(Generic[Form]):
    """Walker that gives every node of an expression a form, children first, with rules to apply.

    The form is the subclass's: a polynomial (`canonical.CanonicalForm`), or an expression whose
    terms keep their shape (`rewrite_simplify.RewriteSimplifier`).
    """

    rules: ClassVar[RuleSet]
    max_rewrite_depth: ClassVar[int]
    """Maximum number of rules applied in a row, each to the previous one's result, so that rules
    that undo each other terminate."""

    def __init__(self) -> None:
        super().__init__()
        self._memo: dict[int, Form] = {}
        """id of an expression -> its form; `_keepalive` keeps the id from being given to another.
        """
        # By identity, as hashing a tree takes as long as the tree: shared parts are met again and
        # again, and expressions are immutable.
        self._keepalive: list[PrimExpr] = []
        self._rewrite_depth = 0
        """Number of nested rule applications; see max_rewrite_depth."""

    def _walk(self, expr: PrimExpr) -> Form:
        """Return the form of an expression.

        Forms that are not known yet are computed children first, without recursion, as sums have
        tens of thousands of terms.
        """
        # Most expressions are a node over leaves, or over what was met before: children that have
        # a form already are skipped, and the stack seldom holds more than one node.
        stack = [expr]
        while stack:
            node = stack[-1]
            memo = self._memo
            if id(node) in memo:
                stack.pop()
                continue
            unknown = [c for c in children(node) if id(c) not in memo]
            if unknown:
                stack.extend(reversed(unknown))
                continue
            stack.pop()
            memo[id(node)] = self._node_form(node)
            # An id names an object only while it lives.
            self._keepalive.append(node)
        return self._memo[id(expr)]

    def _node_form(self, expr: PrimExpr) -> Form:
        """Return the form of a node whose children have theirs (implemented by the subclass)."""
        raise NotImplementedError

    def can_prove(self, condition: PrimExpr) -> bool:
        """Return whether the condition of a rule holds (implemented by the subclass)."""
        raise NotImplementedError

    def _rewritten_form(self, node: PrimExpr) -> Form | None:
        """Return the form of the first matching rule's result, or None."""
        # Rules apply to what rules made: a search that branches, cut off here.
        if self._rewrite_depth == self.max_rewrite_depth:
            return None
        applied = self.rules.apply(node, self.can_prove)
        return None if applied is None else self._form_of_result(applied[0], applied[1].is_final)

    def _form_of_result(self, result: PrimExpr, is_final: bool = False) -> Form:
        """Return the form of a rule's result, which may have parts that rules match in turn.

        `is_final` asks for the result as the rule has it, where a form can say so.
        """
        del is_final
        self._rewrite_depth += 1
        form = self._walk(result)
        self._rewrite_depth -= 1
        return form


def _may_match_kind(p: RulePattern, kind: object) -> bool:
    """Return whether a pattern can match a node of a kind."""
    if p.is_name:
        return kind is IntImm or p.root not in _CONSTANT_NAMES
    return kind is IntImm if isinstance(p.root, int) else kind == p.root


def fold_constant_call(e: PrimExpr) -> PrimExpr | None:
    """Fold a cast or a pure intrinsic of constants, or return None."""
    match e:
        case Cast(value=IntImm() | FloatImm() as value) if dt.lanes(e.dtype) == 1:
            result = prim.cast(value, e.dtype)
            return None if isinstance(result, Cast) else result
        case Intrinsic(args=[IntImm() as x]) if e.op in ("popcount", "clz", "abs", "bitwise_not"):
            operand = np.asarray(x.value, x.dtype)
            return const(int(find_intrinsic(e.op).reference(operand)), e.dtype)  # type: ignore[call-overload]
    return None


# A condition may divide by a constant of the program before another part of it has said that this
# is not 0, so that is asked first: the rule does not fit then.
def _is_proven(
    condition: RuleCondition, names: PatternBindings, dtype: str, prove: ConditionProver
) -> bool:
    if any(isinstance(d := names[n], IntImm) and d.value == 0 for n in condition.divisors):
        return False
    value = condition.build(names, dtype)
    return bool(value.value) if isinstance(value, IntImm) else prove(value)


__all__ = ["RuleSet", "RuleWalker", "build_expr", "compile_rules", "parse_side"]
