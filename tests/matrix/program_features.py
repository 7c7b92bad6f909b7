"""Well-typed Relay programs made by Hypothesis: lets, choices, matches with nested patterns,
closures, tuples, data, polymorphic functions, recursion bounded by fuel, references, and tensors of
constant and symbolic sizes, in graphs with sharing.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from road_programs import Array, Builder

from ekiden import relay
from ekiden.relay import (
    Call,
    Clause,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    IRModule,
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
    SizeVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    TypeCall,
    TypeData,
    Var,
    const,
    op,
    parse,
    tensor_type,
)
from ekiden.relay.transform import InferType
from ekiden.relay.visitor import children, post_order, rebuild
from ekiden.runtime import Device

_T = TypeVar("_T")

LIBRARY = parse(
    """
    type List[A] { Cons(A, List[A]), Nil, }
    type Shape { Dot, Line(float32), Both(Shape, (int32, Shape)), }
    def @id[A](%x: A) -> A { %x }
    def @twice[A](%f: fn (A) -> A, %x: A) -> A { %f(%f(%x)) }
    def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
      match (%l) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil, }
    }
    def @foldl[A, B](%f: fn (B, A) -> B, %b: B, %l: List[A]) -> B {
      match (%l) { Cons(%x, %rest) => @foldl(%f, %f(%b, %x), %rest), Nil => %b, }
    }
    def @times[A](%n: int32, %f: fn (A) -> A, %x: A) -> A {
      if (%n <= 0) { %x } else { @times(%n - 1, %f, %f(%x)) }
    }
    def @even(%n: int32) -> bool { if (%n <= 0) { True } else { @odd(%n - 1) } }
    def @odd(%n: int32) -> bool { if (%n <= 0) { False } else { @even(%n - 1) } }
    """
)
LIST, SHAPE = (LIBRARY.get_global_type_var(n) for n in ("List", "Shape"))
ROWS = SizeVar("n")
FLOAT, INT, BOOL = (tensor_type((), d) for d in ("float32", "int32", "bool"))
VECTOR, MATRIX = tensor_type((3,)), tensor_type((ROWS, 3))
TENSORS = (FLOAT, INT, BOOL, VECTOR, MATRIX)


@dataclass
class Maker:
    """Draws one program."""

    draw: Callable[[st.SearchStrategy[Any]], Any]
    has_references: bool
    networks: Builder
    """Grows tensors from parameters of their own, which can be used everywhere in `main`."""
    used: set[str] = field(default_factory=set)
    count: int = 0

    def number(self, low: int, high: int) -> int:
        found: int = self.draw(st.integers(low, high))
        return found

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[self.number(0, len(choices) - 1)]

    def name(self, kind: Type | None) -> Var:
        """A new variable; its hint is often that of another."""
        self.count += 1
        return Var(self.pick(["a", "b", "x.1", f"v{self.count}"]), kind)

    def library(self, name: str) -> GlobalVar:
        self.used.add(name)
        return LIBRARY.get_global_var(name)

    def type(self, depth: int) -> Type:
        """A type of values that have no functions or references inside."""
        kind = self.number(0, 7 if depth else 4)
        if kind <= 4:
            return TENSORS[kind]
        if kind == 5:
            return TupleType([self.type(depth - 1) for _ in range(self.number(0, 3))])
        return SHAPE() if kind == 6 else LIST(self.type(depth - 1))


Makes = Callable[["Scope", Type, int], "Expr | None"]


@dataclass
class Scope:
    """What can be used at one place of a program."""

    maker: Maker
    known: list[tuple[Expr, Type]]
    """Variables, and values that may be shared."""

    def inside(self, *new: tuple[Expr, Type]) -> Scope:
        return Scope(self.maker, [*self.known, *new])

    def make(self, kind: Type, depth: int) -> Expr:
        """An expression of a type; what is made may be used again in this scope."""
        maker = self.maker
        found: Expr | None = None
        if depth > 0 and maker.number(0, 7):
            found = maker.pick(FORMS)(self, kind, depth - 1)
        if found is None:
            found = self.leaf(kind)
        self.known.append((found, kind))
        return found

    def leaf(self, kind: Type) -> Expr:
        """Something known of the type, or the smallest value of it."""
        known = [e for e, k in self.known if k == kind]
        if known and self.maker.number(0, 3):
            return self.maker.pick(known)
        return self.smallest(kind)

    def smallest(self, kind: Type) -> Expr:
        maker = self.maker
        match kind:
            case TupleType(fields=fields):
                return Tuple([self.leaf(f) for f in fields])
            case FuncType(arg_types=args, ret_type=ret):
                params = [maker.name(a) for a in args]
                return Function(params, self.inside(*zip(params, args, strict=True)).leaf(ret), ret)
            case TypeCall(func=func, args=args):
                data = LIBRARY.type_definitions[func]  # type: ignore[index]
                assert isinstance(data, TypeData)
                nullary = [c for c in data.constructors if not c.inputs]
                return Call(nullary[0], (), None, args)
            case relay.RelayRefType(value=value):
                return RefCreate(self.leaf(value))
        return self.constant(kind)

    def constant(self, kind: Type) -> Expr:
        maker = self.maker
        if kind == MATRIX:
            rows = next(e for e, k in self.known if k == MATRIX)
            return maker.pick([op.negative, op.tanh])(rows)
        if kind == VECTOR:
            return const(np.array([maker.number(-3, 3), 0.5, -1.0], np.float32))
        if kind == BOOL:
            return const(bool(maker.number(0, 1)))
        value = maker.number(-4, 4)
        return const(value, "int32") if kind == INT else const(value / 4, "float32")


# What an expression can be: each gives None where it does not fit the type


def share(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A value that is used elsewhere too."""
    known = [e for e, k in s.known if k == kind and not isinstance(e, Var)]
    return s.maker.pick(known) if known else None


