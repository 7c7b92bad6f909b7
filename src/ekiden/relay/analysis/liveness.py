"""Liveness of let-bound variables."""

from __future__ import annotations

from ekiden.relay.expr import Expr, Let, Var
from ekiden.relay.visitor import children, post_order, vars_bound_by


def last_uses(root: Expr) -> dict[Let, tuple[Var, ...]]:
    """Map every `Let` to the variables of its chain whose last use it contains.

    Nothing after the value of that `Let` uses them; its own variable is among them if nothing uses
    it at all. `let %a = f(%x); let %b = g(%a); %b`: %a dies at the second binding, nothing at the
    first.
    """
    chains = _let_chains(root)
    chain_position = {let: (chain, index) for chain in chains for index, let in enumerate(chain)}
    home = {let.var: chain[0] for chain in chains for let in chain}
    # Evaluation backwards, in one walk: the use of a variable that is met first is the last one.
    # The position in a chain is the index of the binding whose value is walked, its length for
    # the result, where nothing dies.
    position: dict[Let, int] = {}
    last_use: dict[Var, int] = {}
    visited: set[Expr] = set()
    stack: list[Expr | tuple[Let, int]] = [root]
    while stack:
        expr = stack.pop()
        if isinstance(expr, tuple):
            position[expr[0]] = expr[1]
        elif isinstance(expr, Var):
            if (head := home.get(expr)) is not None:
                last_use.setdefault(expr, position[head])
        elif expr not in visited:
            visited.add(expr)
            if isinstance(expr, Let):
                chain, index = chain_position[expr]
                stack += [expr.value, (chain[0], index), expr.body]
                if index == len(chain) - 1:
                    stack.append((chain[0], len(chain)))
            else:
                bound = vars_bound_by(expr)
                stack += [child for child in children(expr) if child not in bound]
    dying_at: dict[Let, tuple[Var, ...]] = {}
    for chain in chains:
        dying: list[list[Var]] = [[] for _ in range(len(chain) + 1)]
        for index, let in enumerate(chain):
            # A function that calls itself is not used before its own binding ends.
            dying[last_use.get(let.var, index)].append(let.var)
        dying_at.update((let, tuple(dying[index])) for index, let in enumerate(chain))
    return dying_at


def dead_bindings(root: Expr) -> list[Let]:
    """Return every `Let` whose variable is unused, in order of evaluation."""
    used = {v for e in post_order(root, into_functions=True) for v in _used_vars(e)}
    lets = [e for e in post_order(root, into_functions=True) if isinstance(e, Let)]
    return [let for let in reversed(lets) if let.var not in used]


def _let_chains(root: Expr) -> list[list[Let]]:
    """Return the let chains of an expression."""
    lets = [e for e in post_order(root, into_functions=True) if isinstance(e, Let)]
    inner = {let.body for let in lets}
    chains: list[list[Let]] = []
    for let in lets:
        # An inner Let is part of the chain of the one around it.
        if let in inner:
            continue
        chain = [let]
        while isinstance(body := chain[-1].body, Let):
            chain.append(body)
        chains.append(chain)
    return chains


def _used_vars(expr: Expr) -> list[Var]:
    """Return the variables that an expression uses directly."""
    bound = vars_bound_by(expr)
    return [c for c in children(expr) if isinstance(c, Var) and c not in bound]
