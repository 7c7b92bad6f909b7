"""Dataflow pattern matching with backtracking.

The matcher recurses over the pattern, never over the program: paths to a dominator are walked with
a list. The first way that fits is taken: where an alternative or an order of arguments has matched,
the other is not tried again.

    is_op("add")(x | y, x)      of add(%a, %b): x = %a on the left, so that the right must be that
                                very %a; `y` on the left is not tried then

With full backtracking the time would be exponential in the alternatives; TVM's matcher has none
either.

A pattern object that occurs twice must match one expression, compared by identity: passes that
share equal calls (EliminateCommonSubexpr) come first. What an attempt has matched is on a trail, so
that a failed alternative takes back what it noted and no more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import prove_equal
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import TensorType, Type
from ekiden.relay.dataflow_pattern import pattern as p
from ekiden.relay.expr import Call, Constant, Function, If, Let, Tuple, TupleGetItem, Var
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import children, post_order
from ekiden.runtime.errors import TypeInferenceError

NodeMap = dict[p.DFPattern, list[RelayExpr]]
"""Expressions matched by each pattern: one, or all path nodes of a dominator."""

Users = Mapping[RelayExpr, Sequence[RelayExpr]]
"""Parent expressions of each expression."""


def build_user_map(root: RelayExpr) -> Users:
    """Map every expression below root to its users."""
    users: dict[RelayExpr, list[RelayExpr]] = {}
    for expr in post_order(root, into_functions=True):
        for child in children(expr):
            users.setdefault(child, []).append(expr)
    return users


def match(pattern: p.DFPattern, expr: RelayExpr) -> bool:
    """Return whether an expression matches a pattern."""
    return find_match(pattern, expr) is not None


p.DFPattern.matcher = match


def find_match(pattern: p.DFPattern, expr: RelayExpr, users: Users | None = None) -> NodeMap | None:
    """Match a pattern; return the expressions that its components match, or None.

    `users` are those of the full program, for dominators; without them, those below `expr`.
    """
    matcher = _PatternMatcher(expr, users)
    return matcher.matches_by_pattern if matcher.matches(pattern, expr) else None


class _PatternMatcher:
    """Backtracking matcher with a trail of the components matched so far."""

    def __init__(self, root: RelayExpr, users: Users | None) -> None:
        self.matches_by_pattern: NodeMap = {}
        self._trail: list[p.DFPattern] = []
        self._root = root
        self._users = users

    def matches(self, pattern: p.DFPattern, expr: RelayExpr) -> bool:
        """Match a pattern, and record it; a failed attempt is rolled back."""
        if pattern in self.matches_by_pattern:
            earlier = self.matches_by_pattern[pattern]
            return len(earlier) == 1 and earlier[0] is expr
        # The length of the trail: going back to it forgets what this attempt has added.
        mark = len(self._trail)
        if not _MATCH_RULES[type(pattern)](self, pattern, expr):
            self._backtrack(mark)
            return False
        self._record(pattern, [expr])
        return True

    def _record(self, pattern: p.DFPattern, exprs: list[RelayExpr]) -> None:
        self.matches_by_pattern[pattern] = exprs
        self._trail.append(pattern)

    def _backtrack(self, mark: int) -> None:
        while len(self._trail) > mark:
            self.matches_by_pattern.pop(self._trail.pop(), None)

    def all_match(self, patterns: Sequence[p.DFPattern], exprs: Sequence[RelayExpr]) -> bool:
        """Match patterns pairwise, or record nothing."""
        mark = len(self._trail)
        if len(patterns) == len(exprs) and all(map(self.matches, patterns, exprs)):
            return True
        self._backtrack(mark)
        return False

    def match_call(self, pattern: p.CallPattern, expr: RelayExpr) -> bool:
        """Match callee and arguments, in either order for commutative operators."""
        if not isinstance(expr, Call) or not self.matches(pattern.op, expr.op):
            return False
        if pattern.args is None or self.all_match(pattern.args, expr.args):
            return True
        # The other order is tried only after the written one has failed.
        is_commutative = isinstance(expr.op, Op) and expr.op.definition.commutes
        return is_commutative and self.all_match(pattern.args, expr.args[::-1])

    def match_function(self, pattern: p.FunctionPattern, expr: RelayExpr) -> bool:
        """Match parameters and body."""
        return (
            isinstance(expr, Function)
            and (pattern.params is None or self.all_match(pattern.params, expr.params))
            and self.matches(pattern.body, expr.body)
        )

    def match_dominator(self, pattern: p.DominatorPattern, expr: RelayExpr) -> bool:
        """Match the child, then all backward paths to the parent, then all forward uses of the
        parent.

        A dominator is a fuzzy region: parent, any number of operators on the path, child, such that
        nothing inside is used outside. Backwards it ends at the parent or at constants; forwards
        every user of the parent and of the path must be inside, or a value would be computed twice.
        """
        if not self.matches(pattern.child, expr):
            return False
        path = self._path_to_parent(pattern, expr)
        if path is None or pattern.parent not in self.matches_by_pattern:
            return False
        users = build_user_map(self._root) if self._users is None else self._users
        # The parent is not inside: others may use what it uses.
        inside = {expr, *path}
        parent = self.matches_by_pattern[pattern.parent][0]
        if any(user not in inside for node in (parent, *path) for user in users.get(node, ())):
            return False
        self._record(pattern.path, path)
        return True

    def _path_to_parent(
        self, pattern: p.DominatorPattern, child: RelayExpr
    ) -> list[RelayExpr] | None:
        """Return the expressions between a child and the single parent, or None if a path misses
        it.
        """
        path: dict[RelayExpr, None] = {}
        stack = [child]
        while stack:
            current = stack.pop()
            inputs = children(current)[1:] if isinstance(current, Call) else children(current)
            if not inputs:
                return None
            for operand in inputs:
                if operand in path or self.matches(pattern.parent, operand):
                    continue
                if isinstance(operand, Constant) and len(inputs) > 1:
                    continue
                if not self._matches_path_node(pattern.path, operand):
                    return None
                path[operand] = None
                stack.append(operand)
        return list(path)

    def _matches_path_node(self, pattern: p.DFPattern, expr: RelayExpr) -> bool:
        """Match a path node without recording it, since several may match."""
        mark = len(self._trail)
        matched = self.matches(pattern, expr)
        self._backtrack(mark)
        return matched


def _known_type(expr: RelayExpr) -> Type | None:
    checked = expr.checked_type_or_none()
    if checked is not None:
        return checked
    try:
        return infer_expr_type(expr)
    except TypeInferenceError:
        return None


def _has_shape(expr: RelayExpr, shape: Sequence[int | PrimExpr]) -> bool:
    kind = _known_type(expr)
    if not isinstance(kind, TensorType) or len(kind.shape) != len(shape):
        return False
    expected = [const(d, "int64") if isinstance(d, int) else d for d in shape]
    return all(prove_equal(a, b) for a, b in zip(kind.shape, expected, strict=True))


def _has_attributes(expr: RelayExpr, expected: Mapping[str, object]) -> bool:
    if isinstance(expr, Op):
        return all(
            key == "TOpPattern" and expr.definition.pattern == value
            for key, value in expected.items()
        )
    if isinstance(expr, Function):
        have = expr.attrs or {}
        return all(
            key in have and _is_equal_attr(have[key], value) for key, value in expected.items()
        )
    if isinstance(expr, Call):
        attrs = expr.attrs
        attributes = {k: v for k, v in expected.items() if k != "TOpPattern"}
        kind = expr.op.definition.pattern if isinstance(expr.op, Op) else None
        return expected.get("TOpPattern", kind) == kind and all(
            _has_attribute(attrs, key, value) for key, value in attributes.items()
        )
    return False


def _has_attribute(attrs: object, key: str, value: object) -> bool:
    if isinstance(attrs, Mapping):
        return key in attrs and _is_equal_attr(attrs[key], value)
    return hasattr(attrs, key) and _is_equal_attr(getattr(attrs, key), value)


def _is_equal_attr(have: object, expected: object) -> bool:
    """Return whether attribute values are equal; lists equal tuples, expressions compare
    structurally.
    """
    if isinstance(have, (tuple, list)) and isinstance(expected, (tuple, list)):
        return len(have) == len(expected) and all(map(_is_equal_attr, have, expected))
    if isinstance(have, PrimExpr) or isinstance(expected, PrimExpr):
        pair = [const(v, "int64") if isinstance(v, int) else v for v in (have, expected)]
        return all(isinstance(v, PrimExpr) for v in pair) and prove_equal(*pair)  # type: ignore[arg-type]
    return have == expected


def _match_type(m: _PatternMatcher, q: p.TypePattern, e: RelayExpr) -> bool:
    kind = _known_type(e)
    return kind is not None and structural_equal(kind, q.type) and m.matches(q.pattern, e)


def _match_dtype(m: _PatternMatcher, q: p.DataTypePattern, e: RelayExpr) -> bool:
    kind = _known_type(e)
    return isinstance(kind, TensorType) and kind.dtype == q.dtype and m.matches(q.pattern, e)


# fmt: off
_MATCH_RULES: dict[type[p.DFPattern], Callable[..., bool]] = {
    p.WildcardPattern:     lambda m, q, e: (q.redirected is None
                                            or m.matches(q.redirected, e)),
    p.PredicatePattern:    lambda m, q, e: q.accepts(e),
    p.ExprPattern:         lambda m, q, e: q.expr is e or (type(q.expr) is type(e)
                                                           and structural_equal(q.expr, e)),
    p.VarPattern:          lambda m, q, e: isinstance(e, Var) and q.name in ("", e.name_hint),
    p.ConstantPattern:     lambda m, q, e: isinstance(e, Constant),
    p.CallPattern:         _PatternMatcher.match_call,
    p.FunctionPattern:     _PatternMatcher.match_function,
    p.DominatorPattern:    _PatternMatcher.match_dominator,
    p.TuplePattern:        lambda m, q, e: isinstance(e, Tuple) and (
                               q.fields is None or m.all_match(q.fields, e.fields)),
    p.TupleGetItemPattern: lambda m, q, e: isinstance(e, TupleGetItem) and (
                               q.index in (None, e.index)
                               and m.matches(q.tuple, e.tuple_value)),
    p.IfPattern:           lambda m, q, e: isinstance(e, If) and m.all_match(
                               (q.cond, q.true_branch, q.false_branch),
                               (e.cond, e.true_branch, e.false_branch)),
    p.LetPattern:          lambda m, q, e: isinstance(e, Let) and m.all_match(
                               (q.var, q.value, q.body), (e.var, e.value, e.body)),
    p.AltPattern:          lambda m, q, e: m.matches(q.left, e) or m.matches(q.right, e),
    p.AttrPattern:         lambda m, q, e: _has_attributes(e, q.attrs) and m.matches(q.pattern, e),
    p.TypePattern:         _match_type,
    p.DataTypePattern:     _match_dtype,
    p.ShapePattern:        lambda m, q, e: _has_shape(e, q.shape) and m.matches(q.pattern, e),
}
"""Match functions (matcher, pattern, expression) -> bool by pattern class."""
# fmt: on
