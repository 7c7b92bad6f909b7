"""Scope analysis for higher-order differentiation: the differentiable calls of each scope and the
tensors that each binding needs.

A scope binds operations, which work on tensors alone and become parts of segments, and anything
else: calls of functions, choices, matches, function values, references, data. Tuples of tensors are
names of their fields here, and are no values of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import OPS, Op
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Constant, Function, Match, Tuple, TupleGetItem, Var
from ekiden.relay.transform.differentiation.first_order_gradient import (
    callee_description,
    span_suffix,
)
from ekiden.relay.transform.differentiation.lifted_types import (
    TAPE_TYPE,
    LiftedTypes,
    is_float_tensor,
    is_tensor_tuple,
)
from ekiden.relay.transform.language.let_chains import LetChain, parse_let_chain
from ekiden.relay.transform.language.scope_tree import bodies, operands
from ekiden.relay.visitor import pattern_vars
from ekiden.runtime.errors import DifferentiationError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(slots=True, eq=False)
class TensorLeaf:
    """Float tensor of the differentiated program with its adjoint cell and its readers."""

    value: RelayExpr
    """Typed variable or constant that holds the tensor."""
    cell: Var | None = None
    """Adjoint cell; None for integers and constants."""
    scope: LiftedScope | None = None
    """Scope that binds the tensor; None for constants."""
    operation: OperatorCall | None = None
    """Operation that computes the tensor; None for parameters, pattern variables and other
    bindings.
    """
    escapes: bool = False
    """Whether anything but operations of its scope reads the tensor."""
    readers: list[OperatorCall] = field(default_factory=list)

    @property
    def kind(self) -> TensorType:
        """Return the tensor's type."""
        kind = self.value.checked_type
        assert isinstance(kind, TensorType)
        return kind


TensorTree = TensorLeaf | tuple["TensorTree", ...]
"""Tensor leaf, or a tuple of trees."""


@dataclass(slots=True, eq=False)
class OperatorCall:
    """Call of an operator or of a loop program on tensors."""

    call: Call
    args: tuple[TensorTree, ...]
    result_var: Var
    """Variable of the result; the tensor's own one unless the result is a tuple."""
    result: TensorTree = ()
    is_written: bool = False

    @property
    def is_stateful(self) -> bool:
        """Return whether the call must keep its position in the order of evaluation."""
        return isinstance(self.call.op, Op) and OPS[self.call.op.name].stateful


@dataclass(slots=True, eq=False)
class NonOperatorBinding:
    """Binding of a value that is no differentiable call, with the tensors that it reads."""

    var: Var
    value: RelayExpr
    needs: list[TensorLeaf] = field(default_factory=list)
    inner: list[LiftedScope] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class LiftedScope:
    """Scope of a differentiated function, with its tape variable and classified bindings."""

    chain: LetChain
    tape: Var
    params: Sequence[Var] = ()
    """Function parameters or pattern variables of the scope."""
    parent: LiftedScope | None = None
    owner: NonOperatorBinding | None = None
    """Binding of the parent scope that opens this scope."""
    items: list[OperatorCall | NonOperatorBinding] = field(default_factory=list)
    needs: list[TensorLeaf] = field(default_factory=list)
    """Leaves of this scope that its result needs."""
    captured: set[TensorLeaf] = field(default_factory=set)
    """Leaves of enclosing scopes that this scope uses."""
    lifted: RelayExpr | None = None
    """Lifted expression of the scope, once emitted."""


def tree_leaves(tree: TensorTree | Sequence[TensorTree]) -> list[TensorLeaf]:
    """Return the leaves of a tree from left to right."""
    if isinstance(tree, TensorLeaf):
        return [tree]
    return [leaf for subtree in tree for leaf in tree_leaves(subtree)]


def tree_expr(tree: TensorTree) -> RelayExpr:
    """Return a tree of tensors as an expression."""
    if isinstance(tree, TensorLeaf):
        return tree.value
    return Tuple(tuple(map(tree_expr, tree)))


def typed_var(name: str, kind: Type) -> Var:
    """Return a new variable of a known type."""
    var = Var(name, kind)
    var.set_checked_type(kind)
    return var


