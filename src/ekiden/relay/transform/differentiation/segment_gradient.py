"""Back-propagators of segments: closures that propagate the gradients of outputs to inputs.

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

from collections.abc import Iterable, Sequence

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, Op, OpPattern
from ekiden.ir.type import TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import (
    Call,
    Clause,
    Function,
    Match,
    Pattern,
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
from ekiden.relay.transform.differentiation.first_order_gradient import (
    AdjointValue,
    GradientRules,
    graph_gradients,
)
from ekiden.relay.transform.differentiation.lifted_types import UNIT_TYPE, LiftedTypes
from ekiden.relay.transform.differentiation.scope_analysis import (
    LiftedScope,
    OperatorCall,
    TensorLeaf,
    TensorTree,
    tree_leaves,
    typed_var,
)
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.visitor import REBUILDERS, ExprMutator, children

LeafGradients = Sequence[tuple[TensorLeaf, RelayExpr]]


def pending_operations(needed: Iterable[TensorLeaf], scope: LiftedScope) -> list[OperatorCall]:
    """Return the pending operations of a scope that leaves depend on, in order of evaluation.
    Iterative.
    """
    order: dict[OperatorCall, None] = {}
    stack = [(leaf.operation, False) for leaf in needed if leaf.scope is scope]
    while stack:
        operation, expanded = stack.pop()
        if operation is None or operation.is_written or operation in order:
            continue
        if expanded:
            order[operation] = None
            continue
        stack.append((operation, True))
        before = (x for x in tree_leaves(operation.args) if x.scope is scope)
        stack.extend((leaf.operation, False) for leaf in before)
    return list(order)


class Segment:
    """Operations differentiated together as one graph, with their forward bindings and
    back-propagator.
    """

    def __init__(
        self,
        operations: Sequence[OperatorCall],
        outputs: Sequence[TensorLeaf],
        types: LiftedTypes,
        rules: GradientRules,
    ) -> None:
        """Differentiate the operations; `outputs` are the leaves used outside the segment.

        Raises:
            DifferentiationError: For an operator without a gradient.
        """
        self.types = types
        self.outputs = [leaf for leaf in outputs if leaf.cell is not None]
        self.seeds = {leaf: typed_var("g", leaf.kind) for leaf in self.outputs}
        self._nodes: dict[TensorLeaf, RelayExpr] = {}
        self._variables: dict[RelayExpr, Var] = {}
        """Variables by graph node, in evaluation order."""
        self._operations: dict[RelayExpr, OperatorCall] = {}
        for operation in operations:
            self._add_operation(operation)
        self._grads = self._input_gradients(operations, rules)
        self._saved_nodes = {self._nodes[leaf] for leaf in outputs}
        """Nodes bound to variables: outputs, and values saved for the back-propagator."""
        self._find_saved_values()

    def _add_operation(self, operation: OperatorCall) -> None:
        args = tuple(map(self._tree_expr, operation.args))
        node = _with_type(operation.call.with_fields(args=args), operation.call.checked_type)
        self._variables[node] = operation.result_var
        stack: list[tuple[TensorTree, RelayExpr]] = [(operation.result, node)]
        while stack:
            tree, position = stack.pop()
            self._operations[position] = operation
            if isinstance(tree, TensorLeaf):
                assert isinstance(tree.value, Var)
                self._nodes[tree], self._variables[position] = position, tree.value
                continue
            kind = position.checked_type
            assert isinstance(kind, TupleType)
            fields = [_with_type(TupleGetItem(position, i), k) for i, k in enumerate(kind.fields)]
            stack.extend(reversed(list(zip(tree, fields, strict=True))))

    def _tree_expr(self, tree: TensorTree) -> RelayExpr:
        """Return the expression of a tree: nodes for operations of the segment, variables for other
        leaves.
        """
        if isinstance(tree, TensorLeaf):
            return self._nodes.get(tree, tree.value)
        fields = tuple(map(self._tree_expr, tree))
        return _with_type(Tuple(fields), TupleType(tuple(f.checked_type for f in fields)))

    def _input_gradients(
        self, operations: Sequence[OperatorCall], rules: GradientRules
    ) -> LeafGradients:
        """Return the gradients with respect to the leaves that the segment reads from outside."""
        if not self.outputs:
            return []
        used = dict.fromkeys(
            leaf for operation in operations for leaf in tree_leaves(operation.args)
        )
        inputs = [leaf for leaf in used if leaf.cell is not None and leaf not in self._nodes]
        seed: AdjointValue = list(self.seeds.values())
        body = self._tree_expr(tuple(self.outputs))
        grads = graph_gradients(body, [leaf.value for leaf in inputs], seed, rules)
        return [(x, grad) for x, grad in zip(inputs, grads, strict=True) if grad is not None]

    def _find_saved_values(self) -> None:
        """Find the forward values that the back-propagator reads and does not recompute."""
        stack = [grad for _, grad in self._grads]
        visited = set(stack)
        while stack:
            node = stack.pop()
            if node in self._saved_nodes:
                continue
            if node in self._operations and not self._is_recomputed(node):
                self._saved_nodes.add(node)
                continue
            below = [c for c in children(node) if c not in visited]
            visited.update(below)
            stack.extend(below)

    def _is_recomputed(self, node: RelayExpr) -> bool:
        """Return whether the back-propagator recomputes a value instead of saving it.

        What fuses costs less than writing and reading it, and fuses forward as well unless it is
        saved. What follows a product is saved instead of the product, so that both are one kernel.
        """
        operation = self._operations[node]
        # Recomputing elementwise values costs no memory traffic beyond their inputs; products are
        # saved.
        if _op_pattern(operation) not in RECOMPUTED_PATTERNS:
            return False
        for leaf in tree_leaves(operation.args):
            before = self._operations.get(self._nodes.get(leaf, leaf.value))
            if (
                before is not None
                and _op_pattern(before) is OpPattern.OUT_ELEMWISE_FUSABLE
                and leaf.readers == [operation]
                and not leaf.escapes
                and leaf.kind == node.checked_type
            ):
                return False
        return True

    def forward_bindings(self) -> list[LetBinding]:
        """Return the forward bindings of the segment."""
        copies = _GraphCopier()
        bindings: list[LetBinding] = []
        for node, variable in self._variables.items():
            if node in self._saved_nodes:
                bindings.append((variable, copies.copy_definition(node)))
                copies.memo[node] = variable
        return bindings

    def back_propagator(self, before: Var) -> Function | None:
        """Emit the closure that propagates gradients through the segment and then calls `before`;
        None where no gradient flows.
        """
        if not self._grads:
            return None
        copies = _GraphCopier()
        copies.memo.update((node, self._variables[node]) for node in self._saved_nodes)
        grads = [(leaf, copies.visit(grad)) for leaf, grad in self._grads]
        types, outputs = self.types, self.outputs
        # Cells are emptied first: the gradients are freed as soon as the rules have used them.
        clear: list[LetBinding] = [
            (Var("_"), clear_cell(types, _cell_of(leaf))) for leaf in outputs
        ]
        nothing = PatternConstructor(types.no_gradient)
        steps: list[LetBinding] = []
        if len(outputs) == 1:
            arrived: RelayExpr = RefRead(_cell_of(outputs[0]))
            some: Pattern = PatternConstructor(
                types.gradient, (PatternVar(self.seeds[outputs[0]]),)
            )
            clauses = Clause(nothing, Tuple(())), Clause(some, _accumulate_all(types, grads, clear))
        else:
            read = [Var("arrived", types.cell_type(leaf.kind).value) for leaf in outputs]
            steps = [(v, RefRead(_cell_of(x))) for v, x in zip(read, outputs, strict=True)]
            arrived = Tuple(tuple(read))
            pairs = zip(read, outputs, strict=True)
            values = [(self.seeds[x], gradient_or_zeros(types, v, x.value)) for v, x in pairs]
            none, inside = PatternTuple((nothing,) * len(outputs)), [*clear, *values]
            run = _accumulate_all(types, grads, inside)
            clauses = Clause(none, Tuple(())), Clause(PatternWildcard(), run)
        # The call of `before` comes last, as a tail call, so that the stack stays constant.
        steps.append((Var("_"), Match(arrived, clauses)))
        return Function((), build_lets(steps, Call(before, ())), UNIT_TYPE)


RECOMPUTED_PATTERNS = (OpPattern.ELEMWISE, OpPattern.BROADCAST, OpPattern.INJECTIVE)


def _op_pattern(operation: OperatorCall) -> OpPattern:
    call = operation.call
    return OPS[call.op.name].pattern if isinstance(call.op, Op) else OpPattern.OPAQUE


class _GraphCopier(ExprMutator):
    """Mutator that copies the expressions of a graph. Nothing is shared with the original: what two
    scopes share is computed in the one around both, and would be saved.
    """

    def rewrite(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Return a new node, also where no child changed; atoms stay."""
        below = children(old)
        return REBUILDERS[type(old)](old, below) if new is old and below else new

    def copy_definition(self, node: RelayExpr) -> RelayExpr:
        """Return a node over copied children."""
        return REBUILDERS[type(node)](node, [self.visit(c) for c in children(node)])


