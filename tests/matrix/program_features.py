"""The features of programs: how an expression of a type is grown that has each of them.

A rule returns None where it does not fit the type. What decides a branch is exact: no float
that was computed is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from program_scope import (
    BOOL,
    FLOAT,
    INT,
    LIBRARY,
    LIST,
    SHAPE,
    TREE,
    UNKNOWN_MATRIX,
    VECTOR,
    Scope,
    with_args,
)

from ekiden import relay, te
from ekiden.relay import (
    Call,
    Clause,
    Expr,
    Function,
    FuncType,
    GlobalVar,
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
    qnn,
)
from ekiden.tir import PrimFunc

Rule = Callable[[Scope, Type, int], Expr | None]


@dataclass(frozen=True)
class Feature:
    """A row of FEATURES."""

    name: str
    rule: Rule | None
    """None for what is not an expression: a program has it as a whole."""
    weight: int
    """How often the rule is drawn."""
    is_straight: bool
    """Whether a program of these features alone is one line of kernels of known sizes."""


RULE_ATTEMPTS = 3
"""Rules that are tried for an expression before it is a leaf."""


def grow(s: Scope, kind: Type, depth: int) -> Expr:
    """Draw an expression of a type, which may be used again in this scope."""
    maker = s.maker
    expr: Expr | None = None
    if depth > 0 and maker.choices.integer(0, 7):
        allowed = [row for row in WEIGHTED if row.name in maker.allowed]
        for _ in range(RULE_ATTEMPTS):
            row = maker.choices.pick(allowed)
            assert row.rule is not None, "rows with a weight have one"
            expr = row.rule(s, kind, depth - 1)
            if expr is not None:
                maker.features.add(row.name)
                break
    if expr is None:
        expr = s.leaf(kind)
    s.known.append((expr, kind))
    return expr


def share(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A value that is used elsewhere too."""
    known = [e for e, k in s.known if k == kind and not isinstance(e, Var)]
    return s.maker.choices.pick(known) if known else None


