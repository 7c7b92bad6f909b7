"""First-order reverse-mode differentiation of dataflow graphs: operators, tuples and If.

    fn (%x, %y) { multiply(%x, %y) }
->  fn (%x, %y) { (multiply(%x, %y), (multiply(ones_like(..), %y), multiply(ones_like(..), %x))) }

The gradient is that of the sum of the result's elements: it starts as ones. Of several results the
first is differentiated, as in TVM; the others come along. Calls of functions are inlined first; an
`If` becomes a second `If` over the same condition that computes the gradients of the branch taken,
and computes that branch's values again. Recursion, data types and references are left to
higher_order_gradient.py, and so are programs that inlining would make too large.

With the adjoint of v written v' = d(sum of the result) / dv, users before what they use:

    v' = sum over uses (y = f(.., v, ..)) of  y' * df/dv          (the rule of f in GRADIENTS)

One walk backwards over the graph, each rule once: the gradient costs a small multiple of the
function, however many parameters there are. What flows to a tuple is a list of fields, None where
nothing does, and becomes zeros only where an operator wants a tensor. Constants get none, nor what
is no float.

Values of the forward pass are shared with the backward pass, not computed again: memory for all of
them is needed until they are used, but in branches, whose values are computed twice so that they
need not leave their If. annotation.checkpoint is the same choice, made by a user.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Match,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.gradient import Gradient
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.inline import inline, inline_application
from ekiden.relay.transform.language.scope_tree import (
    RelayScope,
    bodies,
    find_scopes,
    is_atom,
    operands,
    rewrite_graph,
)
from ekiden.relay.transform.language.to_graph_normal_form import to_graph_normal_form
from ekiden.relay.transform.language.unique_names import unique_name
from ekiden.relay.visitor import REBUILDERS, bind, children, post_order
from ekiden.runtime.errors import DifferentiationError

MAX_BETA_REDUCTION_ROUNDS = 100
"""Maximum rounds of beta reduction."""
MAX_INLINING_GROWTH = 16
"""Maximum size of the inlined graph relative to the program."""
MIN_GRAPH_NODE_BUDGET = 10_000
"""Minimum node budget of the inlined graph, for small programs."""

AdjointValue = RelayExpr | list["AdjointValue | None"]
"""Gradient of a tensor, or of the fields of a tuple."""
GradientRules = Callable[[Call], Gradient | None]
"""Function: call -> gradient rule of its operator or PrimFunc, or None."""


def is_graph(expr: RelayExpr, is_kernel: Callable[[RelayExpr], bool]) -> bool:
    """Return whether an expression consists of operators, tuples and If alone, so that it is
    differentiable as a graph. `is_kernel` tells what else than an operator has a rule.
    """
    return all(
        isinstance(e, _DIFFERENTIABLE_NODES)
        or (isinstance(e, Call) and isinstance(e.op, Op))
        or (isinstance(e, Call) and is_kernel(e.op))
        or is_kernel(e)
        for e in post_order(expr, into_functions=True)
    )


_DIFFERENTIABLE_NODES = (Op, Var, Constant, Tuple, TupleGetItem, If)


def inline_to_graph(function: Function, module: IRModule) -> Function | None:
    """Inline all known callees and lets into one typed graph; return None where that is impossible
    or exceeds the growth limit.
    """
    name = GlobalVar(unique_name("gradient of this", {g.name_hint for g in module.functions}))
    combined = _reachable_module(name, module.with_function(name, function))
    if not _is_inlinable(name, combined):
        return None
    combined = inline(InferType()(combined), lambda callee, f: callee is not name)
    inlined = combined[name]
    assert isinstance(inlined, Function)
    flat = _beta_reduce(inlined)
    if flat is None:
        return None
    typed = InferType()(combined.with_function(name, flat))[name]
    assert isinstance(typed, Function)
    return typed


def _reachable_module(root: GlobalVar, module: IRModule) -> IRModule:
    """Return the module restricted to the functions reachable from a root."""
    unused = set(CallGraph(module).unreachable((root.name_hint,)))
    return module.with_functions({g: f for g, f in module.functions.items() if g not in unused})


_NON_GRAPH_NODES = (Match, Constructor, RefCreate, RefRead, RefWrite)


def _is_inlinable(root: GlobalVar, module: IRModule) -> bool:
    """Return whether all functions of a module can be inlined into its root.

    None may be recursive or use data types and references, and the result must be of a size in
    proportion.
    """
    graph = CallGraph(module)
    orders = {
        name: post_order(function, into_functions=True)
        for name, function in module.functions.items()
        if isinstance(function, Function)
    }
    # A recursive function has no finite inlining; matches and references are no dataflow.
    if graph.cycles() or any(isinstance(e, _NON_GRAPH_NODES) for o in orders.values() for e in o):
        return False
    sizes: dict[GlobalVar, int] = {}
    # Components come callees first, and without cycles each has one function.
    for (name,) in graph.components():
        below = sum(count * sizes[callee] for callee, count in graph[name].items())
        sizes[name] = len(orders.get(name, ())) + below
    return (
        sizes[root] <= MAX_INLINING_GROWTH * sum(map(len, orders.values())) + MIN_GRAPH_NODE_BUDGET
    )


def _is_within_growth_limit(root: RelayExpr) -> bool:
    """Return whether an expression stays within the growth limit once function values are
    applied.
    """
    order = post_order(root, into_functions=True)
    sizes: dict[RelayExpr, int] = {}
    # Post-order: the sizes of inner functions are known before the outer ones that apply them.
    for function in [e for e in order if isinstance(e, Function)]:
        sizes[function] = _beta_reduced_size(function.body, sizes)
    return (
        _beta_reduced_size(root, sizes) <= MAX_INLINING_GROWTH * len(order) + MIN_GRAPH_NODE_BUDGET
    )


def _beta_reduced_size(root: RelayExpr, sizes: Mapping[RelayExpr, int]) -> int:
    order = post_order(root)
    return len(order) + sum(sizes.get(e.op, 0) for e in order if isinstance(e, Call))


def differentiate_graph(flat: Function, rules: GradientRules) -> Function:
    """Build the untyped function (params) -> (result, (gradient of each parameter,))."""
    seed = seed_gradient(flat.body, flat.body.checked_type)
    param_grads = graph_gradients(flat.body, flat.params, seed, rules)
    grads = [
        op.zeros_like(p) if g is None else g for p, g in zip(flat.params, param_grads, strict=True)
    ]
    result = Tuple((flat.body, Tuple(tuple(grads))))
    return Function(flat.params, result, None, flat.type_params, flat.attrs, span=flat.span)


def _beta_reduce(function: Function) -> Function | None:
    """Beta-reduce calls of function values and inline lets, up to a fixed point.

    Returns:
        None where that would be out of proportion.
    """

    def apply_callee(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Replace a call of a function by its body."""
        if isinstance(new, Call) and isinstance(new.op, Function):
            return inline_application(new.op, new)
        return new

    body = to_graph_normal_form(function.body)
    for _ in range(MAX_BETA_REDUCTION_ROUNDS):
        if not _is_within_growth_limit(body):
            return None
        # Each application may produce new function values to apply.
        before, body = body, rewrite_graph(to_graph_normal_form(body), apply_callee)
        if body is before:
            break
    return function.with_fields(body=body)


