"""Reverse-mode differentiation: the function that computes a result and its gradients.

    fn (%x, %y) { multiply(%x, %y) }
->  fn (%x, %y) { (multiply(%x, %y), (multiply(ones_like(..), %y), multiply(ones_like(..), %x))) }

The result is summed to a number in thought: its gradient starts as ones. Of several results the
first is differentiated, as in TVM; the others come along. Calls of functions are
inlined first; an `If` becomes a second `If` over the same condition that computes the gradients of
the branch taken, and computes that branch's values again. What is made is an ordinary function,
which can be differentiated again.

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

from collections.abc import Mapping, Sequence

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.text import type_text
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Function, If, Tuple, TupleGetItem, Var
from ekiden.relay.gradient import GRADIENTS
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.inline import apply, inline
from ekiden.relay.transform.scopes import (
    Scope,
    bodies,
    find_scopes,
    is_atom,
    map_functions,
    operands,
    rewrite_graph,
)
from ekiden.relay.transform.to_graph_normal_form import to_graph_normal_form
from ekiden.relay.visitor import REBUILD, bind, children
from ekiden.runtime.errors import DifferentiationError

MODES = ("higher_order", "first_order")
MAX_ROUNDS = 100
"""How often functions given to functions are applied before giving up."""

Grad = RelayExpr | list["Grad | None"]
"""The gradient of a tensor, or those of the fields of a tuple."""


def gradient(
    expr: Function | GlobalVar, mod: IRModule | None = None, mode: str = "higher_order"
) -> Function:
    """The function (params) -> (result, (gradient of each parameter,)).

    `mode` is TVM's and makes no difference here: the result can always be differentiated again.
    Parameters that are not floating point get zeros. Raises DifferentiationError for an operator
    without a gradient, recursion, references, data types and functions among the values, naming it.
    """
    if mode not in MODES:
        raise DifferentiationError(
            f"gradient: mode must be one of {', '.join(MODES)}, got {mode!r}"
        )
    module = mod or IRModule()
    function = module[expr] if isinstance(expr, GlobalVar) else expr
    assert isinstance(function, Function)
    return _differentiate(function, module)


def _differentiate(function: Function, module: IRModule) -> Function:
    name = "gradient of this"
    whole = InferType()(module.with_function(name, function))
    whole = inline(whole, lambda callee, f: callee.name_hint != name)
    flat = whole[name]
    assert isinstance(flat, Function)
    whole = InferType()(whole.with_function(name, _flattened(flat)))
    flat = whole[name]
    assert isinstance(flat, Function)
    seed = _seed(flat.body, flat.body.checked_type)
    found = _gradients(flat.body, flat.params, seed)
    grads = [op.zeros_like(p) if g is None else g for p, g in zip(flat.params, found, strict=True)]
    result = Tuple((flat.body, Tuple(tuple(grads))))
    made = Function(flat.params, result, None, flat.type_params, flat.attrs, span=flat.span)
    typed = InferType()(whole.with_function(name, made))[name]
    assert isinstance(typed, Function)
    return typed


def _flattened(function: Function) -> Function:
    """A function whose body is a graph without lets and without calls of function values."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """A call of a function becomes its body."""
        if isinstance(new, Call) and isinstance(new.op, Function):
            return apply(new.op, new)
        return new

    body = to_graph_normal_form(function.body)
    for _ in range(MAX_ROUNDS):
        before, body = body, rewrite_graph(to_graph_normal_form(body), rewrite)
        if body is before:
            break
    return function.with_fields(body=body)


def _seed(expr: RelayExpr, kind: Type) -> Grad:
    """Ones for the result, or for the first of several."""
    if isinstance(kind, TupleType) and kind.fields:
        others: list[Grad | None] = [None] * (len(kind.fields) - 1)
        return [_seed(_field(expr, 0), kind.fields[0]), *others]
    if not isinstance(kind, TensorType):
        raise DifferentiationError(f"gradient: the result must be a tensor, got {type_text(kind)}")
    return op.ones_like(expr)


class _Adjoints:
    """What has reached each expression so far."""

    def __init__(self) -> None:
        self._grads: dict[RelayExpr, Grad] = {}

    def add(self, expr: RelayExpr, grad: Grad) -> None:
        """Let a gradient flow to an expression."""
        self._grads[expr] = _sum(self._grads.get(expr), grad)

    def get(self, expr: RelayExpr) -> Grad | None:
        """The sum of what flowed there, None for nothing."""
        return self._grads.get(expr)


def _sum(a: Grad | None, b: Grad | None) -> Grad:
    if a is None or b is None:
        known = b if a is None else a
        assert known is not None
        return known
    if isinstance(a, RelayExpr) and isinstance(b, RelayExpr) and not isinstance(a, Tuple):
        return op.add(a, b)
    left, right = _fields(a), _fields(b)
    return [
        None if x is None and y is None else _sum(x, y) for x, y in zip(left, right, strict=True)
    ]


def _fields(grad: Grad) -> Sequence[Grad | None]:
    if isinstance(grad, Tuple):
        return grad.fields
    assert isinstance(grad, list), "the gradient of a tuple has fields"
    return grad


def _materialize(grad: Grad | None, expr: RelayExpr, kind: Type) -> RelayExpr:
    """A gradient as an expression: zeros where nothing flowed."""
    if isinstance(kind, TupleType) and not isinstance(grad, RelayExpr):
        parts = grad if grad is not None else [None] * len(kind.fields)
        return Tuple(
            tuple(
                _materialize(part, _field(expr, i), field)
                for i, (part, field) in enumerate(zip(parts, kind.fields, strict=True))
            )
        )
    if grad is None:
        return op.zeros_like(expr)
    assert isinstance(grad, RelayExpr)
    return grad


def _field(expr: RelayExpr, index: int) -> RelayExpr:
    return expr.fields[index] if isinstance(expr, Tuple) else TupleGetItem(expr, index)


def _gradients(body: RelayExpr, wanted: Sequence[RelayExpr], seed: Grad) -> list[RelayExpr | None]:
    """The gradients of a graph's result with respect to some of its leaves."""
    scope = find_scopes(body)[0]
    adjoints = _Adjoints()
    adjoints.add(body, seed)
    for expr in reversed(scope.nodes):
        grad = adjoints.get(expr)
        if grad is not None:
            _push(expr, grad, scope, adjoints)
    return [
        None
        if adjoints.get(leaf) is None
        else _materialize(adjoints.get(leaf), leaf, leaf.checked_type)
        for leaf in wanted
    ]


