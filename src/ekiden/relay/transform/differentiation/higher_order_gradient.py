"""Higher-order reverse-mode differentiation: functions with recursion, closures, references and
data types.

    def @f(%x: T) -> T { let %y = exp(%x); @g(%y) }     T a float tensor, T' = (T, ref(Adjoint[T]))
->  def @f_grad(%x: T', %tape: ref(fn () -> ())) -> T' {
      let %y = exp(%x.0); let %dy = ref(NoGradient);
      let %before = ref_read(%tape);
      ref_write(%tape, fn () { .. the gradient of %y goes to %x .. ; %before() });
      @g_grad((%y, %dy), %tape) }

A *segment* is a set of operator calls of one scope between two bindings of other kinds; it is
differentiated as a graph (first_order_gradient.py), and has one back-propagator, which saves the
values that the rules of its operators read (segment_gradient.py). Only values that are used outside
of their segment have cells. Operators are placed as late as their uses allow, so that segments are
few; those that nothing needs are left out.

The tape is a chain of closures, each of which calls the one before it as its last action: with tail
calls, propagating back takes constant stack however deep the recursion was. The order is the
reverse of that of evaluation, hence a cell has received everything before it is read. Forward, a
tail call stays one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.type import FuncType, Type
from ekiden.relay.expr import (
    Call,
    Clause,
    Constructor,
    Function,
    If,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.transform.differentiation.first_order_gradient import GradientRules, span_suffix
from ekiden.relay.transform.differentiation.lifted_types import (
    BACK_PROPAGATOR_TYPE,
    LiftedTypes,
    is_float_tensor,
)
from ekiden.relay.transform.differentiation.scope_analysis import (
    LiftedScope,
    NonOperatorBinding,
    OperatorCall,
    ScopePlanner,
    TensorLeaf,
    TensorTree,
    tree_expr,
    tree_leaves,
)
from ekiden.relay.transform.differentiation.segment_gradient import Segment, pending_operations
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.transform.language.to_a_normal_form import to_a_normal_form
from ekiden.relay.visitor import map_pattern
from ekiden.runtime.errors import DifferentiationError


class FunctionLifter:
    """Lifter of a module's functions to pairs of tensors and adjoint cells that record on
    a tape.
    """

    def __init__(
        self,
        types: LiftedTypes,
        names: Mapping[GlobalVar, GlobalVar],
        rules: GradientRules,
        is_kernel: Callable[[RelayExpr], bool],
    ) -> None:
        """Create a lifter; `is_kernel` selects the callees besides operators that have a gradient
        rule.

        Args:
            types: The lifted types of the module.
            names: Global function -> its lifted one.
            rules: The gradients of operators and loop programs.
            is_kernel: Whether an expression names a loop program.
        """
        self.types = types
        self.names = names
        self.rules = rules
        self.planner = ScopePlanner(types, is_kernel)

    def lift(self, function: Function) -> Function:
        """Return the lifted form of a typed function. Iterative.

        Raises DifferentiationError for an operator without a gradient, or on values that are no
        tensors.
        """
        scopes = self.planner.plan(function, to_a_normal_form(function.body))
        # Inner scopes first: outer ones contain their lifted expressions.
        for scope in reversed(scopes):
            scope.lifted = _ScopeLifter(self, scope).write()
        return self.build_function(function, scopes[0])

    def build_function(self, function: Function, scope: LiftedScope) -> Function:
        """Build the lifted function whose body is an already lifted scope."""
        kind = function.checked_type
        assert scope.lifted is not None and isinstance(kind, FuncType)
        return Function(
            (*(self.planner.lifted_vars[p] for p in function.params), scope.tape), scope.lifted,
            self.types.lift(kind.ret_type), function.type_params, span=function.span,
        )  # fmt: skip

    def primal_atom(self, atom: RelayExpr) -> RelayExpr:
        """Return an atom's tensors without their adjoint cells."""
        tree = self.planner.tensor_tree(atom)
        assert tree is not None, "an atom of tensors"
        return tree_expr(tree)

    def lifted_atom(self, atom: RelayExpr) -> RelayExpr:
        """Return the lifted value of an atom. Raises DifferentiationError for an operator."""
        if isinstance(atom, GlobalVar):
            return self.names[atom]
        if atom in self.planner.lifted_vars:
            return self.planner.lifted_vars[atom]
        tree = self.planner.tensor_tree(atom)
        if tree is None:
            raise DifferentiationError(
                f"gradient: {atom}{span_suffix(atom)} is used as a value; wrap it into a function"
            )
        return self._pair_with_cells(tree)

    def _pair_with_cells(self, tree: TensorTree) -> RelayExpr:
        if not isinstance(tree, TensorLeaf):
            return Tuple(tuple(map(self._pair_with_cells, tree)))
        if tree.cell is not None:
            return Tuple((tree.value, tree.cell))
        # A float constant gets a fresh cell that nobody reads.
        if is_float_tensor(tree.kind):
            return Tuple((tree.value, new_adjoint_cell(self.types, tree.kind)))
        return tree.value


def new_adjoint_cell(types: LiftedTypes, kind: Type) -> RefCreate:
    """Return a new adjoint cell for a tensor, without a gradient yet."""
    return RefCreate(Call(types.no_gradient, (), None, (kind,)))