def _with_type(expr: RelayExpr, kind: Type) -> RelayExpr:
    expr.set_checked_type(kind)
    return expr


def _cell_of(leaf: TensorLeaf) -> Var:
    assert leaf.cell is not None, "outputs have cells"
    return leaf.cell


def _accumulate_all(
    types: LiftedTypes, grads: LeafGradients, before: Sequence[LetBinding]
) -> RelayExpr:
    kinds = TupleType(tuple(leaf.kind for leaf, _ in grads))
    # One tuple for all gradients keeps them in one graph, where they share and fuse.
    values = Var("grads", kinds)
    steps = [*before, (values, Tuple(tuple(grad for _, grad in grads)))]
    for index, (leaf, _) in enumerate(grads):
        grad_var = Var("d", leaf.kind)
        steps.append((grad_var, TupleGetItem(values, index)))
        steps.append((Var("_"), accumulate_gradient(types, _cell_of(leaf), grad_var)))
    return build_lets(steps, Tuple(()))


def accumulate_gradient(types: LiftedTypes, cell: RelayExpr, grad: Var) -> RefWrite:
    """Emit the write that adds a gradient to an adjoint cell."""
    held = Var("sum", grad.type_annotation)
    some = PatternConstructor(types.gradient, (PatternVar(held),))
    nothing = PatternConstructor(types.no_gradient)
    total = Match(RefRead(cell), (Clause(nothing, grad), Clause(some, op.add(held, grad))))
    return RefWrite(cell, Call(types.gradient, (total,)))


def gradient_or_zeros(types: LiftedTypes, arrived: RelayExpr, value: RelayExpr) -> Match:
    """Emit the gradient that a cell held, or zeros like `value` where none arrived."""
    grad = Var("g", value.checked_type)
    some = PatternConstructor(types.gradient, (PatternVar(grad),))
    nothing = PatternConstructor(types.no_gradient)
    return Match(arrived, (Clause(nothing, op.zeros_like(value)), Clause(some, grad)))


def clear_cell(types: LiftedTypes, cell: RelayExpr) -> RefWrite:
    """Emit the write that empties an adjoint cell."""
    return RefWrite(cell, Call(types.no_gradient, ()))