def _push(expr: RelayExpr, grad: Grad, scope: Scope, adjoints: _Adjoints) -> None:
    """Hand the gradient of an expression to what it is made of."""
    match expr:
        case Call(op=Op()):
            _push_call(expr, grad, adjoints)
        case Tuple(fields=fields):
            for field, part in zip(fields, _fields(grad), strict=True):
                if part is not None:
                    adjoints.add(field, part)
        case TupleGetItem(tuple_value=value, index=index):
            kind = value.checked_type
            assert isinstance(kind, TupleType)
            parts: list[Grad | None] = [None] * len(kind.fields)
            parts[index] = grad
            adjoints.add(value, parts)
        case If():
            _push_if(expr, grad, scope, adjoints)
        case _:
            raise DifferentiationError(
                f"gradient: {_kind(expr)} has no gradient{_where(expr)}; operators, tuples and If "
                "have"
            )


def _kind(expr: RelayExpr) -> str:
    if not isinstance(expr, Call):
        return f"a {type(expr).__name__}"
    if isinstance(expr.op, GlobalVar):
        return f"a call of the recursive function @{expr.op.name_hint}"
    return f"a call of a {type(expr.op).__name__}"


def _where(expr: RelayExpr) -> str:
    span = getattr(expr, "span", None)
    return f" ({span})" if span else ""


