"""Continuation-passing style (CPS): functions take a continuation as their last argument instead of
returning.

    def @main(%x: T) -> R { @f(%x) + 1f }
->  def @main[A](%x: T, %k: fn (R) -> A) -> A {
      @f(%x, fn (%v: R) -> A { let %w = %v + 1f; %k(%w) }) }

A is what the whole computation answers; a function is polymorphic in it. Calls of functions are the
last thing that is done; operators, constructors, primitive functions and references stay as they
are. `UnCPS` gives such functions their types back, by the continuation that does nothing.

Functions are brought into A-normal form first. Fields of data types that are functions themselves
are refused; type arguments (`List[fn (R) -> R]`) are not.

    [[x]] k                                =  k(x)
    [[let y = f(x); e]] k                  =  f(x, fn (y) { [[e]] k })
    [[let y = if (c) {a} else {b}; e]] k   =  let j = fn (y) { [[e]] k };
                                              if (c) { [[a]] j } else { [[b]] j }

The join point j keeps the size linear: without it what follows an If would stand in both branches,
and a chain of n of them would be 2^n long. A call whose result is the result hands its own
continuation on, so that tail calls stay such.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext, Sequential, module_pass
from ekiden.ir.type import FuncType, Type, TypeVar
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
    Var,
)
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import LetChain, parse_let_chain
from ekiden.relay.transform.language.scope_tree import bodies, is_atom
from ekiden.relay.transform.language.to_a_normal_form import to_a_normal_form
from ekiden.relay.visitor import (
    ExprMutator,
    bound_vars,
    children,
    map_pattern,
    map_type,
    post_order,
    rebuild,
    substitute_type,
    type_post_order,
)
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

CPS_SUFFIX = "_cps"
"""Name suffix of CPS functions beside their direct-style counterparts."""


def cps_type(kind: Type, answer: Type) -> Type:
    """Add a continuation parameter to every function type within a type."""

    def add_continuation(at: Type) -> Type:
        """Map fn(a) -> r to fn(a, fn(r) -> answer) -> answer."""
        if not isinstance(at, FuncType):
            return at
        # The answer type is a type variable, so that every caller may choose its own final result.
        after = FuncType((at.ret_type,), answer)
        return FuncType((*at.arg_types, after), answer, at.type_params)

    return map_type(kind, add_continuation)


@dataclass(slots=True, eq=False)
class _CPSBody:
    """Let chain to convert, with the continuation of its result."""

    chain: LetChain
    continuation: RelayExpr
    nested_bodies: dict[int, list[_CPSBody]] = field(default_factory=dict)
    """Bodies of the function or branches that a binding contains, by binding index."""
    join_points: dict[int, Var] = field(default_factory=dict)
    """Continuation shared by the branches of a binding, by binding index."""
    converted: RelayExpr | None = None


class _CPSConverter:
    """CPS converter of one typed global function."""

    def __init__(self, names: Mapping[GlobalVar, GlobalVar]) -> None:
        """Create a converter; `names` maps the functions that take a continuation to their new
        names.
        """
        self.names = names
        self.answer_type = TypeVar("Answer")
        self.converted: dict[RelayExpr, RelayExpr] = {}

    def convert_function(self, function: Function) -> Function:
        """Convert a function; its result is polymorphic in the answer type."""
        body = to_a_normal_form(function.body)
        for var in (*function.params, *bound_vars(body)):
            old_type = var.checked_type_or_none() or var.type_annotation
            kind = None if old_type is None else cps_type(old_type, self.answer_type)
            self.converted[var] = Var(var.name_hint, kind, span=var.span)
        for node in post_order(body, into_functions=True):
            self._check_constructors(node)
        last = self._fresh_continuation(function.body.checked_type)
        new_body = self._convert_body(body, last)
        params = (*(self._new_var(p) for p in function.params), last)
        kinds = (*function.type_params, self.answer_type)
        return Function(
            params, new_body, self.answer_type, kinds, function.attrs, span=function.span
        )

    @staticmethod
    def _check_constructors(at: RelayExpr) -> None:
        used = [p.constructor for p in _constructor_patterns(at)]
        for constructor in [*used, at] if isinstance(at, Constructor) else used:
            if any(isinstance(k, FuncType) for k in constructor.inputs):
                name = constructor.name_hint
                raise CompileError(f"ToCPS: expected data without functions, got fields of {name}")

    def _fresh_continuation(self, kind: Type) -> Var:
        return Var("k", FuncType((cps_type(kind, self.answer_type),), self.answer_type))

    def _new_var(self, old: RelayExpr) -> Var:
        new_var = self.converted[old]
        assert isinstance(new_var, Var)
        return new_var

    def _convert_atom(self, old: RelayExpr) -> RelayExpr:
        """Return the converted form of an atom."""
        if isinstance(old, GlobalVar):
            return self.names.get(old, old)
        return self.converted.get(old, old)

    def _convert_body(self, root: RelayExpr, after: RelayExpr) -> RelayExpr:
        """Convert an A-normal form whose result is passed to a continuation. Iterative."""
        first = _CPSBody(parse_let_chain(root), after)
        order = [first]
        for body in order:
            for number, (var, value) in enumerate(body.chain.bindings):
                inside = self._body_continuation(body, number, var, value)
                if inside is not None:
                    body.nested_bodies[number] = [
                        _CPSBody(parse_let_chain(b), inside) for b in bodies(value)
                    ]
                    order.extend(body.nested_bodies[number])
        # Inner bodies are finished first, as outer ones contain them; an explicit worklist needs no
        # stack.
        for body in reversed(order):
            body.converted = self._emit_body(body)
        assert first.converted is not None
        return first.converted

    def _body_continuation(
        self, body: _CPSBody, number: int, var: Var, value: RelayExpr
    ) -> RelayExpr | None:
        """Return the continuation of the bodies within a bound value, or None if it has no
        bodies.
        """
        if not bodies(value):
            return None
        if isinstance(value, Function):
            return self._fresh_continuation(value.body.checked_type)
        # No join point: the branches end where the body does.
        if self._is_tail_binding(body, number):
            return body.continuation
        body.join_points[number] = self._fresh_continuation(value.checked_type)
        return body.join_points[number]

    @staticmethod
    def _is_tail_binding(body: _CPSBody, number: int) -> bool:
        chain = body.chain
        return number + 1 == len(chain.bindings) and chain.result is chain.bindings[number][0]

    def _emit_body(self, body: _CPSBody) -> RelayExpr:
        chain = body.chain
        assert chain.result is not None
        result: RelayExpr = Call(body.continuation, (self._convert_atom(chain.result),))
        for number in reversed(range(len(chain.bindings))):
            result = self._emit_binding(body, number, result)
        return result

    def _emit_binding(self, body: _CPSBody, number: int, following: RelayExpr) -> RelayExpr:
        """Emit a binding in front of the code that follows it."""
        old, value = body.chain.bindings[number]
        var, inner = self._new_var(old), body.nested_bodies.get(number, [])
        if isinstance(value, Function) and inner:
            return Let(var, self._convert_closure(value, inner[0]), following)
        is_call = isinstance(value, Call) and self._takes_continuation(value.op)
        if not (inner or is_call):
            return Let(var, self._rebuild_with_atoms(value), following)
        # The own continuation is passed on, so that a tail call stays one.
        if self._is_tail_binding(body, number):
            return self._pass_continuation(value, inner, body.continuation)
        after = Function((var,), following, self.answer_type)
        if is_call:
            return self._pass_continuation(value, inner, after)
        join = body.join_points[number]
        return Let(join, after, self._pass_continuation(value, inner, join))

    def _takes_continuation(self, callee: RelayExpr) -> bool:
        return callee in self.names or isinstance(callee, Var)

    def _rebuild_with_atoms(self, value: RelayExpr) -> RelayExpr:
        match value:
            case Constant():
                return value
            case Function():  # a primitive one with a name: who calls it gives a continuation
                kinds = [cps_type(p.checked_type, self.answer_type) for p in value.params]
                params = tuple(Var(f"a{i}", k) for i, k in enumerate(kinds))
                after = self._fresh_continuation(value.body.checked_type)
                body = Call(after, (Call(value, params),))
                return Function((*params, after), body, self.answer_type)
        return rebuild(value, [self._convert_atom(c) for c in children(value)])

    def _pass_continuation(
        self, value: RelayExpr, inner: Iterable[_CPSBody], after: RelayExpr
    ) -> RelayExpr:
        """Emit a call, If or Match whose result is passed to a continuation."""
        written = [body.converted for body in inner if body.converted is not None]
        match value:
            case Call(op=callee, args=args):
                new_args = (*map(self._convert_atom, args), after)
                kinds = [cps_type(k, self.answer_type) for k in value.type_args]
                if kinds and callee in self.names:
                    kinds.append(self.answer_type)
                return Call(
                    self._convert_atom(callee), new_args, None, tuple(kinds), span=value.span
                )
            case If(cond=cond):
                return If(self._convert_atom(cond), written[0], written[1], span=value.span)
            case Match(data=data, clauses=clauses, complete=complete):
                new = []
                for clause, rhs in zip(clauses, written, strict=True):
                    new.append(Clause(map_pattern(clause.lhs, self.converted), rhs))
                return Match(self._convert_atom(data), tuple(new), complete, span=value.span)
        raise AssertionError(f"neither a call nor a choice: {value}")

    def _convert_closure(self, function: Function, body: _CPSBody) -> Function:
        assert isinstance(body.continuation, Var) and body.converted is not None
        params = (*(self._new_var(p) for p in function.params), body.continuation)
        return Function(
            params, body.converted, self.answer_type, function.type_params, function.attrs,
            span=function.span,
        )  # fmt: skip


def _constructor_patterns(expr: RelayExpr) -> Iterator[PatternConstructor]:
    """Yield the constructor patterns of a match."""
    stack: list[Pattern] = [c.lhs for c in expr.clauses] if isinstance(expr, Match) else []
    while stack:
        current = stack.pop()
        if isinstance(current, PatternConstructor):
            yield current
        if isinstance(current, (PatternConstructor, PatternTuple)):
            stack.extend(current.patterns)


class _GlobalRenamer(ExprMutator):
    """Mutator that renames global variables."""

    def __init__(self, names: Mapping[GlobalVar, GlobalVar]) -> None:
        super().__init__()
        self.memo.update(names.items())


def _is_convertible(function: BaseFunc) -> bool:
    """Return whether a global function takes a continuation: not if it is primitive or for an
    external compiler.
    """
    is_relay = isinstance(function, Function) and not is_atom(function)
    return is_relay and function.attr("Compiler") is None


def _reachable_functions(module: IRModule, root: Function) -> list[GlobalVar]:
    """Return the convertible functions that a function calls, transitively."""
    reached: dict[GlobalVar, None] = {}
    work = [root]
    while work:
        for node in post_order(work.pop(), into_functions=True):
            if (
                isinstance(node, GlobalVar)
                and node not in reached
                and _is_convertible(module[node])
            ):
                reached[node] = None
                work.append(module[node])  # type: ignore[arg-type]
    return list(reached)


def _cps_name(module: IRModule, name: GlobalVar) -> GlobalVar:
    """Return the name of a function's CPS counterpart."""
    hint = name.name_hint + CPS_SUFFIX
    return module.get_global_var(hint) if hint in module else GlobalVar(hint)


