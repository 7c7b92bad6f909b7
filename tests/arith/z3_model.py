"""Scalar expressions as z3 terms over whole numbers, and random expressions to compare by them.

A division by zero, a shift by a negative amount and a value that does not fit its dtype have no
meaning: an expression only counts where it is defined, and what it is simplified to must be
defined there too.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import z3

from ekiden.ir import prim
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, Var, const
from ekiden.ir.prim_visitor import children, post_order

LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


@dataclass
class Model:
    """z3 terms of expressions, and where each is defined."""

    bounds: dict[Var, tuple[int, int | None]]
    overflow: bool = True
    names: dict[Var, z3.ArithRef] = field(default_factory=dict)
    done: dict[int, tuple[z3.ExprRef, z3.BoolRef]] = field(default_factory=dict)
    keep: list[PrimExpr] = field(default_factory=list)

    def variable(self, var: Var) -> z3.ArithRef:
        if var not in self.names:
            self.names[var] = z3.Int(f"{var.name}{len(self.names)}")
        return self.names[var]

    def assumptions(self) -> list[z3.BoolRef]:
        """The ranges of the variables met."""
        result = []
        for var, name in self.names.items():
            low, high = self.bounds.get(var, LIMITS[var.dtype])
            result.append(name >= low)
            result.append(name <= (LIMITS[var.dtype][1] if high is None else high))
        return result

    def term(self, expr: PrimExpr) -> tuple[z3.ExprRef, z3.BoolRef]:
        """(value, defined)."""
        for item in post_order(expr):
            if id(item) not in self.done:
                inside = [self.done[id(c)] for c in children(item)]
                self.done[id(item)] = self._node(item, inside)
                self.keep.append(item)
        return self.done[id(expr)]

    def _node(
        self, e: PrimExpr, inside: list[tuple[z3.ExprRef, z3.BoolRef]]
    ) -> tuple[z3.ExprRef, z3.BoolRef]:
        x = [v for v, _ in inside]
        all_defined = z3.And(*(d for _, d in inside)) if inside else z3.BoolVal(True)
        match e:
            case IntImm():
                return (z3.BoolVal(bool(e.value)) if e.dtype == "bool" else z3.IntVal(e.value)), (
                    all_defined
                )
            case Var():
                return self.variable(e), all_defined
            case prim.Select() | Intrinsic(op="if_then_else"):
                (c, dc), (y, dy), (n, dn) = inside
                return z3.If(c, y, n), z3.And(dc, z3.If(c, dy, dn))
            case prim.And():
                return z3.And(*x), z3.And(inside[0][1], z3.Or(z3.Not(x[0]), inside[1][1]))
            case prim.Or():
                return z3.Or(*x), z3.And(inside[0][1], z3.Or(x[0], inside[1][1]))
            case prim.Not():
                return z3.Not(x[0]), all_defined
            case prim.Cast():
                value = z3.If(x[0], z3.IntVal(1), z3.IntVal(0)) if z3.is_bool(x[0]) else x[0]
                value = value != 0 if e.dtype == "bool" else value
                return value, z3.And(all_defined, self._fits(value, e.dtype))
        value, defined = self._arithmetic(e, x)
        fits = z3.BoolVal(True) if z3.is_bool(value) else self._fits(value, e.dtype)
        return value, z3.And(all_defined, defined, fits)

    def _fits(self, value: z3.ExprRef, dtype: str) -> z3.BoolRef:
        if not self.overflow or dtype not in LIMITS or z3.is_bool(value):
            return z3.BoolVal(True)
        low, high = LIMITS[dtype]
        return z3.And(value >= low, value <= high)

    def _arithmetic(self, e: PrimExpr, x: list[z3.ExprRef]) -> tuple[z3.ExprRef, z3.BoolRef]:
        yes = z3.BoolVal(True)
        match e:
            case prim.Add():
                return x[0] + x[1], yes
            case prim.Sub():
                return x[0] - x[1], yes
            case prim.Mul():
                return x[0] * x[1], yes
            case prim.FloorDiv():
                return floordiv(*x), x[1] != 0
            case prim.FloorMod():
                return x[0] - floordiv(*x) * x[1], x[1] != 0
            case prim.Div():
                return truncdiv(*x), x[1] != 0
            case prim.Min():
                return z3.If(x[0] < x[1], x[0], x[1]), yes
            case prim.Max():
                return z3.If(x[0] > x[1], x[0], x[1]), yes
            case prim.EQ():
                return x[0] == x[1], yes
            case prim.NE():
                return x[0] != x[1], yes
            case prim.LT():
                return x[0] < x[1], yes
            case prim.LE():
                return x[0] <= x[1], yes
            case prim.GT():
                return x[0] > x[1], yes
            case prim.GE():
                return x[0] >= x[1], yes
            case Intrinsic(op="left_shift", args=(_, IntImm(value=count))):
                return x[0] * 2**count, yes
            case Intrinsic(op="right_shift", args=(_, IntImm(value=count))):
                return floordiv(x[0], z3.IntVal(2**count)), yes
        raise TypeError(f"no meaning for {e!r}")


def floordiv(a: z3.ArithRef, b: z3.ArithRef) -> z3.ArithRef:
    """z3's division rounds so that the rest is >= 0."""
    return z3.If(b > 0, a / b, (-a) / (-b))