class _ScopeLifter:
    """Lifter of one scope; nested scopes are lifted before."""

    def __init__(self, lifter: FunctionLifter, scope: LiftedScope) -> None:
        self.lifter = lifter
        self.types = lifter.types
        self.scope = scope
        self.steps: list[LetBinding] = []

    def write(self) -> RelayExpr:
        """Emit the lifted expression of the scope."""
        scope, result = self.scope, self.scope.chain.result
        assert result is not None
        for param in scope.params:
            self._unpack_lifted(param)
        for item in scope.items:
            if isinstance(item, OperatorCall):
                # A stateful operator keeps its position in the order of evaluation.
                self._emit_segment(tree_leaves(item.result) if item.is_stateful else ())
                continue
            self._emit_segment(item.needs)
            value = self._lift_binding(item)
            # Keeping tail calls lets recursive loops run in constant stack.
            if item is scope.items[-1] and result is item.var:
                return build_lets(self.steps, value)  # a tail call stays one
            self.steps.append((self.lifter.planner.lifted_vars[item.var], value))
            self._unpack_lifted(item.var)
        self._emit_segment(scope.needs)
        return build_lets(self.steps, self.lifter.lifted_atom(result))

    def _unpack_lifted(self, var: Var) -> None:
        """Bind the used tensors of a lifted value, and their adjoint cells, to variables."""
        planner = self.lifter.planner
        stack: list[tuple[TensorTree, RelayExpr]] = []
        if var in planner.tensor_trees:
            stack.append((planner.tensor_trees[var], planner.lifted_vars[var]))
        while stack:
            tree, lifted = stack.pop()
            if not isinstance(tree, TensorLeaf):
                field_values = [
                    (subtree, TupleGetItem(lifted, i)) for i, subtree in enumerate(tree)
                ]
                stack.extend(reversed(field_values))
            elif tree.escapes or tree.readers:
                assert isinstance(tree.value, Var)
                if tree.cell is None:
                    self.steps.append((tree.value, lifted))
                else:
                    self.steps.append((tree.value, TupleGetItem(lifted, 0)))
                    self.steps.append((tree.cell, TupleGetItem(lifted, 1)))

    def _lift_binding(self, item: NonOperatorBinding) -> RelayExpr:
        """Return the lifted form of a binding other than an operator call."""
        value, lift = item.value, self.lifter.lifted_atom
        inner = [s.lifted for s in item.inner if s.lifted is not None]
        match value:
            case Function():
                return self.lifter.build_function(value, item.inner[0])
            case If(cond=cond):
                return If(self.lifter.primal_atom(cond), inner[0], inner[1], span=value.span)
            case Match(data=data, complete=complete):
                pairs = zip(value.clauses, inner, strict=True)
                clauses = tuple(Clause(self._lift_pattern(c.lhs), rhs) for c, rhs in pairs)
                return Match(lift(data), clauses, complete, span=value.span)
            case Call():
                return self._lift_call(value)
            case Tuple(fields=fields):
                return Tuple(tuple(map(lift, fields)), span=value.span)
            case TupleGetItem(tuple_value=of, index=index):
                return TupleGetItem(lift(of), index, span=value.span)
            case RefCreate(value=content):
                return RefCreate(lift(content), span=value.span)
            case RefRead(ref=ref):
                return RefRead(lift(ref), span=value.span)
            case RefWrite(ref=ref, value=content):
                return RefWrite(lift(ref), lift(content), span=value.span)
        return lift(value)

    def _lift_pattern(self, pattern: Pattern) -> Pattern:
        """Return a match pattern over lifted values.

        Recursion is as deep as the pattern is written.
        """
        match pattern:
            case PatternConstructor(constructor=old, patterns=inner):
                below = tuple(map(self._lift_pattern, inner))
                return PatternConstructor(self.types.lifted_constructor(old), below)
            case PatternTuple(patterns=inner):
                return PatternTuple(tuple(map(self._lift_pattern, inner)))
        return map_pattern(pattern, self.lifter.planner.lifted_vars)

    def _lift_call(self, call: Call) -> Call:
        args = tuple(map(self.lifter.lifted_atom, call.args))
        if isinstance(call.op, Op):  # of values without floats
            return call.with_fields(args=args)
        kinds = tuple(map(self.types.lift, call.type_args))
        if isinstance(call.op, Constructor):
            return Call(self.types.lifted_constructor(call.op), args, None, kinds, span=call.span)
        callee = self.lifter.lifted_atom(call.op)
        return Call(callee, (*args, self.scope.tape), None, kinds, span=call.span)

    def _emit_segment(self, needed: Iterable[TensorLeaf]) -> None:
        """Emit the pending operations that the given leaves depend on, as one segment with one
        back-propagator.
        """
        # As late as possible: the longer a segment, the fewer back-propagators.
        operations = pending_operations(needed, self.scope)
        for operation in operations:
            operation.is_written = True
        results = tree_leaves([operation.result for operation in operations])
        outputs = [leaf for leaf in results if _is_live_out(leaf)]
        segment = Segment(operations, outputs, self.types, self.lifter.rules)
        self.steps.extend(segment.forward_bindings())
        for leaf in segment.outputs:
            assert leaf.cell is not None
            self.steps.append((leaf.cell, new_adjoint_cell(self.types, leaf.kind)))
        before = Var("before", BACK_PROPAGATOR_TYPE)
        step = segment.back_propagator(before)
        if step is not None:
            self.steps.append((before, RefRead(self.scope.tape)))
            self.steps.append((Var("_"), RefWrite(self.scope.tape, step)))


def _is_live_out(leaf: TensorLeaf) -> bool:
    return leaf.escapes or any(not reader.is_written for reader in leaf.readers)
