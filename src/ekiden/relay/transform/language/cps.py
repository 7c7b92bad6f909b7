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
from ekiden.relay.transform.language.chains import Chain, unchain
from ekiden.relay.transform.language.eta_expand import EtaExpand
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import bodies, is_atom
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
"""What the names of functions in this style end in, where those without it stand beside them."""


def cps_type(kind: Type, answer: Type) -> Type:
    """Add a continuation parameter to every function type within a type."""

    def one(at: Type) -> Type:
        """Map fn(a) -> r to fn(a, fn(r) -> answer) -> answer."""
        if not isinstance(at, FuncType):
            return at
        # The answer type is a type variable, so that every caller may choose its own final result.
        after = FuncType((at.ret_type,), answer)
        return FuncType((*at.arg_types, after), answer, at.type_params)

    return map_type(kind, one)


@dataclass(slots=True, eq=False)
class _Body:
    """Let chain to convert, with the continuation of its result."""

    chain: Chain
    after: RelayExpr
    inner: dict[int, list[_Body]] = field(default_factory=dict)
    """Number of a binding -> the bodies of the function or the branches that it binds."""
    joins: dict[int, Var] = field(default_factory=dict)
    """Number of a binding -> the continuation that its branches share."""
    made: RelayExpr | None = None


class _Converter:
    """CPS converter of one typed global function."""

    def __init__(self, names: Mapping[GlobalVar, GlobalVar]) -> None:
        """Create a converter; `names` maps the functions that take a continuation to their new
        names.
        """
        self.names = names
        self.answer = TypeVar("Answer")
        self.new: dict[RelayExpr, RelayExpr] = {}

    def function(self, function: Function) -> Function:
        """Convert a function; its result is polymorphic in the answer type."""
        body = to_a_normal_form(function.body)
        for var in (*function.params, *bound_vars(body)):
            old_type = var.checked_type_or_none() or var.type_annotation
            kind = None if old_type is None else cps_type(old_type, self.answer)
            self.new[var] = Var(var.name_hint, kind, span=var.span)
        for at in post_order(body, into_functions=True):
            self._check(at)
        last = self._continuation(function.body.checked_type)
        new_body = self._converted(body, last)
        params = (*(self._var(p) for p in function.params), last)
        kinds = (*function.type_params, self.answer)
        return Function(params, new_body, self.answer, kinds, function.attrs, span=function.span)

    @staticmethod
    def _check(at: RelayExpr) -> None:
        used = [p.constructor for p in _patterns(at)]
        for constructor in [*used, at] if isinstance(at, Constructor) else used:
            if any(isinstance(k, FuncType) for k in constructor.inputs):
                name = constructor.name_hint
                raise CompileError(f"ToCPS: expected data without functions, got fields of {name}")

    def _continuation(self, kind: Type) -> Var:
        return Var("k", FuncType((cps_type(kind, self.answer),), self.answer))

    def _var(self, old: RelayExpr) -> Var:
        new_var = self.new[old]
        assert isinstance(new_var, Var)
        return new_var

    def _value(self, old: RelayExpr) -> RelayExpr:
        """Return the converted form of an atom."""
        if isinstance(old, GlobalVar):
            return self.names.get(old, old)
        return self.new.get(old, old)

    def _converted(self, root: RelayExpr, after: RelayExpr) -> RelayExpr:
        """Convert an A-normal form whose result is passed to a continuation. Iterative."""
        first = _Body(unchain(root), after)
        order = [first]
        for body in order:
            for number, (var, value) in enumerate(body.chain.bindings):
                inside = self._body_continuation(body, number, var, value)
                if inside is not None:
                    body.inner[number] = [_Body(unchain(b), inside) for b in bodies(value)]
                    order.extend(body.inner[number])
        # Inner bodies are finished first, as outer ones contain them; an explicit worklist needs no
        # stack.
        for body in reversed(order):
            body.made = self._written(body)
        assert first.made is not None
        return first.made

    def _body_continuation(
        self, body: _Body, number: int, var: Var, value: RelayExpr
    ) -> RelayExpr | None:
        """Return the continuation of the bodies within a bound value, or None if it has no
        bodies.
        """
        if not bodies(value):
            return None
        if isinstance(value, Function):
            return self._continuation(value.body.checked_type)
        # No join point: the branches end where the body does.
        if self._is_last(body, number):
            return body.after
        body.joins[number] = self._continuation(value.checked_type)
        return body.joins[number]

    @staticmethod
    def _is_last(body: _Body, number: int) -> bool:
        chain = body.chain
        return number + 1 == len(chain.bindings) and chain.result is chain.bindings[number][0]

    def _written(self, body: _Body) -> RelayExpr:
        chain = body.chain
        assert chain.result is not None
        result: RelayExpr = Call(body.after, (self._value(chain.result),))
        for number in reversed(range(len(chain.bindings))):
            result = self._binding(body, number, result)
        return result

    def _binding(self, body: _Body, number: int, following: RelayExpr) -> RelayExpr:
        """Emit a binding in front of the code that follows it."""
        old, value = body.chain.bindings[number]
        var, inner = self._var(old), body.inner.get(number, [])
        if isinstance(value, Function) and inner:
            return Let(var, self._closure(value, inner[0]), following)
        is_call = isinstance(value, Call) and self._takes_continuation(value.op)
        if not (inner or is_call):
            return Let(var, self._with_new_atoms(value), following)
        # The own continuation is passed on, so that a tail call stays one.
        if self._is_last(body, number):
            return self._with_continuation(value, inner, body.after)
        after = Function((var,), following, self.answer)
        if is_call:
            return self._with_continuation(value, inner, after)
        join = body.joins[number]
        return Let(join, after, self._with_continuation(value, inner, join))

    def _takes_continuation(self, callee: RelayExpr) -> bool:
        return callee in self.names or isinstance(callee, Var)

    def _with_new_atoms(self, value: RelayExpr) -> RelayExpr:
        match value:
            case Constant():
                return value
            case Function():  # a primitive one with a name: who calls it gives a continuation
                kinds = [cps_type(p.checked_type, self.answer) for p in value.params]
                params = tuple(Var(f"a{i}", k) for i, k in enumerate(kinds))
                after = self._continuation(value.body.checked_type)
                body = Call(after, (Call(value, params),))
                return Function((*params, after), body, self.answer)
        return rebuild(value, [self._value(c) for c in children(value)])

    def _with_continuation(
        self, value: RelayExpr, inner: Iterable[_Body], after: RelayExpr
    ) -> RelayExpr:
        """Emit a call, If or Match whose result is passed to a continuation."""
        written = [body.made for body in inner if body.made is not None]
        match value:
            case Call(op=callee, args=args):
                new_args = (*map(self._value, args), after)
                kinds = [cps_type(k, self.answer) for k in value.type_args]
                if kinds and callee in self.names:
                    kinds.append(self.answer)
                return Call(self._value(callee), new_args, None, tuple(kinds), span=value.span)
            case If(cond=cond):
                return If(self._value(cond), written[0], written[1], span=value.span)
            case Match(data=data, clauses=clauses, complete=complete):
                new = []
                for clause, rhs in zip(clauses, written, strict=True):
                    new.append(Clause(map_pattern(clause.lhs, self.new), rhs))
                return Match(self._value(data), tuple(new), complete, span=value.span)
        raise AssertionError(f"neither a call nor a choice: {value}")

    def _closure(self, function: Function, body: _Body) -> Function:
        assert isinstance(body.after, Var) and body.made is not None
        params = (*(self._var(p) for p in function.params), body.after)
        return Function(
            params, body.made, self.answer, function.type_params, function.attrs,
            span=function.span,
        )  # fmt: skip