_PREPARE_PASSES = Sequential((InferType(), EtaExpand(), InferType()), "PrepareForCPS")


@module_pass(name="ToCPS", opt_level=1)
def _to_cps(module: IRModule, context: PassContext) -> IRModule:
    typed = _PREPARE_PASSES(module)
    names = {g: g for g, f in typed.functions.items() if _is_convertible(f)}
    functions = dict(typed.functions)
    for name in names:
        function = functions[name]
        assert isinstance(function, Function)
        functions[name] = _CPSConverter(names).convert_function(function)
    return InferType()(typed.with_functions(functions))


def ToCPS() -> Pass:  # noqa: N802
    """Return a pass that converts all functions of a module to continuation-passing style (TVM's
    ToCPS).
    """
    return _to_cps


def to_cps(func: Function, mod: IRModule | None = None) -> Function:
    """Convert a function to continuation-passing style (TVM's to_cps).

    What it calls in `mod` stays, and gets a counterpart in this style, named with `_cps` behind.

    Raises:
        CompileError: For data whose fields are functions.
    """
    module = IRModule() if mod is None else mod
    placeholder = GlobalVar("the function of to_cps")
    typed = _PREPARE_PASSES(module.with_function(placeholder, func))
    root = typed[placeholder]
    assert isinstance(root, Function)
    names = {g: _cps_name(module, g) for g in _reachable_functions(typed, root)}
    for name, beside in names.items():
        function = typed[name]
        assert isinstance(function, Function)
        module[beside] = _CPSConverter(names).convert_function(function)
    return _CPSConverter(names).convert_function(root)