def bind(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`let %a = value; body`"""
    value_kind = s.maker.type(1)
    value = s.make(value_kind, depth)
    name = s.maker.name(s.maker.pick([None, value_kind]))
    return Let(name, value, s.inside((name, value_kind)).make(kind, depth))


def choose(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`if (c) { a } else { b }`"""
    test = s.make(BOOL, min(depth, 1))
    return If(test, s.inside().make(kind, depth), s.inside().make(kind, depth))


def tuple_field(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`(a, b).1`"""
    kinds = [s.maker.type(0) for _ in range(s.maker.number(0, 2))]
    at = s.maker.number(0, len(kinds))
    whole = TupleType([*kinds[:at], kind, *kinds[at:]])
    return TupleGetItem(s.make(whole, depth), at)


def parts(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A tuple, a function or data from parts that are made."""
    match kind:
        case TupleType(fields=fields):
            return Tuple([s.make(f, depth) for f in fields])
        case FuncType(arg_types=args, ret_type=ret):
            return function(s, args, ret, depth)
        case relay.RelayRefType(value=value):
            return RefCreate(s.make(value, depth))
        case TypeCall(func=func, args=args):
            data = LIBRARY.type_definitions[func]  # type: ignore[index]
            assert isinstance(data, TypeData)
            made = s.maker.pick(data.constructors)
            kinds = [with_args(k, data, args) for k in made.inputs]
            written = args if not kinds else s.maker.pick([args, ()])
            return Call(made, [s.make(k, depth) for k in kinds], None, written)
    return tensor(s, kind, depth)


def with_args(kind: Type, data: TypeData, args: Sequence[Type]) -> Type:
    return relay.visitor.substitute_type(kind, dict(zip(data.type_vars, args, strict=True)))


def function(s: Scope, args: Sequence[Type], ret: Type, depth: int) -> Function:
    params = [s.maker.name(a) for a in args]
    body = s.inside(*zip(params, args, strict=True)).make(ret, depth)
    return Function(params, body, s.maker.pick([ret, None]))


def tensor(s: Scope, kind: Type, depth: int) -> Expr | None:
    """An operator. What decides a choice is exact: no comparison of floats that were computed."""
    one = s.make(kind, depth)
    if kind == BOOL:
        test = s.maker.pick([op.less, op.equal, op.greater_equal])
        return test(s.make(INT, depth), s.make(INT, depth))
    if kind == INT:
        seven = const(7, "int32")
        both = s.maker.pick([op.add, op.subtract, op.maximum])(one, s.make(INT, depth))
        return op.floor_mod(both, seven)
    bounded = s.maker.pick([op.tanh, op.sigmoid, op.nn.relu, op.negative])
    if kind == FLOAT:
        return s.maker.pick([bounded, lambda x: op.sum(op.multiply(s.make(VECTOR, 0), x))])(one)
    if kind == VECTOR and s.maker.number(0, 2) == 0:
        return op.tanh(op.sum(s.make(MATRIX, depth), axis=0))
    if kind == MATRIX and s.maker.number(0, 2) == 0:
        back = op.reshape(op.transpose(one), (3, ROWS))
        return op.nn.softmax(op.transpose(back))
    other = s.make(s.maker.pick([kind, FLOAT, VECTOR]), depth)
    mixed = s.maker.pick([op.add, op.subtract, op.multiply, op.minimum])(one, other)
    return bounded(mixed)


def match_list(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`match (l) { Cons(x, Cons(y, _)) => ..., Cons(x, _) => ..., Nil => ... }`"""
    item = s.maker.type(1)
    clauses = [*patterns(s, LIST(item), 2), PatternWildcard()]
    return match(s, LIST(item), clauses, kind, depth)


def match_any(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A match of a value of any type, with nested patterns and a last one that fits all."""
    of = s.maker.pick([SHAPE(), TupleType([SHAPE(), LIST(INT)]), TupleType([FLOAT, INT])])
    return match(s, of, [*patterns(s, of, 3), PatternWildcard()], kind, depth)


def patterns(s: Scope, kind: Type, depth: int) -> list[Pattern]:
    return [pattern(s, kind, depth) for _ in range(s.maker.number(0, 3))]


def pattern(s: Scope, kind: Type, depth: int) -> Pattern:
    if depth and s.maker.number(0, 2):
        if isinstance(kind, TupleType):
            return PatternTuple([pattern(s, f, depth - 1) for f in kind.fields])
        if isinstance(kind, TypeCall):
            data = LIBRARY.type_definitions[kind.func]  # type: ignore[index]
            assert isinstance(data, TypeData)
            made = s.maker.pick(data.constructors)
            inner = [with_args(k, data, kind.args) for k in made.inputs]
            return PatternConstructor(made, [pattern(s, k, depth - 1) for k in inner])
    return PatternVar(s.maker.name(kind)) if s.maker.number(0, 1) else PatternWildcard()


def match(s: Scope, of: Type, every: Sequence[Pattern], kind: Type, depth: int) -> Expr:
    data = s.make(of, depth)
    clauses = []
    for each in every:
        bound = [(v, v.type_annotation) for v in relay.visitor.pattern_vars(each)]
        known = [(v, k) for v, k in bound if k is not None]
        clauses.append(Clause(each, s.inside(*known).make(kind, depth)))
    return Match(data, clauses)


def call_here(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`(fn (a) { ... })(x)`, or the same through a let."""
    args = [s.maker.type(1) for _ in range(s.maker.number(0, 2))]
    made = s.make(FuncType(args, kind), depth)
    given = [s.make(a, depth) for a in args]
    if s.maker.number(0, 1):
        return Call(made, given)
    name = s.maker.name(None)
    return Let(name, made, Call(name, given))


def closure_of_choice(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A function that a choice gives, or that another function gives."""
    arg = s.maker.type(0)
    wanted = FuncType([arg], kind)
    if s.maker.number(0, 1):
        test = s.make(BOOL, 0)
        made: Expr = If(test, s.inside().make(wanted, depth), s.inside().make(wanted, depth))
    else:
        made = Call(s.make(FuncType([INT], wanted), depth), [s.make(INT, 0)])
    return Call(made, [s.make(arg, depth)])


def recursion(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`let %f = fn (n, a) { if (n <= 0) { a } else { step of %f(n - 1, a) } }; %f(2, x)`"""
    m = s.maker
    itself, fuel, given = Var("f"), m.name(INT), m.name(kind)
    again = Call(itself, [op.subtract(fuel, const(1)), given])
    inside = s.inside((fuel, INT), (given, kind))
    step: Expr
    if m.number(0, 1):
        less = op.subtract(fuel, const(1))
        step = Call(itself, [less, inside.inside().make(kind, depth)])
    else:
        step = inside.inside((again, kind), (again, kind)).make(kind, depth)
    body = If(op.less_equal(fuel, const(0)), given, step)
    loop = Function([fuel, given], body, kind)
    start = [const(m.number(0, 3), "int32"), s.make(kind, depth)]
    return Let(itself, loop, Call(itself, start))


def network(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A number from operators over tensors of several ranks and sizes."""
    if kind != FLOAT:
        return None
    return op.sum(op.tanh(tensors(s.maker)))


def tensors(m: Maker) -> Expr:
    """A tensor that a few operators compute."""
    for _ in range(m.number(1, 5)):
        if not m.networks.values or m.number(0, 5) == 0:
            m.networks.param()
        made = m.networks.step()
    return made


def use_library(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A polymorphic function of the library, or one of two that call each other."""
    m = s.maker
    if kind == BOOL:
        return Call(m.library(m.pick(["even", "odd"])), [s.make(INT, depth)])
    form = m.number(0, 4)
    if form == 0:
        return Call(m.library("id"), [s.make(kind, depth)])
    if form == 1:
        return Call(
            m.library("twice"), [s.make(FuncType([kind], kind), depth), s.make(kind, depth)]
        )
    if form == 2:
        step = s.make(FuncType([kind], kind), depth)
        return Call(m.library("times"), [const(m.number(0, 3), "int32"), step, s.make(kind, depth)])
    if isinstance(kind, TypeCall) and kind.func == LIST:
        item = m.type(0)
        step = s.make(FuncType([item], kind.args[0]), depth)
        return Call(m.library("map"), [step, s.make(LIST(item), depth)])
    item = m.type(0)
    step = s.make(FuncType([kind, item], kind), depth)
    return Call(m.library("foldl"), [step, s.make(kind, depth), s.make(LIST(item), depth)])


def reference(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`let %r = ref(a); let %_ = ref_write(%r, b); ref_read(%r)`"""
    if not s.maker.has_references:
        return None
    cell, done = s.maker.name(None), s.maker.name(None)
    inside = s.inside((cell, relay.RelayRefType(kind)))
    write = RefWrite(cell, inside.inside().make(kind, depth))
    last = Tuple([RefRead(cell), inside.inside().make(kind, 0)])
    return Let(cell, RefCreate(s.make(kind, depth)), Let(done, write, TupleGetItem(last, 0)))


FORMS: tuple[Makes, ...] = (
    share, share, bind, bind, choose, tuple_field, parts, parts, parts, match_list, match_any,
    call_here, closure_of_choice, recursion, use_library, use_library, network, reference,
)  # fmt: skip


@dataclass
class Program:
    """A module, and arguments for its `main`."""

    module: IRModule
    networks: Builder

    def arguments(self, seed: int) -> list[Array]:
        """A float32, an int32, a bool, a vector, a matrix of n rows, and what networks take; other
        sizes with each seed, none of the matrix with the first.
        """
        rng = np.random.default_rng(seed)
        for symbol in self.networks.symbols:
            self.networks.symbols[symbol] = (self.networks.symbols[symbol] * 3 + seed) % 7
        return [
            np.asarray(rng.normal(), np.float32),
            np.asarray(rng.integers(-3, 7), np.int32),
            np.asarray(seed % 2 == 1),
            rng.normal(size=3).astype(np.float32),
            rng.normal(size=(seed * 2 % 5, 3)).astype(np.float32),
            *self.networks.arrays(seed),
        ]


@st.composite
def programs(draw: st.DrawFn, has_references: bool = True, depth: int = 6) -> Program:
    """A program whose `main` gives a value without functions, or a tensor beside one."""
    maker = Maker(draw, has_references, Builder(draw))
    params = [Var(name, kind) for name, kind in zip("fibvm", TENSORS, strict=True)]
    scope = Scope(maker, list(zip(params, TENSORS, strict=True)))
    result = maker.type(2)
    body = scope.make(result, depth)
    if maker.number(0, 2) == 0:
        made = tensors(maker)
        body, result = Tuple([body, made]), TupleType([result, relay.infer_expr_type(made)])
    main = Function([*params, *maker.networks.params], body, maker.pick([result, None]))
    return Program(with_library({"main": main}, maker.used), maker.networks)


def with_library(functions: dict[str, Function], used: set[str]) -> IRModule:
    """A module of some functions and those of the library that they need."""
    needs = relay.analysis.CallGraph(LIBRARY)
    work, found = sorted(used), dict.fromkeys(sorted(used))
    while work:
        new = [g.name_hint for g in needs[work.pop()] if g.name_hint not in found]
        found.update(dict.fromkeys(new))
        work += new
    every: dict[GlobalVar | str, relay.Expr] = {
        LIBRARY.get_global_var(n): LIBRARY[n] for n in found
    }
    return IRModule({**every, **functions}, LIBRARY.type_definitions)  # type: ignore[dict-item]


PLACED = (Call, If, Let, Match, TupleGetItem)


def with_places(module: IRModule, devices: Sequence[Device], share: float) -> IRModule:
    """A module with marks on a share of its tensors, by chance: where they are computed, where
    they are needed, or both."""
    chance = random.Random(zlib.crc32(module.astext().encode()))
    made: dict[GlobalVar | str, relay.Expr] = {}
    for name, function in InferType()(module).functions.items():
        new: dict[Expr, Expr] = {}
        for expr in post_order(function, into_functions=True):
            parts = [new[child] for child in children(expr)]
            new[expr] = rebuild(expr, parts) if parts else expr
            kind = expr.checked_type_or_none()
            is_tensor = isinstance(expr, PLACED) and isinstance(kind, TensorType)
            if is_tensor and chance.random() < share:
                body = chance.random() < 0.8
                new[expr] = relay.annotation.on_device(
                    new[expr],
                    chance.choice(devices),
                    constrain_body=body,
                    constrain_result=not body or chance.random() < 0.3,
                )
        made[name] = new[function]
    return IRModule(made, module.type_definitions)  # type: ignore[arg-type]