def _patterns(expr: RelayExpr) -> Iterator[PatternConstructor]:
    """Yield the constructor patterns of a match."""
    stack: list[Pattern] = [c.lhs for c in expr.clauses] if isinstance(expr, Match) else []
    while stack:
        at = stack.pop()
        if isinstance(at, PatternConstructor):
            yield at
        if isinstance(at, (PatternConstructor, PatternTuple)):
            stack.extend(at.patterns)


class _Renaming(ExprMutator):
    def __init__(self, names: Mapping[GlobalVar, GlobalVar]) -> None:
        super().__init__()
        self.memo.update(names.items())


def _is_converted(function: BaseFunc) -> bool:
    """Return whether a global function takes a continuation: not if it is primitive or for an
    external compiler.
    """
    is_relay = isinstance(function, Function) and not is_atom(function)
    return is_relay and function.attr("Compiler") is None


def _reached(module: IRModule, root: Function) -> list[GlobalVar]:
    """Return the convertible functions that a function calls, transitively."""
    reached: dict[GlobalVar, None] = {}
    work = [root]
    while work:
        for at in post_order(work.pop(), into_functions=True):
            if isinstance(at, GlobalVar) and at not in reached and _is_converted(module[at]):
                reached[at] = None
                work.append(module[at])  # type: ignore[arg-type]
    return list(reached)