class ScopePlanner:
    """Classifier of the bindings of a function's scopes, outer scopes first."""

    def __init__(self, types: LiftedTypes, is_kernel: Callable[[RelayExpr], bool]) -> None:
        """Create a planner; `is_kernel` selects the callees besides operators that have a gradient
        rule.
        """
        self.types = types
        self.is_kernel = is_kernel
        self.tensor_trees: dict[RelayExpr, TensorTree] = {}
        """Tensor tree by variable."""
        self.lifted_vars: dict[RelayExpr, Var] = {}
        """Variable of the lifted value by variable."""

    def plan(self, function: Function, body: RelayExpr) -> list[LiftedScope]:
        """Return the scopes of a function whose body is in A-normal form, outer before inner.

        Raises DifferentiationError for an operator on values that are no tensors.
        """
        order = [self._function_scope(function, body)]
        for scope in order:
            order.extend(self._plan_scope(scope))
        return order

    @staticmethod
    def _function_scope(
        function: Function, body: RelayExpr, parent: LiftedScope | None = None
    ) -> LiftedScope:
        return LiftedScope(parse_let_chain(body), Var("tape", TAPE_TYPE), function.params, parent)

    def _plan_scope(self, scope: LiftedScope) -> list[LiftedScope]:
        """Classify the bindings of a scope, and return the nested scopes."""
        for param in scope.params:
            self._declare_lifted_var(param, scope)
        inner: list[LiftedScope] = []
        for var, value in scope.chain.bindings:
            if (tree := self._tensors_aliased_by(value)) is not None:
                self.tensor_trees[var] = tree
            elif isinstance(value, Call) and self._is_differentiable_call(value):
                scope.items.append(self._build_operator_call(var, value, scope))
            else:
                binding = self._build_other_binding(var, value, scope)
                scope.items.append(binding)
                inner.extend(binding.inner)
        assert scope.chain.result is not None
        self._record_uses([scope.chain.result], scope, scope.needs)
        return inner

    def _declare_lifted_var(self, var: Var, scope: LiftedScope) -> None:
        """Declare a variable that will hold a lifted value."""
        kind = var.checked_type
        self.lifted_vars[var] = Var(var.name_hint, self.types.lift(kind), span=var.span)
        if is_tensor_tuple(kind):
            self.tensor_trees[var] = self._build_tree(kind, var.name_hint, scope)

    def _build_tree(
        self, kind: Type, name: str, scope: LiftedScope, operation: OperatorCall | None = None
    ) -> TensorTree:
        if isinstance(kind, TupleType):
            numbered_fields = enumerate(kind.fields)
            return tuple(
                self._build_tree(k, f"{name}_{i}", scope, operation) for i, k in numbered_fields
            )
        cell = Var(f"d_{name}", self.types.cell_type(kind)) if is_float_tensor(kind) else None
        return TensorLeaf(typed_var(name, kind), cell, scope, operation)

    def tensor_tree(self, atom: RelayExpr) -> TensorTree | None:
        """Return the tensors of an atom, or None where it holds other values."""
        return TensorLeaf(atom) if isinstance(atom, Constant) else self.tensor_trees.get(atom)

    def _tensors_aliased_by(self, value: RelayExpr) -> TensorTree | None:
        """Return the tensors that a tuple, projection or variable aliases, or None."""
        match value:
            case Tuple(fields=fields):
                field_trees = [self.tensor_tree(f) for f in fields]
                tensor_trees = tuple(p for p in field_trees if p is not None)
                return tensor_trees if len(tensor_trees) == len(field_trees) else None
            case TupleGetItem(tuple_value=of, index=index):
                tuple_tree = self.tensor_tree(of)
                return tuple_tree[index] if isinstance(tuple_tree, tuple) else None
        return self.tensor_tree(value)

    def _is_differentiable_call(self, call: Call) -> bool:
        """Return whether a call takes and returns tensors alone.

        Raises:
            DifferentiationError: For an operator on other values that floats are in.
        """
        if not isinstance(call.op, Op) and not self.is_kernel(call.op):
            return False
        if all(self.tensor_tree(a) is not None for a in call.args) and is_tensor_tuple(
            call.checked_type
        ):
            return True
        kinds = (a.checked_type_or_none() for a in (call, *call.args))
        if all(k is not None and not self.types.is_lifted(k) for k in kinds):
            return False
        raise DifferentiationError(
            f"gradient: {callee_description(call)} has no gradient{span_suffix(call)}: it takes or "
            "returns other values than tensors"
        )

    def _build_operator_call(self, var: Var, call: Call, scope: LiftedScope) -> OperatorCall:
        arg_trees = [self.tensor_tree(a) for a in call.args]
        args = tuple(tree for tree in arg_trees if tree is not None)
        operation = OperatorCall(call, args, typed_var(var.name_hint, call.checked_type))
        operation.result = self.tensor_trees[var] = self._build_tree(
            call.checked_type, var.name_hint, scope, operation
        )
        if isinstance(operation.result, TensorLeaf):
            operation.result_var = operation.result.value  # type: ignore[assignment]
        for leaf in tree_leaves(args):
            if leaf.scope is scope:
                leaf.readers.append(operation)
            # A leaf of an outer scope becomes a captured variable of the closure.
            elif leaf.scope is not None:
                self._capture(leaf, scope)
        return operation

    def _build_other_binding(
        self, var: Var, value: RelayExpr, scope: LiftedScope
    ) -> NonOperatorBinding:
        self._declare_lifted_var(var, scope)
        binding = NonOperatorBinding(var, value)
        self._record_uses(operands(value), scope, binding.needs)
        match value:
            case Function():
                binding.inner = [self._function_scope(value, value.body, scope)]
            case Match(clauses=clauses):
                bound = [pattern_vars(c.lhs) for c in clauses]
                pairs = zip(bodies(value), bound, strict=True)
                binding.inner = [
                    LiftedScope(parse_let_chain(b), scope.tape, v, scope) for b, v in pairs
                ]
            case _:
                binding.inner = [
                    LiftedScope(parse_let_chain(b), scope.tape, (), scope) for b in bodies(value)
                ]
        for inner in binding.inner:
            inner.owner = binding
        return binding

    def _record_uses(
        self, atoms: Iterable[RelayExpr], scope: LiftedScope, needs: list[TensorLeaf]
    ) -> None:
        """Record that a result or a non-operator binding uses atoms."""
        for atom in atoms:
            for leaf in tree_leaves(self.tensor_trees.get(atom, ())):
                if leaf.scope is scope:
                    leaf.escapes = True
                    needs.append(leaf)
                elif leaf.scope is not None:
                    self._capture(leaf, scope)

    @staticmethod
    def _capture(leaf: TensorLeaf, scope: LiftedScope) -> None:
        """Record that a scope captures a leaf of an enclosing one, which the owner's binding must
        compute first.
        """
        current = scope
        # A scope that has captured the leaf before has also told the scopes around it.
        while leaf not in current.captured:
            current.captured.add(leaf)
            assert current.parent is not None and current.owner is not None, (
                "a variable of a scope around"
            )
            if current.parent is leaf.scope:
                leaf.escapes = True
                current.owner.needs.append(leaf)
                return
            current = current.parent