def seed_gradient(expr: RelayExpr, kind: Type) -> AdjointValue:
    """Return the seed gradient: ones for the result, or for the first field of a tuple."""
    if isinstance(kind, TupleType) and kind.fields:
        no_grads: list[AdjointValue | None] = [None] * (len(kind.fields) - 1)
        return [seed_gradient(_tuple_field(expr, 0), kind.fields[0]), *no_grads]
    if not isinstance(kind, TensorType):
        raise DifferentiationError(
            f"gradient: the result must be a tensor, got {format_type(kind)}"
        )
    return op.ones_like(expr)


class _AdjointMap:
    """Accumulated gradient of each expression."""

    def __init__(self) -> None:
        self._grads: dict[RelayExpr, AdjointValue] = {}

    def add(self, expr: RelayExpr, grad: AdjointValue) -> None:
        """Accumulate a gradient into the adjoint of an expression."""
        self._grads[expr] = _add_gradients(self._grads.get(expr), grad)

    def get(self, expr: RelayExpr) -> AdjointValue | None:
        """Return the accumulated adjoint of an expression, or None where no gradient reached it."""
        return self._grads.get(expr)


def _add_gradients(a: AdjointValue | None, b: AdjointValue | None) -> AdjointValue:
    if a is None or b is None:
        single = b if a is None else a
        assert single is not None
        return single
    # Tuples are summed field by field, so that fields without a gradient stay None.
    if isinstance(a, RelayExpr) and isinstance(b, RelayExpr) and not isinstance(a, Tuple):
        return op.add(a, b)
    fields_a, fields_b = _gradient_fields(a), _gradient_fields(b)
    return [
        None if x is None and y is None else _add_gradients(x, y)
        for x, y in zip(fields_a, fields_b, strict=True)
    ]


