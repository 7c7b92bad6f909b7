"""Liveness of let-bound variables."""

from __future__ import annotations

from ekiden.relay.expr import Expr, Let, Var
from ekiden.relay.visitor import children, free_vars, post_order, vars_bound_by


def last_uses(root: Expr) -> dict[Let, tuple[Var, ...]]:
    """Map every `Let` to the variables of its chain whose last use it contains.

    Nothing after the value of that `Let` uses them; its own variable is among them if nothing uses
    it at all. `let %a = f(%x); let %b = g(%a); %b`: %a dies at the second binding, nothing at the
    first.
    """
    dying_at: dict[Let, tuple[Var, ...]] = {}
    for chain in _let_chains(root):
        # What the result of the chain uses dies nowhere in it.
        alive = set(free_vars(chain[-1].body))
        own = {let.var: number for number, let in enumerate(chain)}
        # From the end of the chain: a use is the last one if the variable is not alive after it.
        for let in reversed(chain):
            used = {v for v in free_vars(let.value) if v in own and v is not let.var}
            dying = used - alive
            if let.var not in alive:
                dying.add(let.var)
            dying_at[let] = tuple(sorted(dying, key=own.__getitem__))
            alive |= used
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
