"""Pattern-based rewriting.

class DropDoubleNegation(DFPatternCallback):
    def __init__(self):
        super().__init__()
        self.x = wildcard()
        self.pattern = is_op("negative")(is_op("negative")(self.x))

    def callback(self, pre, post, node_map):
        return node_map[self.x][0]

rewrite(DropDoubleNegation(), expr)      # negative(negative(%x))   ->   %x

One round visits every expression of the program as it was, inner ones first; patterns are matched
there, and the callback gets both the old expression and the new one, over parts that are rewritten.
So of matches that overlap both are replaced, the outer one over the result of the inner. Rounds go
on until one changes nothing, or MAX_ROUNDS; what a round costs is linear, but for dominators.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_equal
from ekiden.relay.dataflow_pattern.matcher import NodeMap, build_user_map, find_match
from ekiden.relay.dataflow_pattern.pattern import DFPattern, wildcard
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import children, post_order, rebuild
from ekiden.runtime.errors import PassError

MAX_REWRITE_ROUNDS = 100
"""Maximum rewrite rounds over the program, as in TVM."""


class DFPatternCallback:
    """Rewrite callback: set `pattern`, override `callback`.

    rewrite_once: one round over the program, not until nothing changes. require_type: `pre` and the
    matched expressions have checked types.
    """

    def __init__(self, require_type: bool = False, rewrite_once: bool = False) -> None:
        self.pattern: DFPattern = wildcard()
        self.require_type = require_type
        self.rewrite_once = rewrite_once

    def callback(self, pre: RelayExpr, post: RelayExpr, node_map: NodeMap) -> RelayExpr:
        """Return the replacement of a match.

        Args:
            pre: The matched expression.
            post: The same with its children already rewritten, to be returned to leave it.
            node_map: The (rewritten) expressions that each pattern matched.
        """
        raise NotImplementedError

    def rewrite(self, expr: RelayExpr) -> RelayExpr:
        """Rewrite an expression by this callback alone."""
        return rewrite(self, expr)


def rewrite(
    callbacks: DFPatternCallback | Sequence[DFPatternCallback],
    expr: RelayExpr,
    mod: IRModule | None = None,
) -> RelayExpr:
    """Rewrite every match of the callbacks, in order, to a fixed point.

    Args:
        callbacks: The callbacks.
        expr: The expression.
        mod: Has the types of global functions, for callbacks that require types.

    Raises:
        PassError: The program still changes after MAX_ROUNDS rounds.
    """
    todo = [callbacks] if isinstance(callbacks, DFPatternCallback) else list(callbacks)
    for count in range(MAX_REWRITE_ROUNDS):
        before = expr
        for callback in todo:
            if count == 0 or not callback.rewrite_once:
                expr = _rewrite_once(callback, expr, mod)
        if expr is before or structural_equal(before, expr):
            return before
    names = ", ".join(type(active).__name__ for active in todo)
    raise PassError(f"rewrite: {names} still changes the program after {MAX_REWRITE_ROUNDS} rounds")


def _rewrite_once(callback: DFPatternCallback, root: RelayExpr, mod: IRModule | None) -> RelayExpr:
    if callback.require_type:
        infer_expr_type(root, mod)
    users = build_user_map(root)
    new: dict[RelayExpr, RelayExpr] = {}
    for pre in post_order(root, into_functions=True):
        post = rebuild(pre, [new.get(c, c) for c in children(pre)])
        matched = find_match(callback.pattern, pre, users)
        if matched is not None:
            # The callback may ask for the root itself among the matched expressions.
            new[pre] = post
            matched = {q: [new.get(e, e) for e in exprs] for q, exprs in matched.items()}
            post = callback.callback(pre, post, matched)
            if not isinstance(post, RelayExpr):
                raise PassError(
                    f"rewrite: {type(callback).__name__}.callback must give an expression, got "
                    f"{type(post).__name__}"
                )
        new[pre] = post
    return new[root]