def _gradient_fields(grad: AdjointValue) -> Sequence[AdjointValue | None]:
    if isinstance(grad, Tuple):
        return grad.fields
    assert isinstance(grad, list), "the gradient of a tuple has fields"
    return grad


def _materialize_gradient(grad: AdjointValue | None, expr: RelayExpr, kind: Type) -> RelayExpr:
    """Return a gradient as an expression, with zeros where none arrived."""
    if isinstance(kind, TupleType) and not isinstance(grad, RelayExpr):
        field_grads = grad if grad is not None else [None] * len(kind.fields)
        return Tuple(
            tuple(
                _materialize_gradient(field_grad, _tuple_field(expr, i), field)
                for i, (field_grad, field) in enumerate(zip(field_grads, kind.fields, strict=True))
            )
        )
    if grad is None:
        # Zeros take shape and dtype from the value itself, so that dynamic shapes need no
        # attributes.
        return op.zeros_like(expr)
    assert isinstance(grad, RelayExpr)
    return grad


def _tuple_field(expr: RelayExpr, index: int) -> RelayExpr:
    return expr.fields[index] if isinstance(expr, Tuple) else TupleGetItem(expr, index)


def graph_gradients(
    body: RelayExpr, wanted: Sequence[RelayExpr], seed: AdjointValue, rules: GradientRules
) -> list[RelayExpr | None]:
    """Return the gradients of a graph's result with respect to given leaves; None where no path
    leads to a leaf. `seed` is the gradient of the result.

    Raises DifferentiationError for an expression without a gradient.
    """
    return _ReverseSweep(rules).gradients(body, wanted, seed)


class _ReverseSweep:
    """Reverse sweep (backward pass) over a graph."""

    def __init__(self, rules: GradientRules) -> None:
        self.rules = rules

    def gradients(
        self, body: RelayExpr, wanted: Sequence[RelayExpr], seed: AdjointValue
    ) -> list[RelayExpr | None]:
        """Return the gradients of the given leaves."""
        scope = find_scopes(body)[0]
        adjoints = _AdjointMap()
        adjoints.add(body, seed)
        # Reverse order of evaluation: all uses have added their share before a node is visited.
        for expr in reversed(scope.nodes):
            grad = adjoints.get(expr)
            if grad is not None:
                self._propagate(expr, grad, scope, adjoints)
        leaf_grads = ((leaf, adjoints.get(leaf)) for leaf in wanted)
        return [
            None if g is None else _materialize_gradient(g, x, x.checked_type)
            for x, g in leaf_grads
        ]

    def _propagate(
        self, expr: RelayExpr, grad: AdjointValue, scope: RelayScope, adjoints: _AdjointMap
    ) -> None:
        """Propagate the gradient of an expression to its operands."""
        match expr:
            case Tuple(fields=fields):
                for field, field_grad in zip(fields, _gradient_fields(grad), strict=True):
                    if field_grad is not None:
                        adjoints.add(field, field_grad)
            case TupleGetItem(tuple_value=value, index=index):
                kind = value.checked_type
                assert isinstance(kind, TupleType)
                field_grads: list[AdjointValue | None] = [None] * len(kind.fields)
                field_grads[index] = grad
                adjoints.add(value, field_grads)
            case If():
                self._propagate_if(expr, grad, scope, adjoints)
            case Call():
                self._propagate_call(expr, grad, adjoints)
            case _:
                raise DifferentiationError(
                    f"gradient: a {type(expr).__name__}{span_suffix(expr)} has no gradient in a "
                    "graph of operators"
                )

    def _propagate_call(self, call: Call, grad: AdjointValue, adjoints: _AdjointMap) -> None:
        rule = self.rules(call)
        if rule is None:
            raise DifferentiationError(
                f"gradient: {callee_description(call)} has no gradient{span_suffix(call)}; "
                f"{_missing_gradient_hint(call)}"
            )
        try:
            arg_grads = rule(call, _materialize_gradient(grad, call, call.checked_type))
        except ValueError as error:
            raise DifferentiationError(
                f"gradient: {callee_description(call)}{span_suffix(call)}: not known for {error}"
            ) from error
        assert len(arg_grads) == len(call.args), (
            f"{callee_description(call)}: one gradient per argument"
        )
        for arg, arg_grad in zip(call.args, arg_grads, strict=True):
            # Gradients of constants have no reader.
            if arg_grad is not None and not isinstance(arg, Constant):
                adjoints.add(arg, arg_grad)

    def _propagate_if(
        self, expr: If, grad: AdjointValue, scope: RelayScope, adjoints: _AdjointMap
    ) -> None:
        """Propagate a gradient through an If by a second If over the gradients of its branches."""
        branches = scope.child_scopes[expr]
        captured = dict.fromkeys(leaf for branch in branches for leaf in _captured_values(branch))
        leaves = [leaf for leaf in captured if _is_differentiable(leaf.checked_type)]
        if not leaves:
            return
        true_grads, false_grads = (
            self._branch_gradients(b, list(captured), leaves, grad) for b in branches
        )
        # Recomputing a branch's values keeps them inside: outside the If, both branches would be
        # evaluated.
        gradient_if = If(expr.cond, true_grads, false_grads)
        for i, leaf in enumerate(leaves):
            adjoints.add(leaf, TupleGetItem(gradient_if, i))

    def _branch_gradients(
        self,
        branch: RelayScope,
        captured: Sequence[RelayExpr],
        leaves: Sequence[RelayExpr],
        grad: AdjointValue,
    ) -> RelayExpr:
        """Return the tuple of leaf gradients through one branch, whose forward values are
        recomputed.
        """
        params = {leaf: _captured_param(leaf, i) for i, leaf in enumerate(captured)}
        body = _clone_branch(branch, params)
        leaf_grads = self.gradients(body, [params[leaf] for leaf in leaves], grad)
        pairs = zip(leaves, leaf_grads, strict=True)
        grads = [op.zeros_like(leaf) if g is None else g for leaf, g in pairs]
        return bind(Tuple(tuple(grads)), {p: leaf for leaf, p in params.items()})