def truncdiv(a: z3.ArithRef, b: z3.ArithRef) -> z3.ArithRef:
    """Towards zero."""
    size = z3.If(a >= 0, a, -a) / z3.If(b >= 0, b, -b)
    return z3.If((a >= 0) == (b > 0), size, -size)


class Generator:
    """Random integer and boolean expressions over a few variables with ranges."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.dtype = self.rng.choice(["int64", "int64", "int32"])
        self.bounds: dict[Var, tuple[int, int | None]] = {}
        n = SizeVar("n", self.dtype)
        m = SizeVar("m", self.dtype, upper=64)
        self.bounds[n], self.bounds[m] = (0, None), (0, 64)
        for name in "ijk":
            low = self.rng.choice([0, 0, 0, -5, 3, -100])
            var = Var(name, self.dtype)
            self.bounds[var] = (low, low + self.rng.choice([1, 2, 4, 7, 16, 100]) - 1)
        self.free = Var("u", self.dtype)
        self.variables: list[Var] = [*self.bounds, self.free]

    def number(self) -> int:
        return self.rng.choice([-7, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 8, 12, 16, 64])

    def integer(self, depth: int) -> PrimExpr:
        rng = self.rng
        if depth == 0 or rng.random() < 0.12:
            return rng.choice(self.variables) if rng.random() < 0.75 else self.constant()
        kind = rng.choice(
            "add add sub sub mul mul div div mod mod trunc min max select guard shift cast".split()
        )
        a = self.integer(depth - 1)
        match kind:
            case "add":
                return a + self.integer(depth - 1)
            case "sub":
                return a - self.integer(depth - 1)
            case "mul":
                return a * (self.constant() if rng.random() < 0.8 else self.integer(depth - 1))
            case "div":
                return prim.fold_binary(prim.FloorDiv, a, self.divisor(depth))
            case "mod":
                return prim.fold_binary(prim.FloorMod, a, self.divisor(depth))
            case "trunc":
                return prim.fold_binary(prim.Div, a, self.divisor(depth))
            case "min":
                return prim.minimum(a, self.integer(depth - 1))
            case "max":
                return prim.maximum(a, self.integer(depth - 1))
            case "select":
                return prim.Select(self.boolean(depth - 1), a, self.integer(depth - 1), self.dtype)
            case "guard":
                return call_intrin(
                    "if_then_else", self.boolean(depth - 1), a, self.integer(depth - 1)
                )
            case "shift":
                name = rng.choice(["left_shift", "right_shift"])
                return call_intrin(name, a, const(rng.randint(0, 6), self.dtype))
        other = "int32" if self.dtype == "int64" else "int64"
        return prim.cast(prim.cast(a, other), self.dtype)

    def constant(self) -> PrimExpr:
        return const(self.number(), self.dtype)

    def divisor(self, depth: int) -> PrimExpr:
        """Mostly a positive number."""
        chance = self.rng.random()
        if chance < 0.7:
            return const(self.rng.choice([1, 2, 3, 4, 5, 8, 16, 64]), self.dtype)
        if chance < 0.85:
            return const(self.rng.choice([-1, -2, -3, -4, -8]), self.dtype)
        return self.rng.choice(self.variables) if chance < 0.97 else self.integer(depth - 1)

    def boolean(self, depth: int) -> PrimExpr:
        rng = self.rng
        kind = rng.choice("compare compare compare and or not".split()) if depth > 0 else "compare"
        if kind == "compare":
            which = rng.choice(prim.COMPARISON_OPS)
            return prim.fold_binary(
                which, self.integer(max(depth, 0)), self.integer(max(depth - 1, 0))
            )
        a = self.boolean(depth - 1)
        if kind == "not":
            return prim.Not(a)
        return prim.fold_binary(prim.And if kind == "and" else prim.Or, a, self.boolean(depth - 1))