def _push_call(call: Call, grad: Grad, adjoints: _Adjoints) -> None:
    assert isinstance(call.op, Op)
    rule = GRADIENTS.get(call.op.name)
    if rule is None:
        raise DifferentiationError(
            f"gradient: operator {call.op.name!r} has no gradient{_where(call)}; give it one with "
            "relay.op.register_gradient"
        )
    try:
        found = rule(call, _materialize(grad, call, call.checked_type))
    except ValueError as error:
        raise DifferentiationError(
            f"gradient: operator {call.op.name!r}{_where(call)}: not known for {error}"
        ) from error
    assert len(found) == len(call.args), f"{call.op.name}: one gradient per argument"
    for arg, part in zip(call.args, found, strict=True):
        if part is not None and not isinstance(arg, Constant):
            adjoints.add(arg, part)


def _push_if(expr: If, grad: Grad, scope: Scope, adjoints: _Adjoints) -> None:
    """The gradients of what either branch uses, by a second If."""
    branches = scope.inner[expr]
    captured = dict.fromkeys(leaf for branch in branches for leaf in _captured(branch))
    leaves = [leaf for leaf in captured if _is_differentiable(leaf.checked_type)]
    if not leaves:
        return
    taken, other = (_branch(branch, list(captured), leaves, grad) for branch in branches)
    again = If(expr.cond, taken, other)
    for i, leaf in enumerate(leaves):
        adjoints.add(leaf, TupleGetItem(again, i))


def _branch(
    branch: Scope, captured: Sequence[RelayExpr], leaves: Sequence[RelayExpr], grad: Grad
) -> RelayExpr:
    """(gradient of each leaf,) through one branch, whose values are computed again."""
    params = {leaf: _stand_in(leaf, i) for i, leaf in enumerate(captured)}
    body = _copy(branch, params)
    found = _gradients(body, [params[leaf] for leaf in leaves], grad)
    grads = [op.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]
    return bind(Tuple(tuple(grads)), {p: leaf for leaf, p in params.items()})


def _stand_in(leaf: RelayExpr, number: int) -> Var:
    variable = Var(f"captured{number}")
    variable.set_checked_type(leaf.checked_type)
    return variable


def _inside(branch: Scope) -> list[RelayExpr]:
    """The expressions of a scope and of those inside of it, what is used before what uses it."""
    found: dict[RelayExpr, None] = {}
    stack: list[tuple[Scope, int]] = [(branch, 0)]
    while stack:
        scope, at = stack.pop()
        if at == len(scope.nodes):
            continue
        expr = scope.nodes[at]
        inner = [s for s in scope.inner.get(expr, ()) if not all(n in found for n in s.nodes)]
        if inner:
            stack.append((scope, at))
            stack.extend((s, 0) for s in inner)
        else:
            found[expr] = None
            stack.append((scope, at + 1))
    return list(found)


def _captured(branch: Scope) -> list[RelayExpr]:
    """What a branch uses of outside: variables and expressions of scopes around it."""
    inside = dict.fromkeys(_inside(branch))
    used = [c for expr in inside for c in (*operands(expr), *bodies(expr))] + [branch.result]
    outside = (c for c in dict.fromkeys(used) if c not in inside and not isinstance(c, Constant))
    return [c for c in outside if isinstance(c, Var) or not is_atom(c)]


def _copy(branch: Scope, params: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """The result of a branch over new nodes, so that none is shared with the original: a node in
    two scopes would be moved to the one around both, and be computed whichever branch is taken."""
    new: dict[RelayExpr, RelayExpr] = dict(params)
    for expr in _inside(branch):
        copied = REBUILD[type(expr)](expr, [new.get(c, c) for c in children(expr)])
        copied.set_checked_type(expr.checked_type)
        new[expr] = copied
    return new.get(branch.result, branch.result)


def _is_differentiable(kind: Type) -> bool:
    if isinstance(kind, TupleType):
        return all(map(_is_differentiable, kind.fields))
    return isinstance(kind, TensorType) and "float" in kind.dtype


@module_pass(name="FirstOrderGradient", required=(InferType(),))
def _first_order_gradient(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(module, lambda function: _differentiate(function, module))


def FirstOrderGradient() -> Pass:  # noqa: N802
    """Every function of a module with its gradients, as `gradient` makes it."""
    return _first_order_gradient
