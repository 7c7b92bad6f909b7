"""Let chains as lists of bindings, for passes over A-normal form.

    let %y = add(%x, %x); let %z = exp(%y); %z
    <-> Chain([(%y, add(%x, %x)), (%z, exp(%y))], %z)

A chain of 100,000 lets is as deep an expression; a list of them needs no recursion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import field

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Let, Var
from ekiden.relay.transform.language.scope_tree import bodies, replace_children, rewrite_graph
from ekiden.runtime.lazy_dataclass import dataclass

LetBinding = tuple[Var, RelayExpr]


@dataclass(slots=True)
class LetChain:
    """Let chain of one scope: its bindings in order, and its result atom."""

    bindings: list[tuple[Var, RelayExpr]] = field(default_factory=list)
    result: RelayExpr | None = None

    def wrap(self) -> RelayExpr:
        """Return `let ...; let ...; result`."""
        assert self.result is not None
        return build_lets(self.bindings, self.result)

    def tail_binding_index(self) -> int:
        """Return the index of the binding in tail position, looking through aliases and kills; the
        number of bindings if there is none.
        """
        result = self.result
        for position in range(len(self.bindings) - 1, -1, -1):
            variable, value = self.bindings[position]
            name = called_op_name(value)
            if variable is result:
                # The shape check runs after the call, so the call is not in tail position.
                if name == "vm.match_shape":
                    break  # which is checked behind it
                if not (name == "vm.forget_shape" or isinstance(value, Var)):
                    return position
                result = value.args[0] if isinstance(value, Call) else value
            elif name != "memory.kill":
                break
        return len(self.bindings)


def called_op_name(value: RelayExpr) -> str:
    """Return the name of the called operator, or "" for any other value."""
    return value.op.name if isinstance(value, Call) and isinstance(value.op, Op) else ""


def build_lets(bindings: list[tuple[Var, RelayExpr]], result: RelayExpr) -> RelayExpr:
    """Return nested lets around a result, with the result's type."""
    result_type = result.checked_type_or_none()
    for variable, value in reversed(bindings):
        result = Let(variable, value, result)
        if result_type is not None:
            result.set_checked_type(result_type)
    return result


def parse_let_chain(body: RelayExpr) -> LetChain:
    """Flatten nested lets into a chain."""
    chain = LetChain()
    while isinstance(body, Let):
        chain.bindings.append((body.var, body.value))
        body = body.body
    chain.result = body
    return chain


def iter_bindings(body: RelayExpr) -> Iterator[LetBinding]:
    """Yield the bindings of every let chain in a body, including nested chains. Iterative."""
    stack = [body]
    while stack:
        for variable, value in parse_let_chain(stack.pop()).bindings:
            yield variable, value
            stack.extend(bodies(value))


def map_chains(body: RelayExpr, rewrite: Callable[[LetChain, bool], LetChain]) -> RelayExpr:
    """Rewrite every let chain in a body, innermost chains first. Iterative.

    Args:
        body: The expression.
        rewrite: Takes a chain, and whether it is the body of the function.
    """
    chains: list[tuple[RelayExpr, LetChain]] = []
    stack = [body]
    while stack:
        root = stack.pop()
        chain = parse_let_chain(root)
        chains.append((root, chain))
        for _, value in chain.bindings:
            stack.extend(bodies(value))
    new: dict[RelayExpr, RelayExpr] = {}
    # Reversed discovery order: chains inside of values are finished before those around them.
    for root, chain in reversed(chains):
        chain.bindings = [
            (v, replace_children(e, new) if bodies(e) else e) for v, e in chain.bindings
        ]
        new[root] = rewrite(chain, root is body).wrap()
    return new[body]


def drop_bindings(body: RelayExpr, variables: Set[Var]) -> RelayExpr:
    """Replace the lets of unused variables by their bodies, wherever they are nested."""
    if not variables:
        return body
    return rewrite_graph(
        body, lambda _, new: new.body if isinstance(new, Let) and new.var in variables else new
    )
