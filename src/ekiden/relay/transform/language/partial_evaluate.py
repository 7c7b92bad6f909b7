"""Online partial evaluation: evaluate calls, branches, matches and loops on statically known data
at compile time.

    def @power(%n: Nat, %x) { match (%n) { Z => 1f, S(%m) => multiply(%x, @power(%m, %x)) } }
    @power(S(S(Z)), %x)   ->   let %v0 = multiply(%x, 1f); multiply(%x, %v0)

Values are represented as far as they are known: constants, tuples, data constructors and functions.
What is not known becomes a let of the result, in the order of evaluation, so effects keep theirs;
unused bindings are dropped. A recursive function is unrolled while an argument that it takes apart
gets smaller or its steps are decided by known values; otherwise it is called as it is. References
stay.

Before: any typed module, which is brought into A-normal form. After: A-normal form, not smaller as
text where loops were unrolled, at most MAX_DEPTH calls deep. Unrolling goes on if

    a data argument got smaller than in the last call of this function     @power: it ends
    an argument is a known number, and no unknown If lies between          for i in 0..n, n known

The first is size-change termination in its simplest form (Lee, Jones and Ben-Amram 2001); the
second may not end, hence the limit. A branch on an unknown condition is specialized both ways, and
calls inside count as undecided.

After N. Jones, C. Gomard, P. Sestoft, Partial Evaluation and Automatic Program Generation, 1993,
chapter 5 (an online specializer).
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Generator, Sequence
from dataclasses import field
from typing import cast

import numpy as np

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, Op
from ekiden.ir.prim import IntImm, SizeVar
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, Type, TypeVar
from ekiden.relay.evaluate_call import evaluate_call
from ekiden.relay.expr import (
    Call,
    Clause,
    Constant,
    Constructor,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.transform.graph.fold_constant import (
    MAX_INTERPRETED_STEPS,
    UNFOLDABLE_ERRORS,
    can_evaluate,
)
from ekiden.relay.transform.language.dead_code_elimination import drop_dead_bindings
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.instantiate_dimensions import (
    call_dim_substitution,
    has_unknown_dim,
    instantiate,
)
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.scope_tree import lift_body_rewrite, map_functions
from ekiden.relay.transform.language.to_a_normal_form import to_a_normal_form
from ekiden.relay.unify import size_vars
from ekiden.relay.visitor import children, map_pattern, pattern_vars, rebuild, type_post_order
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.interpreter_limits import StepBudget

MAX_UNROLL_DEPTH = 5_000
"""Maximum nesting of unrolled calls."""

MAX_EVALUATED_ELEMENTS = 1 << 16
"""Maximum elements of a result evaluated at compile time."""


@dataclass(slots=True, eq=False)
class StaticValue:
    """Partially static value: its known part, and its residual expression.

    Known is an Array, the fields of a tuple, a constructor's data, a closure, or None. `expr` is an
    atom for it in the result, created when it is first needed, with the scope where it is bound.
    """

    static: Array | tuple[StaticValue, ...] | StaticData | StaticClosure | None = None
    expr: RelayExpr | None = None
    scope: ResidualScope | None = None


@dataclass(slots=True, eq=False)
class StaticData:
    """Statically known constructor application."""

    constructor: Constructor
    fields: tuple[StaticValue, ...]
    type_args: tuple[Type, ...] = ()
    """Type arguments, which the fields alone need not determine: an empty list has none."""
    size: int = 1


@dataclass(slots=True, eq=False)
class StaticClosure:
    """Statically known function with its environment; named if it is global or recursive."""

    function: Function
    env: ChainMap[Var, StaticValue]
    name: GlobalVar | None = None
    recursive_var: Var | None = None


@dataclass(slots=True, eq=False)
class ResidualScope:
    """Scope of the residual program with the bindings emitted so far."""

    parent: ResidualScope | None
    bindings: list[LetBinding] = field(default_factory=list)
    is_unconditional: bool = True
    """Whether the scope is entered whenever the enclosing call's scope is."""

    def encloses(self, inner_scope: ResidualScope | None) -> bool:
        """Return whether this scope encloses another, so that its bindings are visible there."""
        while inner_scope is not None and inner_scope is not self:
            inner_scope = inner_scope.parent
        return inner_scope is self

    def bind(self, expr: RelayExpr, hint: str = "v", kind: Type | None = None) -> Var:
        """Bind an expression to a fresh variable, annotated with a type where that is less precise
        than the expression's own.
        """
        variable = Var(hint, kind)
        self.bindings.append((variable, expr))
        return variable

    def wrap(self, result: RelayExpr) -> RelayExpr:
        """Return the result wrapped in the bindings."""
        return build_lets(self.bindings, result)


