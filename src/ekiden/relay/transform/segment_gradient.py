"""The back-propagator of a segment: what hands the gradients of its results to its inputs.

segment: let %a = %x * %w; let %y = tanh(%a)        %y is used outside of it, %a is not
->  fn () {
      match (ref_read(%dy)) {
        NoGradient => (),
        Gradient(%g) => {
          ref_write(%dy, NoGradient);               frees the gradient
          let %grads = (.. %g, %w, %y .., .. %g, %x, %y ..);       by the rules of tanh and *
          ref_write(%dx, sum of what it holds and %grads.0); the same for %dw
        } };
      %before()
    }
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.type import TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import (
    Call,
    Clause,
    Function,
    Match,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.transform.chains import Binding, let_chain
from ekiden.relay.transform.first_order_gradient import Grad, Rules, graph_gradients
from ekiden.relay.transform.lifted_scopes import Leaf, LiftedScope, Operation, Tree, leaves
from ekiden.relay.transform.lifted_types import UNIT, LiftedTypes
from ekiden.relay.visitor import ExprMutator

Grads = Sequence[tuple[Leaf, RelayExpr]]


def unwritten(needed: Iterable[Leaf], scope: LiftedScope) -> list[Operation]:
    """Return the operations of a scope that leaves need and that are not written yet, in the order
    of evaluation. Iterative.
    """
    order: dict[Operation, None] = {}
    stack = [(leaf.operation, False) for leaf in needed if leaf.scope is scope]
    while stack:
        operation, expanded = stack.pop()
        if operation is None or operation.is_written or operation in order:
            continue
        if expanded:
            order[operation] = None
            continue
        stack.append((operation, True))
        before = (x for x in leaves(operation.args) if x.scope is scope)
        stack.extend((leaf.operation, False) for leaf in before)
    return list(order)


class _Replaced(ExprMutator):
    """Puts variables in the place of expressions."""

    def __init__(self, values: Mapping[RelayExpr, RelayExpr]) -> None:
        super().__init__()
        self.memo.update(values)


class _Graph:
    """A segment as one expression: operations are nodes, other leaves variables."""

    def __init__(self, segment: Sequence[Operation]) -> None:
        self.nodes: dict[Leaf, RelayExpr] = {}
        self.values: dict[RelayExpr, RelayExpr] = {}
        """Node -> the variable that holds its value."""
        for operation in segment:
            args = tuple(map(self.expr, operation.args))
            node = _typed(operation.call.with_fields(args=args), operation.call.checked_type)
            self.values[node] = operation.whole
            self._add(operation.result, node)

    def _add(self, tree: Tree, node: RelayExpr) -> None:
        if isinstance(tree, Leaf):
            self.nodes[tree] = node
            self.values.setdefault(node, tree.value)
            return
        kind = node.checked_type
        assert isinstance(kind, TupleType)
        for index, part in enumerate(tree):
            self._add(part, _typed(TupleGetItem(node, index), kind.fields[index]))

    def expr(self, tree: Tree) -> RelayExpr:
        """Return the expression of a tree."""
        if isinstance(tree, Leaf):
            return self.nodes.get(tree, tree.value)
        fields = tuple(map(self.expr, tree))
        return _typed(Tuple(fields), TupleType(tuple(f.checked_type for f in fields)))


def _typed(expr: RelayExpr, kind: Type) -> RelayExpr:
    expr.set_checked_type(kind)
    return expr


def _input_gradients(
    segment: Sequence[Operation], seeds: Mapping[Leaf, Var], rules: Rules
) -> Grads:
    """The gradients of what a segment reads of outside; `seeds` are those of its outputs."""
    graph = _Graph(segment)
    used = dict.fromkeys(leaf for operation in segment for leaf in leaves(operation.args))
    inputs = [leaf for leaf in used if leaf.cell is not None and leaf not in graph.nodes]
    body = graph.expr(tuple(seeds))
    seed: Grad = list(seeds.values())
    grads = graph_gradients(body, [leaf.value for leaf in inputs], seed, rules)
    replaced = _Replaced(graph.values)
    pairs = zip(inputs, grads, strict=True)
    return [(leaf, replaced.visit(grad)) for leaf, grad in pairs if grad is not None]


def back_propagator(
    segment: Sequence[Operation],
    outputs: Sequence[Leaf],
    before: Var,
    types: LiftedTypes,
    rules: Rules,
) -> Function | None:
    """Return the back-propagator of a segment, None where no gradient flows through it.

    `outputs` are the leaves of it that have cells; `before` is called at the end. Raises
    DifferentiationError for an operator without a gradient.
    """
    seeds = {leaf: _var("g", leaf.kind) for leaf in outputs}
    grads = _input_gradients(segment, seeds, rules) if seeds else []
    if not grads:
        return None
    clear: list[Binding] = [(Var("_"), clear_cell(types, _cell(leaf))) for leaf in outputs]
    nothing = PatternConstructor(types.no_gradient)
    steps: list[Binding] = []
    if len(outputs) == 1:
        arrived: RelayExpr = RefRead(_cell(outputs[0]))
        some = PatternConstructor(types.gradient, (PatternVar(seeds[outputs[0]]),))
        clauses = Clause(nothing, Tuple(())), Clause(some, _accumulate_all(types, grads, clear))
    else:
        read = [Var("arrived", types.cell(leaf.kind).value) for leaf in outputs]
        steps = [(v, RefRead(_cell(x))) for v, x in zip(read, outputs, strict=True)]
        arrived = Tuple(tuple(read))
        pairs = zip(read, outputs, strict=True)
        values = [(seeds[x], or_zeros(types, v, x.value)) for v, x in pairs]
        none, inside = PatternTuple((nothing,) * len(outputs)), [*clear, *values]
        clauses = (Clause(none, Tuple(())),
                   Clause(PatternWildcard(), _accumulate_all(types, grads, inside)))  # fmt: skip
    steps.append((Var("_"), Match(arrived, clauses)))
    return Function((), let_chain(steps, Call(before, ())), UNIT)


def _var(name: str, kind: Type) -> Var:
    made = Var(name, kind)
    made.set_checked_type(kind)
    return made


def _cell(leaf: Leaf) -> Var:
    assert leaf.cell is not None, "outputs have cells"
    return leaf.cell


def _accumulate_all(types: LiftedTypes, grads: Grads, before: Sequence[Binding]) -> RelayExpr:
    kinds = TupleType(tuple(leaf.kind for leaf, _ in grads))
    values = Var("grads", kinds)
    steps = [*before, (values, Tuple(tuple(grad for _, grad in grads)))]
    for index, (leaf, _) in enumerate(grads):
        part = Var("d", leaf.kind)
        steps.append((part, TupleGetItem(values, index)))
        steps.append((Var("_"), accumulate(types, _cell(leaf), part)))
    return let_chain(steps, Tuple(()))


def accumulate(types: LiftedTypes, cell: RelayExpr, grad: Var) -> RefWrite:
    """Return the expression that adds a gradient to what a cell holds."""
    known = Var("sum", grad.type_annotation)
    some = PatternConstructor(types.gradient, (PatternVar(known),))
    nothing = PatternConstructor(types.no_gradient)
    total = Match(RefRead(cell), (Clause(nothing, grad), Clause(some, op.add(known, grad))))
    return RefWrite(cell, Call(types.gradient, (total,)))


def or_zeros(types: LiftedTypes, arrived: RelayExpr, value: RelayExpr) -> Match:
    """Return the gradient that a cell held, zeros where none arrived; `value` has its shape."""
    grad = Var("g", value.checked_type)
    some = PatternConstructor(types.gradient, (PatternVar(grad),))
    nothing = PatternConstructor(types.no_gradient)
    return Match(arrived, (Clause(nothing, op.zeros_like(value)), Clause(some, grad)))


def clear_cell(types: LiftedTypes, cell: RelayExpr) -> RefWrite:
    """Return the expression that forgets what a cell holds."""
    return RefWrite(cell, Call(types.no_gradient, ()))
