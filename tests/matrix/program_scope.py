"""Scope of a generated program: its types, its library, and its variables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from choices import Choices
from tensor_steps import TensorSteps

from ekiden import relay
from ekiden.relay import (
    Call,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    RefCreate,
    SizeVar,
    TensorType,
    Tuple,
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

LIBRARY = parse(
    """
    type List[A] { Cons(A, List[A]), Nil, }
    type Tree[A] { Leaf(A), Node(Tree[A], Tree[A]), }
    type Shape { Dot, Line(float32), Both(Shape, (int32, Shape)), }
    def @id[A](%x: A) -> A { %x }
    def @twice[A](%f: fn (A) -> A, %x: A) -> A { %f(%f(%x)) }
    def @map[A, B](%f: fn (A) -> B, %l: List[A]) -> List[B] {
      match (%l) { Cons(%x, %rest) => Cons(%f(%x), @map(%f, %rest)), Nil => Nil, }
    }
    def @foldl[A, B](%f: fn (B, A) -> B, %b: B, %l: List[A]) -> B {
      match (%l) { Cons(%x, %rest) => @foldl(%f, %f(%b, %x), %rest), Nil => %b, }
    }
    def @foldt[A, B](%leaf: fn (A) -> B, %node: fn (B, B) -> B, %t: Tree[A]) -> B {
      match (%t) {
        Leaf(%x) => %leaf(%x),
        Node(%a, %b) => %node(@foldt(%leaf, %node, %a), @foldt(%leaf, %node, %b)),
      }
    }
    def @grow[A](%n: int32, %x: A) -> Tree[A] {
      if (%n <= 0) { Leaf(%x) } else { Node(@grow(%n - 1, %x), Leaf(%x)) }
    }
    def @times[A](%n: int32, %f: fn (A) -> A, %x: A) -> A {
      if (%n <= 0) { %x } else { @times(%n - 1, %f, %f(%x)) }
    }
    def @even(%n: int32) -> bool { if (%n <= 0) { True } else { @odd(%n - 1) } }
    def @odd(%n: int32) -> bool { if (%n <= 0) { False } else { @even(%n - 1) } }
    """
)
LIST, TREE, SHAPE = (LIBRARY.get_global_type_var(n) for n in ("List", "Tree", "Shape"))
ROWS = SizeVar("n")
FLOAT, INT, BOOL = (tensor_type((), d) for d in ("float32", "int32", "bool"))
VECTOR = tensor_type((3,))
STATIC_ROWS = 2
STATIC_MATRIX, SYMBOLIC_MATRIX = tensor_type((STATIC_ROWS, 3)), tensor_type((ROWS, 3))
UNKNOWN_MATRIX = tensor_type((relay.Any(), 3))
NUMBERS = LIST(FLOAT)
"""The type of a list that is an argument."""


@dataclass
class Maker:
    """Draws one program; `allowed` are the names of the features that it may have."""

    choices: Choices
    allowed: frozenset[str]
    steps: TensorSteps
    """Grows tensors from parameters of their own, which can be used everywhere in `main`."""
    used: set[str] = field(default_factory=set)
    """Functions of the library, and loop programs, that are called."""
    features: set[str] = field(default_factory=set)
    """The names of the features that the program has."""
    names: int = 0

    @property
    def matrix(self) -> TensorType:
        """The type of matrices: of n rows where sizes may be symbols."""
        return SYMBOLIC_MATRIX if "symbolic sizes" in self.allowed else STATIC_MATRIX

    @property
    def tensors(self) -> tuple[TensorType, ...]:
        """The types of tensors that every program has."""
        return FLOAT, INT, BOOL, VECTOR, self.matrix

    def variable(self, kind: Type | None) -> Var:
        """Make a new variable; its hint is often that of another."""
        self.names += 1
        return Var(self.choices.pick(["a", "b", "x.1", f"v{self.names}"]), kind)

    def library(self, name: str) -> GlobalVar:
        """Return a function of the library, which the program has from now on."""
        self.used.add(name)
        return LIBRARY.get_global_var(name)

    def type(self, depth: int) -> Type:
        """Draw a type of values that have no functions or references inside."""
        kind = self.choices.integer(0, 8 if depth else 4)
        if kind == 5 and "tuple" in self.allowed:
            return TupleType([self.type(depth - 1) for _ in range(self.choices.integer(0, 3))])
        if kind in (6, 7, 8) and "data" in self.allowed:
            if kind == 6:
                return SHAPE()
            return (LIST if kind == 7 else TREE)(self.type(depth - 1))
        return self.tensors[kind % 5]


FEATURES_OF: dict[type[Type], str] = {TupleType: "tuple", TypeCall: "data"}
"""Class of a type -> the name of the feature that a program with such values has."""


@dataclass
class Scope:
    """What can be used at one place of a program."""

    maker: Maker
    known: list[tuple[Expr, Type]]
    """Variables, and values that may be shared."""

    def inside(self, *variables: tuple[Expr, Type]) -> Scope:
        """Return the scope of an inner expression, which sees these too."""
        return Scope(self.maker, [*self.known, *variables])

    def leaf(self, kind: Type) -> Expr:
        """Return something known of the type, or the smallest value of it."""
        known = [e for e, k in self.known if k == kind]
        if known and self.maker.choices.integer(0, 3) < 3:
            return self.maker.choices.pick(known)
        return self.smallest(kind)

    def smallest(self, kind: Type) -> Expr:
        """Return a value without parts that are drawn."""
        maker = self.maker
        maker.features.update(FEATURES_OF[t] for t in FEATURES_OF if isinstance(kind, t))
        match kind:
            case TupleType(fields=fields):
                return Tuple([self.leaf(f) for f in fields])
            case FuncType(arg_types=args, ret_type=ret):
                params = [maker.variable(a) for a in args]
                return Function(params, self.inside(*zip(params, args, strict=True)).leaf(ret), ret)
            case TypeCall(func=func, args=args):
                data = LIBRARY.type_definitions[func]  # type: ignore[index]
                assert isinstance(data, TypeData)
                flat = [c for c in data.constructors if not any(map(is_data, c.inputs))]
                nullary = [c for c in flat if not c.inputs] or flat
                kinds = [with_args(k, data, args) for k in nullary[0].inputs]
                return Call(nullary[0], [self.leaf(k) for k in kinds], None, args)
            case relay.RelayRefType(value=value):
                return RefCreate(self.leaf(value))
        return self.constant(kind)

    def constant(self, kind: Type) -> Expr:
        """Return a constant; of a matrix, whose rows may be unknown here, an operator's result."""
        choices = self.maker.choices
        if kind == self.maker.matrix:
            rows = next(e for e, k in self.known if k == kind)
            return choices.pick([op.negative, op.tanh])(rows)
        if kind == VECTOR:
            return const(np.array([choices.integer(-3, 3), 0.5, -1.0], np.float32))
        if kind == BOOL:
            return const(bool(choices.integer(0, 1)))
        value = choices.integer(-4, 4)
        return const(value, "int32") if kind == INT else const(value / 4, "float32")


def is_data(kind: Type) -> bool:
    """Return whether values of the type are made by constructors."""
    return isinstance(kind, TypeCall)


def with_args(kind: Type, data: TypeData, args: Sequence[Type]) -> Type:
    """Return the type of a field of data whose type has these arguments."""
    return relay.visitor.substitute_type(kind, dict(zip(data.type_vars, args, strict=True)))