@dataclass(slots=True, eq=False)
class UnrolledCall:
    """Unrolled call in progress, with the sizes of the static data among its arguments."""

    function: Function
    sizes: tuple[int | None, ...]
    scope: ResidualScope


EvaluationCoroutine = Generator["EvaluationCoroutine", StaticValue, StaticValue]
"""Evaluation coroutine, which yields the evaluations it waits for."""


def _run_trampoline(first: EvaluationCoroutine) -> StaticValue:
    """Run an evaluation on an explicit stack (trampoline), so that deep programs do not exhaust
    Python's.
    """
    stack = [first]
    value: StaticValue | None = None
    while stack:
        try:
            inner = next(stack[-1]) if value is None else stack[-1].send(value)
        except StopIteration as stop:
            stack.pop()
            value = stop.value
        else:
            stack.append(inner)
            value = None
    assert value is not None
    return value


StaticEnvironment = ChainMap[Var, StaticValue]


class _Specializer:
    """Partial evaluator of a module's functions in A-normal form."""

    def __init__(self, module: IRModule) -> None:
        self.module = module
        self.unrolled_calls: list[UnrolledCall] = []
        self.type_params: set[TypeVar] = set()
        """Type parameters of the function that is specialised."""
        self.bound: set[SizeVar] = set()
        """Dimension symbols that a nested function may share with the enclosing one."""

    def specialize_function(self, name: GlobalVar, function: Function) -> Function:
        """Specialise a global function whose arguments are dynamic."""
        scope = ResidualScope(None)
        env = StaticEnvironment({p: StaticValue(expr=p, scope=scope) for p in function.params})
        self.type_params = set(function.type_params)
        self.bound = set(size_vars(p.checked_type for p in function.params))
        self.unrolled_calls = [UnrolledCall(function, (None,) * len(function.params), scope)]
        result = _run_trampoline(self._evaluate_scope(function.body, env, scope))
        assert result.expr is not None
        return function.with_fields(body=drop_dead_bindings(result.expr))

    def _evaluate_scope(
        self, body: RelayExpr, env: StaticEnvironment, scope: ResidualScope
    ) -> EvaluationCoroutine:
        """Evaluate a whole scope to a residual expression."""
        value = yield self._evaluate(body, env, scope)
        atom = yield self._reify(value, scope)
        assert atom.expr is not None
        return StaticValue(expr=scope.wrap(atom.expr))

    def _evaluate(
        self, expr: RelayExpr, env: StaticEnvironment, scope: ResidualScope
    ) -> EvaluationCoroutine:
        while isinstance(expr, Let):
            # The environment is captured by reference, so that a recursive function finds itself.
            if isinstance(expr.value, Function) and not expr.value.attr("Primitive"):
                env[expr.var] = StaticValue(StaticClosure(expr.value, env, recursive_var=expr.var))
            else:
                env[expr.var] = yield self._evaluate(expr.value, env, scope)
            expr = expr.body
        match expr:
            case Var():
                return env.get(expr) or StaticValue(expr=expr)
            case Constant(data=data):
                return StaticValue(data, expr)
            case GlobalVar():
                return StaticValue(self._global_closure(expr), expr)
            case Function() if not expr.attr("Primitive"):
                return StaticValue(StaticClosure(expr, env))
            case Tuple(fields=fields):
                return StaticValue((yield from self._evaluate_all(fields, env, scope)))
            case TupleGetItem(tuple_value=inner, index=index):
                value = yield self._evaluate(inner, env, scope)
                if isinstance(value.static, tuple):
                    return value.static[index]
                atom = yield self._reify(value, scope)
                return self._bind_residual(
                    TupleGetItem(_residual_expr(atom), index, span=expr.span), scope
                )
            case Call():
                return (yield self._evaluate_call(expr, env, scope))
            case If():
                return (yield self._evaluate_if(expr, env, scope))
            case Match():
                return (yield self._evaluate_match(expr, env, scope))
            case RefCreate() | RefRead() | RefWrite():
                return (yield self._evaluate_reference(expr, env, scope))
            case _:
                return StaticValue(expr=expr)

    def _global_closure(self, name: GlobalVar) -> StaticClosure | None:
        function = self.module.functions.get(name)
        is_known = isinstance(function, Function) and function.attr("Compiler") is None
        return StaticClosure(function, StaticEnvironment(), name) if is_known else None  # type: ignore[arg-type]

    def _bind_residual(self, expr: RelayExpr, scope: ResidualScope) -> StaticValue:
        return StaticValue(expr=scope.bind(expr), scope=scope)

    def _evaluate_all(
        self, exprs: Sequence[RelayExpr], env: StaticEnvironment, scope: ResidualScope
    ) -> Generator[EvaluationCoroutine, StaticValue, tuple[StaticValue, ...]]:
        values = []
        for expr in exprs:
            values.append((yield self._evaluate(expr, env, scope)))
        return tuple(values)

    def _reify_all(
        self, values: Sequence[StaticValue], scope: ResidualScope
    ) -> Generator[EvaluationCoroutine, StaticValue, tuple[RelayExpr, ...]]:
        atoms = []
        for value in values:
            atoms.append(_residual_expr((yield self._reify(value, scope))))
        return tuple(atoms)

    # Making an expression of what is known.

    def _reify(self, value: StaticValue, scope: ResidualScope) -> EvaluationCoroutine:
        """Return the value with a residual atom that is visible in the scope."""
        if value.expr is not None and (value.scope is None or value.scope.encloses(scope)):
            return value
        content = value.static
        if isinstance(content, np.ndarray):
            value.expr, value.scope = Constant(content), None
            return value
        if isinstance(content, tuple):
            built: RelayExpr = Tuple((yield from self._reify_all(content, scope)))
        elif isinstance(content, StaticData):
            fields = yield from self._reify_all(content.fields, scope)
            built = Call(content.constructor, fields, None, content.type_args)
        else:
            assert isinstance(content, StaticClosure), "a value that is neither known nor named"
            return (yield self._reify_closure(value, content, scope))
        value.expr, value.scope = scope.bind(built), scope
        return value

    def _reify_closure(
        self, value: StaticValue, closure: StaticClosure, scope: ResidualScope
    ) -> EvaluationCoroutine:
        """Emit a residual function for a static closure, specialised to its environment.

        Its parameters are unknown. The name is known before the body, which may mention it; what it
        captures is bound in the scopes around, so that no copy of a binding is created.
        """
        function = closure.function
        name = Var(closure.recursive_var.name_hint if closure.recursive_var else "f")
        value.expr, value.scope = name, scope
        # A function value may never be called, or many times.
        inner = ResidualScope(scope, is_unconditional=False)
        own_types = set(function.type_params)
        params = [
            Var(p.name_hint, _close_type(p.type_annotation, own_types), span=p.span)
            for p in function.params
        ]
        env = StaticEnvironment({}, *closure.env.maps)
        env.update(
            {
                p: StaticValue(expr=n, scope=inner)
                for p, n in zip(function.params, params, strict=True)
            }
        )
        if closure.recursive_var is not None:
            env[closure.recursive_var] = StaticValue(expr=name, scope=scope)
        body = yield self._evaluate_scope(function.body, env, inner)
        ret_type = _close_type(function.ret_type, own_types)
        residual = function.with_fields(params=tuple(params), body=body.expr, ret_type=ret_type)
        scope.bindings.append((name, residual))
        return value

    # Calls.

    def _evaluate_call(
        self, call: Call, env: StaticEnvironment, scope: ResidualScope
    ) -> EvaluationCoroutine:
        args = yield from self._evaluate_all(call.args, env, scope)
        if isinstance(call.op, Constructor):
            size = 1 + sum(a.static.size for a in args if isinstance(a.static, StaticData))
            return StaticValue(StaticData(call.op, args, self._closed_type_args(call), size))
        if isinstance(call.op, Op):
            folded = _fold_operator(call, args)
            return (
                folded
                if folded is not None
                else (yield self._residual_call(call, call.op, args, scope))
            )
        callee = yield self._evaluate(call.op, env, scope)
        if isinstance(callee.static, StaticClosure) and self._may_unroll(
            callee.static, args, scope
        ):
            return (yield self._unroll_call(callee.static, call, args, scope))
        atom = yield self._reify(callee, scope)
        return (yield self._residual_call(call, _residual_expr(atom), args, scope))

    def _residual_call(
        self, call: Call, callee: RelayExpr, args: Sequence[StaticValue], scope: ResidualScope
    ) -> EvaluationCoroutine:
        """Emit the call itself into the residual program."""
        if isinstance(call.op, Op) and call.op.definition.variadic:
            fields = args[0].static
            if isinstance(fields, tuple):
                inside = yield from self._reify_all(fields, scope)
                new_call = Call(callee, (Tuple(inside),), call.attrs, span=call.span)
                return self._bind_residual(new_call, scope)
        atoms = yield from self._reify_all(args, scope)
        type_args = self._closed_type_args(call)
        new_call = Call(callee, atoms, call.attrs, type_args, span=call.span)
        return self._bind_residual(new_call, scope)

    def _closed_type_args(self, call: Call) -> tuple[Type, ...]:
        """Return the type arguments of a call, or none if they mention the type parameters of an
        unrolled function.
        """
        args = [_close_type(kind, self.type_params) for kind in call.type_args]
        closed = tuple(kind for kind in args if kind is not None)
        return closed if len(closed) == len(args) else ()

    def _may_unroll(
        self, closure: StaticClosure, args: Sequence[StaticValue], scope: ResidualScope
    ) -> bool:
        """Return whether to unroll a call: the first of a function always, recursive ones only
        while their static data shrinks.
        """
        if closure.function.attr("SkipOptimization") or len(self.unrolled_calls) > MAX_UNROLL_DEPTH:
            return False
        last = next(
            (a for a in reversed(self.unrolled_calls) if a.function is closure.function), None
        )
        if last is None:
            return True
        sizes = zip(_data_sizes(args), last.sizes, strict=True)
        # Structural descent on finite data terminates, which bounds the unrolling.
        if any(new is not None and old is not None and new < old for new, old in sizes):
            return True
        is_counted = any(isinstance(a.static, np.ndarray) for a in args)
        return is_counted and _is_unconditional(scope, last.scope)

    def _unroll_call(
        self, closure: StaticClosure, call: Call, args: Sequence[StaticValue], scope: ResidualScope
    ) -> EvaluationCoroutine:
        function = closure.function
        dims = call_dim_substitution(function, call.args, () if closure.name else self.bound)
        # The callee's names of dimensions become those of this call's arguments.
        if dims:
            self.bound.update(size_vars(a.checked_type for a in call.args))
            self.bound.update(d for d in dims.values() if isinstance(d, SizeVar))
            function = cast("Function", instantiate(function, dims))
        env = StaticEnvironment({}, *closure.env.maps)
        env.update(zip(function.params, args, strict=True))
        if closure.recursive_var is not None:
            env[closure.recursive_var] = StaticValue(closure)
        self.unrolled_calls.append(UnrolledCall(closure.function, _data_sizes(args), scope))
        value = yield self._evaluate(function.body, env, scope)
        self.unrolled_calls.pop()
        return value

    # Choices.

    def _evaluate_if(
        self, expr: If, env: StaticEnvironment, scope: ResidualScope
    ) -> EvaluationCoroutine:
        cond = yield self._evaluate(expr.cond, env, scope)
        if isinstance(cond.static, np.ndarray):
            true_expr = expr.true_branch if bool(cond.static) else expr.false_branch
            return (yield self._evaluate(true_expr, env.new_child(), scope))
        atom = yield self._reify(cond, scope)
        branches = []
        for branch in (expr.true_branch, expr.false_branch):
            inner = ResidualScope(scope, is_unconditional=False)
            branches.append(
                _residual_expr((yield self._evaluate_scope(branch, env.new_child(), inner)))
            )
        true_expr, false_expr = branches
        return self._bind_residual(
            If(_residual_expr(atom), true_expr, false_expr, span=expr.span), scope
        )

    def _evaluate_match(
        self, expr: Match, env: StaticEnvironment, scope: ResidualScope
    ) -> EvaluationCoroutine:
        data = yield self._evaluate(expr.data, env, scope)
        for clause in expr.clauses:
            matched_vars: dict[Var, StaticValue] = {}
            fits = _match_pattern(clause.lhs, data, matched_vars)
            # Clauses are tried in order: one that may match hides those behind it.
            if fits is None:
                break
            if fits:
                return (yield self._evaluate(clause.rhs, env.new_child(matched_vars), scope))
        atom = yield self._reify(data, scope)
        clauses = []
        for clause in expr.clauses:
            inner = ResidualScope(scope, is_unconditional=False)
            new: dict[RelayExpr, RelayExpr] = {
                v: Var(v.name_hint) for v in pattern_vars(clause.lhs)
            }
            bound = {
                v: StaticValue(expr=n, scope=inner) for v, n in new.items() if isinstance(v, Var)
            }
            body = yield self._evaluate_scope(clause.rhs, env.new_child(bound), inner)
            clauses.append(Clause(map_pattern(clause.lhs, dict(new.items())), _residual_expr(body)))
        residual = Match(_residual_expr(atom), tuple(clauses), expr.complete, span=expr.span)
        return self._bind_residual(residual, scope)

    def _evaluate_reference(
        self, expr: RefCreate | RefRead | RefWrite, env: StaticEnvironment, scope: ResidualScope
    ) -> EvaluationCoroutine:
        inside = children(expr)
        values = yield from self._evaluate_all(inside, env, scope)
        atoms = yield from self._reify_all(values, scope)
        old_type = expr.checked_type_or_none()
        kind = old_type if isinstance(expr, RefCreate) and has_unknown_dim(old_type) else None
        return StaticValue(expr=scope.bind(rebuild(expr, atoms), kind=kind), scope=scope)