def callee_description(call: Call) -> str:
    """Return the description of a callee for error messages."""
    if isinstance(call.op, Op):
        return f"operator {call.op.name!r}"
    return f"the loop program @{getattr(call.op, 'name_hint', '')}"


def _missing_gradient_hint(call: Call) -> str:
    if isinstance(call.op, Op):
        return "give it one with relay.op.register_gradient"
    return "name the function that computes it in its attribute 'gradient'"


def span_suffix(expr: RelayExpr) -> str:
    """Return the source location of an expression in brackets for error messages, or "" where
    unknown.
    """
    span = getattr(expr, "span", None)
    return f" ({span})" if span else ""


def _captured_param(leaf: RelayExpr, number: int) -> Var:
    variable = Var(f"captured{number}")
    variable.set_checked_type(leaf.checked_type)
    return variable


def _scope_post_order(branch: RelayScope) -> list[RelayExpr]:
    """Return the expressions of a scope and of its nested scopes in post-order."""
    ordered: dict[RelayExpr, None] = {}
    stack: list[tuple[RelayScope, int]] = [(branch, 0)]
    while stack:
        scope, position = stack.pop()
        if position == len(scope.nodes):
            continue
        expr = scope.nodes[position]
        inner = [
            s for s in scope.child_scopes.get(expr, ()) if not all(n in ordered for n in s.nodes)
        ]
        if inner:
            stack.append((scope, position))
            stack.extend((s, 0) for s in inner)
        else:
            ordered[expr] = None
            stack.append((scope, position + 1))
    return list(ordered)


def _captured_values(branch: RelayScope) -> list[RelayExpr]:
    """Return the outer variables and expressions that a branch captures."""
    inside = dict.fromkeys(_scope_post_order(branch))
    used = [c for expr in inside for c in (*operands(expr), *bodies(expr))] + [branch.result]
    outside = (c for c in dict.fromkeys(used) if c not in inside and not isinstance(c, Constant))
    return [c for c in outside if isinstance(c, Var) or not is_atom(c)]


def _clone_branch(branch: RelayScope, params: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """Clone the result of a branch into fresh nodes that share nothing with the original.

    A node in two scopes would be moved to the one around both, and be computed for either branch.
    """
    new: dict[RelayExpr, RelayExpr] = dict(params)
    for expr in _scope_post_order(branch):
        copied = REBUILDERS[type(expr)](expr, [new.get(c, c) for c in children(expr)])
        copied.set_checked_type(expr.checked_type)
        new[expr] = copied
    return new.get(branch.result, branch.result)


def _is_differentiable(kind: Type) -> bool:
    if isinstance(kind, TupleType):
        return all(map(_is_differentiable, kind.fields))
    return isinstance(kind, TensorType) and "float" in kind.dtype