def _cps_name(module: IRModule, name: GlobalVar) -> GlobalVar:
    """Return the name of a function's CPS counterpart."""
    hint = name.name_hint + CPS_SUFFIX
    return module.get_global_var(hint) if hint in module else GlobalVar(hint)


_PREPARED = Sequential((InferType(), EtaExpand(), InferType()), "PrepareForCPS")


@module_pass(name="ToCPS", opt_level=1)
def _to_cps(module: IRModule, context: PassContext) -> IRModule:
    typed = _PREPARED(module)
    names = {g: g for g, f in typed.functions.items() if _is_converted(f)}
    functions = dict(typed.functions)
    for name in names:
        function = functions[name]
        assert isinstance(function, Function)
        functions[name] = _Converter(names).function(function)
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
    own = GlobalVar("the function of to_cps")
    typed = _PREPARED(module.with_function(own, func))
    root = typed[own]
    assert isinstance(root, Function)
    names = {g: _cps_name(module, g) for g in _reached(typed, root)}
    for name, beside in names.items():
        function = typed[name]
        assert isinstance(function, Function)
        module[beside] = _Converter(names).function(function)
    return _Converter(names).function(root)


def _continuation_of(function: Function) -> FuncType | None:
    """Return the type of a function's continuation parameter, or None if it has none."""
    kinds = [p.type_annotation or p.checked_type_or_none() for p in function.params]
    last, answers = kinds[-1] if kinds else None, function.type_params
    if not isinstance(last, FuncType) or len(last.arg_types) != 1 or not answers:
        return None
    inside = type_post_order(last.arg_types[0])
    return last if last.ret_type is answers[-1] and answers[-1] not in inside else None


def _direct_style(function: Function, callee: RelayExpr) -> Function:
    """Wrap a CPS function in a direct-style one that passes the identity continuation."""
    after = _continuation_of(function)
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
        if isinstance(f, Function) and _continuation_of(f) is not None
    }
    names = {name: _cps_name(module, name) for name in own}
    functions: dict[GlobalVar, BaseFunc] = dict(module.functions)
    for name, function in own.items():
        renamed = _Renaming(names).visit(function)
        assert isinstance(renamed, Function)
        functions[names[name]] = renamed
        functions[name] = _direct_style(function, names[name])
    return InferType()(module.with_functions(functions))


def UnCPS() -> Pass:  # noqa: N802
    """Return a pass that restores the signatures of functions converted by `ToCPS`; each calls its
    `_cps` counterpart.
    """
    return _un_cps