def _close_type(kind: Type | None, bound_type_vars: set[TypeVar]) -> Type | None:
    """Return a type, or None if it mentions a type parameter of an enclosing function, which no
    longer exists.
    """
    components = [] if kind is None else type_post_order(kind)
    return (
        None
        if any(isinstance(t, TypeVar) and t not in bound_type_vars for t in components)
        else kind
    )


def _residual_expr(value: StaticValue) -> RelayExpr:
    assert value.expr is not None
    return value.expr


def _data_sizes(args: Sequence[StaticValue]) -> tuple[int | None, ...]:
    return tuple(a.static.size if isinstance(a.static, StaticData) else None for a in args)


def _is_unconditional(scope: ResidualScope | None, outer: ResidualScope) -> bool:
    """Return whether no dynamic branch lies between a scope and an enclosing one."""
    while scope is not None and scope is not outer:
        if not scope.is_unconditional:
            return False
        scope = scope.parent
    return True


def _static_arrays(value: StaticValue) -> Array | tuple[Array, ...] | None:
    if isinstance(value.static, np.ndarray):
        return value.static
    if isinstance(value.static, tuple):
        fields = [f.static for f in value.static]
        arrays = tuple(f for f in fields if isinstance(f, np.ndarray))
        return arrays if len(arrays) == len(fields) else None
    return None