def _continuation_type(function: Function) -> FuncType | None:
    """Return the type of a function's continuation parameter, or None if it has none."""
    kinds = [p.type_annotation or p.checked_type_or_none() for p in function.params]
    last, answers = kinds[-1] if kinds else None, function.type_params
    if not isinstance(last, FuncType) or len(last.arg_types) != 1 or not answers:
        return None
    inside = type_post_order(last.arg_types[0])
    return last if last.ret_type is answers[-1] and answers[-1] not in inside else None


def _direct_style(function: Function, callee: RelayExpr) -> Function:
    """Wrap a CPS function in a direct-style one that passes the identity continuation."""
    after = _continuation_type(function)
    if after is None:
        raise CompileError(
            "un_cps: expected a function whose last parameter is a continuation of plain results, "
            f"got one of parameters {', '.join(str(p.type_annotation) for p in function.params)}"
        )
    result, answer = after.arg_types[0], function.type_params[-1]
    params = []
    for old in function.params[:-1]:
        kind = old.type_annotation or old.checked_type
        params.append(Var(old.name_hint, substitute_type(kind, {answer: result}), span=old.span))
    value, type_args = Var("result", result), function.type_params[:-1]
    call_args = (*params, Function((value,), value, result))
    body = Call(callee, call_args, None, (*type_args, result))
    return Function(tuple(params), body, result, type_args, span=function.span)


def un_cps(func: Function) -> Function:
    """Wrap a function that `to_cps` converted in one without a continuation (TVM's un_cps).

    Raises:
        CompileError: For a function without a continuation, and for one whose result is or holds a
            function.
    """
    return _direct_style(func, func)


@module_pass(name="UnCPS", opt_level=1, required=(InferType(),))
def _un_cps(module: IRModule, context: PassContext) -> IRModule:
    own = {
        name: f
        for name, f in module.functions.items()
        if isinstance(f, Function) and _continuation_type(f) is not None
    }
    names = {name: _cps_name(module, name) for name in own}
    functions: dict[GlobalVar, BaseFunc] = dict(module.functions)
    for name, function in own.items():
        renamed = _GlobalRenamer(names).visit(function)
        assert isinstance(renamed, Function)
        functions[names[name]] = renamed
        functions[name] = _direct_style(function, names[name])
    return InferType()(module.with_functions(functions))


def UnCPS() -> Pass:  # noqa: N802
    """Return a pass that restores the signatures of functions converted by `ToCPS`; each calls its
    `_cps` counterpart.
    """
    return _un_cps