def bind(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`let %a = value; body`"""
    value_kind = s.maker.type(1)
    value = grow(s, value_kind, depth)
    name = s.maker.variable(s.maker.choices.pick([None, value_kind]))
    return Let(name, value, grow(s.inside((name, value_kind)), kind, depth))


def branch(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`if (c) { a } else { b }`"""
    test = grow(s, BOOL, min(depth, 1))
    return If(test, grow(s.inside(), kind, depth), grow(s.inside(), kind, depth))


def tuple_field(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`(a, b)`, `(a, b).1`"""
    if isinstance(kind, TupleType):
        return Tuple([grow(s, field, depth) for field in kind.fields])
    kinds = [s.maker.type(0) for _ in range(s.maker.choices.integer(0, 2))]
    index = s.maker.choices.integer(0, len(kinds))
    whole = TupleType([*kinds[:index], kind, *kinds[index:]])
    return TupleGetItem(grow(s, whole, depth), index)


def parts(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A value of data by a constructor."""
    if not isinstance(kind, TypeCall):
        return None
    data = LIBRARY.type_definitions[kind.func]  # type: ignore[index]
    assert isinstance(data, TypeData)
    constructor = s.maker.choices.pick(data.constructors)
    kinds = [with_args(k, data, kind.args) for k in constructor.inputs]
    written = kind.args if not kinds else s.maker.choices.pick([kind.args, ()])
    return Call(constructor, [grow(s, k, depth) for k in kinds], None, written)


def function(s: Scope, kind: Type, depth: int) -> Expr:
    """A function of a type, or anything else of another."""
    if not isinstance(kind, FuncType):
        return grow(s, kind, depth)
    params = [s.maker.variable(a) for a in kind.arg_types]
    inside = s.inside(*zip(params, kind.arg_types, strict=True))
    body = grow(inside, kind.ret_type, depth)
    return Function(params, body, s.maker.choices.pick([kind.ret_type, None]))


def operators(s: Scope, kind: Type, depth: int) -> Expr | None:
    """An operator over tensors."""
    choices = s.maker.choices
    if not isinstance(kind, TensorType):
        return None
    one = grow(s, kind, depth)
    if kind == BOOL:
        test = choices.pick([op.less, op.equal, op.greater_equal])
        return test(grow(s, INT, depth), grow(s, INT, depth))
    if kind == INT:
        both = choices.pick([op.add, op.subtract, op.maximum])(one, grow(s, INT, depth))
        return op.floor_mod(both, const(7, "int32"))
    bounded = choices.pick([op.tanh, op.sigmoid, op.nn.relu, op.negative])
    if kind == FLOAT:
        total = lambda x: op.sum(op.multiply(grow(s, VECTOR, 0), x))  # noqa: E731
        return choices.pick([bounded, total])(one)
    matrix = s.maker.matrix
    if kind == VECTOR and choices.integer(0, 2) == 0:
        return op.tanh(op.sum(grow(s, matrix, depth), axis=0))
    if kind == matrix and choices.integer(0, 2) == 0:
        back = op.reshape(op.transpose(one), (3, matrix.shape[0]))
        return op.nn.softmax(op.transpose(back))
    other = grow(s, choices.pick([kind, FLOAT, VECTOR]), depth)
    mixed = choices.pick([op.add, op.subtract, op.multiply, op.minimum])(one, other)
    return bounded(mixed)


def match_list(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`match (l) { Cons(x, Cons(y, _)) => ..., Cons(x, _) => ..., Nil => ... }`"""
    item = s.maker.type(1)
    return match(s, LIST(item), 2, kind, depth)


def match_any(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A match of a tree, another data type or a tuple, with nested patterns."""
    of = s.maker.choices.pick(
        [SHAPE(), TREE(INT), TupleType([SHAPE(), LIST(INT)]), TupleType([FLOAT, INT])]
    )
    return match(s, of, 3, kind, depth)


def match(s: Scope, of: Type, nesting: int, kind: Type, depth: int) -> Expr:
    """Return a match of patterns that are drawn, and a last one that fits all."""
    count = s.maker.choices.integer(0, 3)
    patterns = [pattern(s, of, nesting) for _ in range(count)]
    data, clauses = grow(s, of, depth), []
    for lhs in (*patterns, PatternWildcard()):
        bound = [(v, v.type_annotation) for v in relay.visitor.pattern_vars(lhs)]
        known = [(v, k) for v, k in bound if k is not None]
        clauses.append(Clause(lhs, grow(s.inside(*known), kind, depth)))
    return Match(data, clauses)


def pattern(s: Scope, kind: Type, nesting: int) -> Pattern:
    """Draw a pattern for values of a type."""
    choices = s.maker.choices
    if nesting and choices.integer(0, 2):
        if isinstance(kind, TupleType):
            return PatternTuple([pattern(s, f, nesting - 1) for f in kind.fields])
        if isinstance(kind, TypeCall):
            data = LIBRARY.type_definitions[kind.func]  # type: ignore[index]
            assert isinstance(data, TypeData)
            constructor = choices.pick(data.constructors)
            kinds = [with_args(k, data, kind.args) for k in constructor.inputs]
            return PatternConstructor(constructor, [pattern(s, k, nesting - 1) for k in kinds])
    return PatternVar(s.maker.variable(kind)) if choices.integer(0, 1) else PatternWildcard()


def call_here(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`(fn (a) { ... })(x)`, or the same through a let."""
    kinds = [s.maker.type(1) for _ in range(s.maker.choices.integer(0, 2))]
    callee = function(s, FuncType(kinds, kind), depth)
    args = [grow(s, k, depth) for k in kinds]
    if s.maker.choices.integer(0, 1):
        return Call(callee, args)
    name = s.maker.variable(None)
    return Let(name, callee, Call(name, args))


def closure(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A function that a branch gives, or that another function gives."""
    arg, choices = s.maker.type(0), s.maker.choices
    callee_kind = FuncType([arg], kind)
    if "branch" in s.maker.allowed and choices.integer(0, 1):
        test, scopes = grow(s, BOOL, 0), (s.inside(), s.inside())
        callee: Expr = If(test, *(function(scope, callee_kind, depth) for scope in scopes))
        s.maker.features.add("branch")
    else:
        param = s.maker.variable(INT)
        inner = function(s.inside((param, INT)), callee_kind, depth)
        callee = Call(Function([param], inner), [grow(s, INT, 0)])
    return Call(callee, [grow(s, arg, depth)])


def recursion(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`let %f = fn (n, a) { if (n <= 0) { a } else { step of %f(n - 1, a) } }; %f(2, x)`"""
    m = s.maker
    itself, fuel, value = Var("f"), m.variable(INT), m.variable(kind)
    inside = s.inside((fuel, INT), (value, kind))
    less = op.subtract(fuel, const(1))
    if m.choices.integer(0, 1):
        step: Expr = Call(itself, [less, grow(inside.inside(), kind, depth)])
    else:
        again = Call(itself, [less, value])
        step = grow(inside.inside((again, kind), (again, kind)), kind, depth)
    loop = Function([fuel, value], If(op.less_equal(fuel, const(0)), value, step), kind)
    start = [const(m.choices.integer(0, 3), "int32"), grow(s, kind, depth)]
    return Let(itself, loop, Call(itself, start))


def list_recursion(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`@map(f, l)` or `@foldl(f, b, l)`"""
    m, item = s.maker, s.maker.type(0)
    if isinstance(kind, TypeCall) and kind.func == LIST:
        step = function(s, FuncType([item], kind.args[0]), depth)
        return Call(m.library("map"), [step, grow(s, LIST(item), depth)])
    step = function(s, FuncType([kind, item], kind), depth)
    return Call(m.library("foldl"), [step, grow(s, kind, depth), grow(s, LIST(item), depth)])


def tree_recursion(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`@foldt(leaf, node, t)`, `@grow(n, x)`"""
    m, item = s.maker, s.maker.type(0)
    if isinstance(kind, TypeCall) and kind.func == TREE:
        return Call(m.library("grow"), [grow(s, INT, 0), grow(s, kind.args[0], depth)])
    leaf = function(s, FuncType([item], kind), depth)
    node = function(s, FuncType([kind, kind], kind), depth)
    return Call(m.library("foldt"), [leaf, node, grow(s, TREE(item), depth)])


def polymorphic(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A polymorphic function, of a function too, or one of two that call each other."""
    m = s.maker
    if kind == BOOL:
        return Call(m.library(m.choices.pick(["even", "odd"])), [grow(s, INT, depth)])
    form = m.choices.integer(0, 2)
    if form == 0:
        return Call(m.library("id"), [grow(s, kind, depth)])
    step = function(s, FuncType([kind], kind), depth)
    if form == 1:
        return Call(m.library("twice"), [step, grow(s, kind, depth)])
    count = const(m.choices.integer(0, 3), "int32")
    return Call(m.library("times"), [count, step, grow(s, kind, depth)])


def reference(s: Scope, kind: Type, depth: int) -> Expr | None:
    """`let %r = ref(a); let %_ = type_of_ref_write(%r, b); type_of_ref_read(%r)`"""
    cell, done = s.maker.variable(None), s.maker.variable(None)
    inside = s.inside((cell, relay.RelayRefType(kind)))
    write = RefWrite(cell, grow(inside.inside(), kind, depth))
    last = Tuple([RefRead(cell), grow(inside.inside(), kind, 0)])
    return Let(cell, RefCreate(grow(s, kind, depth)), Let(done, write, TupleGetItem(last, 0)))


def network(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A number from operators over tensors of several ranks and sizes."""
    return op.sum(op.tanh(tensors(s))) if kind == FLOAT else None


def tensors(s: Scope) -> Expr:
    """Return a tensor that a few operators compute."""
    steps, choices = s.maker.steps, s.maker.choices
    for _ in range(choices.integer(1, 5)):
        if not steps.values or choices.integer(0, 5) == 0:
            steps.param()
        value = steps.step()
    return value


STEP = 0.125
"""Inputs are multiples of it, which quantisation by this scale keeps exactly."""


def quantised(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A product of bytes or a sum of quantised values; of parameters, whose levels are exact."""
    if kind not in (VECTOR, s.maker.matrix):
        return None
    choices = s.maker.choices
    inputs = [e for e, k in s.known if k == kind and isinstance(e, Var) and e.name_hint in "vm"]
    if not inputs:
        return None
    dtype = choices.pick(["int8", "uint8"])
    zero = const(choices.integer(0, 5), "int32")
    scale, wide = const(STEP), const(choices.pick([0.5, 0.25]))
    rows = op.reshape(inputs[0], (1, 3)) if kind == VECTOR else inputs[0]
    levels = qnn.op.quantize(rows, scale, zero, out_dtype=dtype)
    if choices.integer(0, 1):
        weight = const(np.array([[1, -2, 3], [0, 5, -7], [4, 4, -1]], np.int8))
        none, weight_scale = const(0, "int32"), const(0.25)
        sums = qnn.op.dense(levels, weight, zero, none, scale, weight_scale, units=3)
        levels = qnn.op.requantize(sums, const(STEP / 4), none, wide, zero, out_dtype=dtype)
    else:
        levels = qnn.op.add(levels, levels, scale, zero, scale, zero, wide, zero)
    back = qnn.op.dequantize(levels, wide, zero)
    return op.reshape(back, (3,)) if kind == VECTOR else back


def prim_call(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A call of a loop program of the module, or the sum of what it gives."""
    if kind not in (VECTOR, FLOAT):
        return None
    s.maker.used.add(LOOP)
    vector = Call(LOOPS, [grow(s, VECTOR, depth), grow(s, FLOAT, 0)])
    return vector if kind == VECTOR else op.sum(vector)


def loop_program() -> PrimFunc:
    """Return the loop program that `prim_call` calls: (x, a) -> x * 2 + a."""
    x, a = te.placeholder((3,), name="x"), te.placeholder((), name="a")
    return te.create_prim_func([x, a, te.compute((3,), lambda i: x[i] * 2.0 + a[()], name="y")])


LOOP = "kernel"
LOOPS = GlobalVar(LOOP)


def data_sizes(s: Scope, kind: Type, depth: int) -> Expr | None:
    """A sum over as many elements as data say: the positive ones, or a range; a vector to which it
    is added."""
    if kind == VECTOR:
        return op.add(grow(s, VECTOR, 0), grown_sum(s, depth))
    return grown_sum(s, depth) if kind == FLOAT else None


def grown_sum(s: Scope, depth: int) -> Expr:
    """Return a number that is summed over as many elements as data say."""
    if s.maker.choices.integer(0, 1):
        end = op.cast(grow(s, INT, depth), "int32")
        return op.sum(op.cast(op.arange(const(-4), end, const(1), dtype="int32"), "float32"))
    vector = grow(s, VECTOR, depth)
    positive = op.reshape(op.argwhere(op.greater(constant_part(s), const(0.0))), (-1,))
    return op.sum(op.take(vector, positive))


def constant_part(s: Scope) -> Expr:
    """Return the parameter %v, whose signs are exact, or a constant inside of a function."""
    known = [e for e, k in s.known if k == VECTOR and isinstance(e, Var) and e.name_hint == "v"]
    return known[0] if known else s.constant(VECTOR)


def unknown_sizes(s: Scope, kind: Type, depth: int) -> Expr | None:
    """An operator over a matrix of `?` rows."""
    known = [e for e, k in s.known if k == UNKNOWN_MATRIX]
    if kind == FLOAT and known:
        return op.sum(op.tanh(s.maker.choices.pick(known)))
    if kind == VECTOR and known:
        rows = s.maker.choices.pick(known)
        return op.tanh(op.sum(op.multiply(rows, grow(s, VECTOR, depth)), axis=0))
    return None


# fmt: off
FEATURES = (
    #       name               rule            weight straight
    Feature("operators",       operators,      3,     True),
    Feature("sharing",         share,          2,     True),
    Feature("let",             bind,           2,     True),
    Feature("tuple",           tuple_field,    2,     True),
    Feature("network",         network,        2,     True),
    Feature("quantised",       quantised,      2,     True),
    Feature("PrimFunc call",   prim_call,      2,     True),
    Feature("branch",          branch,         2,     False),
    Feature("data",            parts,          3,     False),
    Feature("list match",      match_list,     1,     False),
    Feature("nested match",    match_any,      1,     False),
    Feature("local call",      call_here,      1,     False),
    Feature("closure",         closure,        1,     False),
    Feature("recursion",       recursion,      1,     False),
    Feature("list recursion",  list_recursion, 1,     False),
    Feature("tree recursion",  tree_recursion, 1,     False),
    Feature("polymorphism",    polymorphic,    1,     False),
    Feature("reference",       reference,      1,     False),
    Feature("data sizes",      data_sizes,     3,     False),
    Feature("unknown sizes",   unknown_sizes,  2,     False),
    Feature("symbolic sizes",  None,           0,     False),
    Feature("state",           None,           0,     True),
    Feature("list argument",   None,           0,     False),
    Feature("engine region",   None,           0,     True),
)
# fmt: on
WEIGHTED = tuple(row for row in FEATURES for _ in range(row.weight))
REQUIRES = {
    "list match": "data",
    "nested match": "data",
    "list recursion": "data",
    "tree recursion": "data",
    "list argument": "data",
    "recursion": "branch",
}
"""Feature -> one that its rule's expressions have too."""


def feature_names(rows: Sequence[Feature] = FEATURES) -> list[str]:
    """Return the names of features."""
    return [row.name for row in rows]