def _fold_operator(call: Call, args: Sequence[StaticValue]) -> StaticValue | None:
    """Evaluate an operator call on static arguments, or return None if its result is large or it
    has state.
    """
    assert isinstance(call.op, Op)
    arrays = [a for a in map(_static_arrays, args) if a is not None]
    if (
        len(arrays) < len(args)
        or not can_evaluate(call.op, call.attrs)
        or _exceeds_element_limit(call)
    ):
        return None
    try:
        value = evaluate_call(call.op, call.attrs, arrays, StepBudget(MAX_INTERPRETED_STEPS))
    except UNFOLDABLE_ERRORS:
        return None
    results = value if isinstance(value, tuple) else (value,)
    if sum(p.size for p in results) > MAX_EVALUATED_ELEMENTS:
        return None
    return (
        StaticValue(tuple(map(StaticValue, value)))
        if isinstance(value, tuple)
        else StaticValue(value)
    )


def _exceeds_element_limit(call: Call) -> bool:
    """Return whether the result type exceeds the element limit, before memory is allocated
    for it.
    """
    kind = call.checked_type_or_none()
    tensors = (
        [] if kind is None else [t for t in type_post_order(kind) if isinstance(t, TensorType)]
    )
    sizes = [[d.value for d in t.shape if isinstance(d, IntImm)] for t in tensors]
    return sum(map(math.prod, sizes)) > MAX_EVALUATED_ELEMENTS


