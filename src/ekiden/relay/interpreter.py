"""The meaning of Relay, executed with NumPy: what compiled programs are compared with, and how
constants are folded.

The machine keeps its own stack of steps, so neither a long program nor a deep recursion of the
program reaches Python's limit. Each activation of a function has a frame that remembers the value
of every expression, so a shared one is evaluated once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Union

import numpy as np

from ekiden.arith import evaluate as evaluate_prim
from ekiden.ir.attrs import Attrs, expression_fields
from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.node import fields_of
from ekiden.ir.op import OPS, Array, Op
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.text import shape_text, type_text
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Expr,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.runtime.errors import InputError, RunError

Symbols = dict[PrimVar, int]


@dataclass(slots=True, eq=False)
class ConstructorValue:
    """A value of an algebraic data type."""

    constructor: Constructor
    fields: tuple[Value, ...] = ()

    @property
    def tag(self) -> int:
        """The number of the constructor in its type."""
        return self.constructor.tag


@dataclass(slots=True, eq=False)
class RefValue:
    """A mutable cell."""

    value: Value


@dataclass(slots=True, eq=False)
class Frame:
    """The values of one activation; `outer` is where its function was made."""

    values: dict[Expr, Value] = field(default_factory=dict)
    outer: Frame | None = None
    symbols: Symbols = field(default_factory=dict)

    def find(self, expr: Expr) -> Value | None:
        """The value of an expression here or in a frame around, None if there is none yet."""
        at: Frame | None = self
        while at is not None:
            found = at.values.get(expr)
            if found is not None:
                return found
            at = at.outer
        return None


@dataclass(slots=True, eq=False)
class Closure:
    """A function and the frame it was made in."""

    function: Function
    frame: Frame | None = None


Value = Union[  # noqa: UP007 - it names itself
    Array, tuple["Value", ...], ConstructorValue, RefValue, Closure, Constructor, Op
]


def evaluate_call(
    op: Op | str, attrs: Attrs | None, arrays: Sequence[object]
) -> Array | tuple[Array, ...]:
    """The result of an operator on NumPy arrays (a tuple of arrays for a tuple argument), by its
    reference semantics.

    Raises RunError for an operator that has none.
    """
    name = op if isinstance(op, str) else op.name
    reference = OPS[name].reference
    if reference is None:
        raise RunError(
            f"{name}: the operator has no reference semantics, so it cannot be interpreted"
        )
    if OPS[name].variadic and len(arrays) == 1 and isinstance(arrays[0], tuple):
        arrays = arrays[0]
    result = reference(attrs, *arrays)
    return (
        tuple(map(np.asarray, result)) if isinstance(result, (tuple, list)) else np.asarray(result)
    )


def bind_attrs(attrs: Attrs, symbols: Mapping[PrimVar, int]) -> Attrs:
    """Attributes with every scalar expression evaluated, to an int or where the field holds none to
    an IntImm. What comes to 0 stays an IntImm: the number 0 means "copy" in a reshape.
    """
    exact = expression_fields(attrs.type_key)
    old = {f.name: getattr(attrs, f.name) for f in fields_of(attrs)}
    return attrs.with_fields(
        **{name: _bind_value(value, symbols, name in exact) for name, value in old.items()}
    )


def _bind_value(value: object, symbols: Mapping[PrimVar, int], is_exact: bool) -> object:
    if isinstance(value, PrimExpr) and not isinstance(value, IntImm):
        found = evaluate_prim(value, dict(symbols))
        return IntImm(found, value.dtype) if is_exact or found == 0 else found
    if isinstance(value, tuple):
        made = tuple(_bind_value(v, symbols, is_exact) for v in value)
        return value if all(a is b for a, b in zip(made, value, strict=True)) else made
    return value


def bind_symbols(kind: Type, value: Value, symbols: Symbols, what: str) -> None:
    """Check a value against a type and record what its named dimensions are. Raises InputError."""
    if isinstance(kind, TensorType) and isinstance(value, np.ndarray):
        _check_tensor(kind, value, what)
        for dim, extent in zip(kind.shape, value.shape, strict=True):
            _bind_dim(dim, extent, symbols, kind, value, what)
    elif isinstance(kind, TupleType) and isinstance(value, tuple):
        for number, (inner, each) in enumerate(zip(kind.fields, value, strict=True)):
            bind_symbols(inner, each, symbols, f"{what}.{number}")


def _check_tensor(kind: TensorType, value: Array, what: str) -> None:
    if len(kind.shape) != value.ndim or to_numpy(kind.dtype) != value.dtype:
        got = f"{value.dtype} of shape {value.shape}"
        raise InputError(
            f"{what}: expected {kind.dtype} of shape {shape_text(kind.shape)}, got {got}"
        )


def _bind_dim(
    dim: PrimExpr, extent: int, symbols: Symbols, kind: TensorType, value: Array, what: str
) -> None:
    expected = dim.value if isinstance(dim, IntImm) else extent
    if isinstance(dim, SizeVar):
        expected = symbols.setdefault(dim, extent)
    if expected != extent:
        shape = shape_text(kind.shape)
        reason = (
            "" if isinstance(dim, IntImm) else f", where {getattr(dim, 'name', dim)} is {expected}"
        )
        raise InputError(f"{what}: expected shape {shape}{reason}, got {value.shape}")


class Interpreter:
    """Evaluates expressions over the functions of a module."""

    def __init__(self, module: IRModule | None = None) -> None:
        self.module = module or IRModule()

    def evaluate(self, target: Expr | str = "main", *args: object) -> Value:
        """The value of an expression, or of a function (by name, GlobalVar or Function) applied to
        `args`.

        Arguments are arrays (or what NumPy makes arrays of), tuples of them, or values that
        evaluation gave.
        """
        expr = self.module.get_global_var(target) if isinstance(target, str) else target
        value = self._run(expr, Frame())
        if isinstance(value, Closure) and (args or not value.function.params):
            return self.apply(value, *args)
        if args:
            raise InputError(
                f"evaluate: got {len(args)} arguments for an expression that is not a function"
            )
        return value

    def apply(self, function: Value, *args: object) -> Value:
        """Call a function value."""
        params = [Var(f"arg{i}", None) for i in range(len(args))]
        callee = Var("function", None)
        frame = Frame({p: _to_value(a) for p, a in zip(params, args, strict=True)})
        frame.values[callee] = function
        return self._run(Call(callee, tuple(params), None), frame)

    def _run(self, root: Expr, frame: Frame) -> Value:
        stack: list[_Step] = [_Step(root, frame)]
        while stack:
            step = stack.pop()
            if step.phase == 0 and (self._is_ready(step.expr, step.frame)):
                continue
            try:
                _RULES[type(step.expr)](self, step, stack)
            except Exception as error:
                _note_place(error, step.expr)
                raise
        return self._value(root, frame)

    def _is_ready(self, expr: Expr, frame: Frame) -> bool:
        return type(expr) in _ATOMS or frame.find(expr) is not None

    def _value(self, expr: Expr, frame: Frame) -> Value:
        match expr:
            case Constant(data=data):
                return data
            case Op() | Constructor():
                return expr
            case GlobalVar(name_hint=name):
                function = self.module[expr] if expr in self.module.functions else self.module[name]
                if not isinstance(function, Function):
                    raise RunError(f"@{name}: a compiled kernel cannot be interpreted")
                return Closure(function)
        found = frame.find(expr)
        if found is None:
            raise RunError(
                f"variable %{expr.name_hint} is not bound"
                if isinstance(expr, Var)
                else f"no value: {expr!r}"
            )
        return found

    def _call(self, step: _Step, stack: list[_Step]) -> None:
        call, frame = step.expr, step.frame
        assert isinstance(call, Call)
        if step.phase == 0:
            stack.append(step.next())
            stack.extend(_Step(c, frame) for c in (*reversed(call.args), call.op))
        elif step.phase == 1:
            self._enter(call, step, stack)
        else:
            assert step.inner is not None
            frame.values[call] = self._value(step.inner.expr, step.inner.frame)

    def _enter(self, call: Call, step: _Step, stack: list[_Step]) -> None:
        callee = self._value(call.op, step.frame)
        args = tuple(self._value(a, step.frame) for a in call.args)
        if isinstance(callee, Closure):
            body = _Step(callee.function.body, self._frame(callee, args, step.frame.symbols))
            stack += (step.next(body), body)
        elif isinstance(callee, Constructor):
            step.frame.values[call] = ConstructorValue(callee, args)
        elif isinstance(callee, Op):
            attrs = bind_attrs(call.attrs, step.frame.symbols) if call.attrs is not None else None
            step.frame.values[call] = evaluate_call(callee, attrs, args)
        else:
            raise RunError(f"call: expected a function, got {type(callee).__name__}")

    def _frame(self, closure: Closure, args: tuple[Value, ...], caller: Symbols) -> Frame:
        params = closure.function.params
        if len(params) != len(args):
            raise InputError(f"call: expected {len(params)} arguments, got {len(args)}")
        outer = closure.frame
        frame = Frame(dict(zip(params, args, strict=True)), outer)
        own: Symbols = {}
        for p, a in zip(params, args, strict=True):
            if p.type_annotation is not None:
                bind_symbols(p.type_annotation, a, own, f"%{p.name_hint}")
        frame.symbols = {**caller, **(outer.symbols if outer is not None else {}), **own}
        return frame

    def _let(self, step: _Step, stack: list[_Step]) -> None:
        let, frame = step.expr, step.frame
        assert isinstance(let, Let)
        if step.phase == 0:
            stack += (step.next(), _Step(let.value, frame))
        elif step.phase == 1:
            value = self._value(let.value, frame)
            frame.values[let.var] = value
            if let.var.type_annotation is not None:
                bind_symbols(let.var.type_annotation, value, frame.symbols, f"%{let.var.name_hint}")
            stack += (step.next(), _Step(let.body, frame))
        else:
            frame.values[let] = self._value(let.body, frame)

    def _if(self, step: _Step, stack: list[_Step]) -> None:
        choice, frame = step.expr, step.frame
        assert isinstance(choice, If)
        if step.phase == 0:
            stack += (step.next(), _Step(choice.cond, frame))
        elif step.phase == 1:
            branch = (
                choice.true_branch if bool(self._value(choice.cond, frame)) else choice.false_branch
            )
            inner = _Step(branch, frame)
            stack += (step.next(inner), inner)
        else:
            assert step.inner is not None
            frame.values[choice] = self._value(step.inner.expr, frame)

    def _match(self, step: _Step, stack: list[_Step]) -> None:
        match, frame = step.expr, step.frame
        assert isinstance(match, Match)
        if step.phase == 0:
            stack += (step.next(), _Step(match.data, frame))
        elif step.phase == 1:
            inner = _Step(_choose(match, self._value(match.data, frame), frame), frame)
            stack += (step.next(inner), inner)
        else:
            assert step.inner is not None
            frame.values[match] = self._value(step.inner.expr, frame)

    def _function(self, step: _Step, stack: list[_Step]) -> None:
        assert isinstance(step.expr, Function)
        step.frame.values[step.expr] = Closure(step.expr, step.frame)

    def _simple(self, step: _Step, stack: list[_Step]) -> None:
        """An expression that is a function of the values of its parts."""
        expr, frame = step.expr, step.frame
        parts = _PARTS[type(expr)](expr)
        if step.phase == 0:
            stack.append(step.next())
            stack.extend(_Step(p, frame) for p in reversed(parts))
        else:
            frame.values[expr] = _combine(expr, tuple(self._value(p, frame) for p in parts))


@dataclass(slots=True)
class _Step:
    """Evaluate `expr` in `frame`; phases count what has been evaluated, `inner` is the body or
    branch being waited for.
    """

    expr: Expr
    frame: Frame
    phase: int = 0
    inner: _Step | None = None

    def next(self, inner: _Step | None = None) -> _Step:
        """The same work, one phase further."""
        return _Step(self.expr, self.frame, self.phase + 1, inner)


def _combine(expr: Expr, values: tuple[Value, ...]) -> Value:
    match expr:
        case Tuple():
            return values
        case TupleGetItem(index=index):
            assert isinstance(values[0], tuple)
            return values[0][index]
        case RefCreate():
            return RefValue(values[0])
    assert isinstance(values[0], RefValue)
    if isinstance(expr, RefRead):
        return values[0].value
    values[0].value = values[1]
    return ()


def _choose(match: Match, value: Value, frame: Frame) -> Expr:
    """The right side of the first clause that fits, its variables bound in the frame."""
    for clause in match.clauses:
        bound = _fit(clause.lhs, value)
        if bound is not None:
            frame.values.update(bound)
            return clause.rhs
    shown = (
        value.constructor.name_hint if isinstance(value, ConstructorValue) else type(value).__name__
    )
    raise RunError(f"match: no clause fits {shown}")


def _fit(pattern: Pattern, value: Value) -> dict[Expr, Value] | None:
    """The variables a pattern binds, None when it does not fit."""
    bound: dict[Expr, Value] = {}
    stack = [(pattern, value)]
    while stack:
        at, given = stack.pop()
        match at:
            case PatternVar(var=var):
                bound[var] = given
            case PatternTuple(patterns=inner):
                assert isinstance(given, tuple)
                stack.extend(zip(inner, given, strict=True))
            case PatternConstructor(constructor=made, patterns=inner):
                assert isinstance(given, ConstructorValue)
                if given.tag != made.tag:
                    return None
                stack.extend(zip(inner, given.fields, strict=True))
    return bound


def _to_value(value: object) -> Value:
    if isinstance(value, (tuple, list)):
        return tuple(map(_to_value, value))
    if isinstance(value, (ConstructorValue, RefValue, Closure, Constructor, Op)):
        return value
    return value if isinstance(value, np.ndarray) else np.asarray(value)


def _note_place(error: Exception, expr: Expr) -> None:
    """Say once which operator or node of the model failed."""
    is_operator = isinstance(expr, Call) and isinstance(expr.op, Op)
    if getattr(error, "__notes__", None) or (not is_operator and expr.span is None):
        return
    name = (
        expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else type(expr).__name__
    )
    known = expr.checked_type_or_none()
    kind = f": {type_text(known)}" if known is not None else ""
    error.add_note(
        f"while interpreting {name}{kind}" + (f", at {expr.span}" if expr.span is not None else "")
    )


_ATOMS = frozenset((Var, GlobalVar, Constant, Op, Constructor))
# fmt: off
_PARTS: dict[type, Callable[..., tuple[Expr, ...]]] = {
    Tuple:        lambda e: e.fields,
    TupleGetItem: lambda e: (e.tuple_value,),
    RefCreate:    lambda e: (e.value,),
    RefRead:      lambda e: (e.ref,),
    RefWrite:     lambda e: (e.ref, e.value),
}
_RULES = {
    Call:     Interpreter._call,
    Let:      Interpreter._let,
    If:       Interpreter._if,
    Match:    Interpreter._match,
    Function: Interpreter._function,
    **dict.fromkeys(_PARTS, Interpreter._simple),
}
# fmt: on