def _match_pattern(
    pattern: Pattern, value: StaticValue, bindings: dict[Var, StaticValue]
) -> bool | None:
    """Return whether a value matches a pattern, None if that is dynamic; matched variables are
    added to `bindings`.
    """
    match pattern:
        case PatternWildcard():
            return True
        case PatternVar(var=var):
            bindings[var] = value
            return True
        case PatternTuple(patterns=patterns) if isinstance(value.static, tuple):
            return _match_patterns(patterns, value.static, bindings)
        case PatternConstructor(constructor=constructor, patterns=patterns):
            if not isinstance(value.static, StaticData):
                return None
            if value.static.constructor.tag != constructor.tag:
                return False
            return _match_patterns(patterns, value.static.fields, bindings)
        case _:
            return None


def _match_patterns(
    patterns: Sequence[Pattern], values: Sequence[StaticValue], bindings: dict[Var, StaticValue]
) -> bool | None:
    results = [_match_pattern(p, v, bindings) for p, v in zip(patterns, values, strict=True)]
    return False if False in results else None if None in results else True


@module_pass(name="PartialEvaluate", opt_level=1, required=(InferType(),))
def _partial_evaluate(module: IRModule, context: PassContext) -> IRModule:
    normal = map_functions(MatchDeclaredShapes()(module), lift_body_rewrite(to_a_normal_form))
    specializer = _Specializer(normal)
    done: dict[GlobalVar, BaseFunc] = {}
    for name, f in normal.functions.items():
        is_own = isinstance(f, Function) and f.attr("Compiler") is None
        done[name] = specializer.specialize_function(name, f) if is_own else f  # type: ignore[arg-type]
    return InferType()(normal.with_functions(done))


def PartialEvaluate() -> Pass:  # noqa: N802
    """Return a pass that partially evaluates functions (TVM's PartialEvaluate)."""
    return _partial_evaluate
