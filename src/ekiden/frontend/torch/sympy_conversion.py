"""Conversion of torch.export's symbolic sizes (SymPy) to shape expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeAlias

import sympy
import torch
from torch.utils._sympy import functions as fn

from ekiden.frontend.common.unsupported import Unsupported
from ekiden.ir import prim
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr
from ekiden.topi.dimensions import simplify_dim

Scalar: TypeAlias = int | float | bool | PrimExpr


def _fold_rule(kind: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> Callable[..., PrimExpr]:
    return lambda *args: reduce(kind, args)


def _binary_rule(kind: type[prim.BinaryExpr]) -> Callable[..., PrimExpr]:
    return _fold_rule(lambda a, b: prim.fold_binary(kind, a, b))


def _to_float64(value: PrimExpr) -> PrimExpr:
    return prim.cast(value, "float64") if value.dtype != "float64" else value


def _true_div_rule(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    return _to_float64(a) / _to_float64(b)


def _float_power_rule(base: PrimExpr, exponent: PrimExpr) -> PrimExpr:
    """Return a power of a size; only square roots and whole exponents, which are exact."""
    if isinstance(exponent, prim.FloatImm) and exponent.value == 0.5:
        return _sqrt_rule(base)
    if isinstance(exponent, prim.FloatImm) and exponent.value.is_integer():
        return _power_rule(_to_float64(base), prim.const(int(exponent.value), "int64"))
    raise Unsupported(f"a size to the power of {exponent!r} cannot be computed")


def _sqrt_rule(value: PrimExpr) -> PrimExpr:
    return call_intrin("sqrt", _to_float64(value))


def _rounding_rule(name: str) -> Callable[[PrimExpr], PrimExpr]:
    return lambda value: prim.cast(call_intrin(name, _to_float64(value)), "int64")


def _power_rule(base: PrimExpr, exponent: PrimExpr) -> PrimExpr:
    if isinstance(exponent, prim.IntImm) and 0 < exponent.value <= 8:
        # Small whole powers unroll to products, which the arithmetic simplifier understands.
        return reduce(lambda a, b: a * b, [base] * exponent.value)
    raise Unsupported(f"a size to the power of {exponent!r} cannot be computed")


def _where_rule(condition: PrimExpr, yes: PrimExpr, no: PrimExpr) -> PrimExpr:
    return prim.Select(condition, yes, no)


_SYMPY_RULES: Mapping[type, Callable[..., PrimExpr]] = {
    sympy.Add: _fold_rule(lambda a, b: a + b),
    sympy.Mul: _fold_rule(lambda a, b: a * b),
    sympy.Pow: _power_rule,
    fn.PowByNatural: _power_rule,
    fn.FloorDiv: lambda a, b: a // b,
    fn.CleanDiv: lambda a, b: a // b,
    fn.IntTrueDiv: _true_div_rule,
    fn.FloatTrueDiv: _true_div_rule,
    fn.Mod: lambda a, b: a % b,
    fn.PythonMod: lambda a, b: a % b,
    fn.ModularIndexing: lambda a, b, c: (a // b) % c,
    fn.ToFloat: _to_float64,
    fn.FloorToInt: _rounding_rule("floor"),
    fn.CeilToInt: _rounding_rule("ceil"),
    fn.RoundToInt: _rounding_rule("round"),
    fn.TruncToInt: lambda a: prim.cast(_to_float64(a), "int64"),
    fn.TruncToFloat: lambda a: _to_float64(prim.cast(_to_float64(a), "int64")),
    fn.FloatPow: _float_power_rule,
    fn.OpaqueUnaryFn_sqrt: _sqrt_rule,
    fn.CeilDiv: lambda a, b: (a + b - 1) // b,
    fn.Identity: lambda a: a,
    fn.Where: _where_rule,
    fn.Max: _fold_rule(prim.maximum),
    fn.Min: _fold_rule(prim.minimum),
    sympy.Eq: _binary_rule(prim.EQ),
    sympy.Ne: _binary_rule(prim.NE),
    sympy.Lt: _binary_rule(prim.LT),
    sympy.Le: _binary_rule(prim.LE),
    sympy.Gt: _binary_rule(prim.GT),
    sympy.Ge: _binary_rule(prim.GE),
    sympy.And: _binary_rule(prim.And),
    sympy.Or: _binary_rule(prim.Or),
    sympy.Not: lambda a: prim.Not(a),
}


class SymbolTable:
    """Table of the dimensions that a program's symbols stand for."""

    def __init__(self) -> None:
        self.known: dict[str, PrimExpr] = {}
        self.numbers: dict[sympy.Basic, sympy.Basic] = {}
        """Symbols that are elements of constants: what is made of them alone is a number. And
        expressions that an input gives as a whole, by the symbol that stands for each."""

    def bind_number(self, value: object, number: float) -> bool:
        """Bind a symbol to a number; return False for anything but a symbol."""
        symbol = value.node.expr if isinstance(value, (torch.SymInt, torch.SymFloat)) else None
        if not isinstance(symbol, sympy.Symbol):
            return False
        self.numbers[symbol] = sympy.sympify(number)
        self.known[str(symbol)] = prim.const(
            number, "int64" if isinstance(value, torch.SymInt) else "float64"
        )
        return True

    def bind_dim(self, value: int | torch.SymInt, name: str, dim: PrimExpr) -> None:
        """Bind a size, a symbol or an expression, to a dimension from here on."""
        assert isinstance(value, torch.SymInt)
        root = value.node.expr
        symbol = root if isinstance(root, sympy.Symbol) else sympy.Symbol(f"size of {name}")
        if symbol is not root:
            # Later occurrences of the whole expression are replaced by its stand-in symbol.
            self.numbers[root] = symbol
        self.known[str(symbol)] = dim

    def has_all_symbols(self, value: object) -> bool:
        """Return whether all symbols of a size are bound; a named expression counts as one
        symbol.
        """
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return True
        remaining = value.node.expr.xreplace(self.numbers).free_symbols
        return all(str(symbol) in self.known for symbol in remaining)

    @staticmethod
    def symbol_names(value: object) -> list[str]:
        """Return the names of a size's symbols, sorted."""
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return []
        return sorted(str(s) for s in value.node.expr.free_symbols)

    def to_scalar(self, value: object) -> Scalar:
        """Return a Python or symbolic number as a number or shape expression.

        Raises Unsupported for arithmetic that sizes have not.
        """
        if isinstance(value, (bool, int, float)):
            return value
        assert isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))
        scalar = self.convert(value.node.expr.xreplace(self.numbers))
        if isinstance(scalar, (prim.IntImm, prim.FloatImm)):
            return bool(scalar.value) if scalar.dtype == "bool" else scalar.value
        return scalar

    def to_dim(self, value: object) -> PrimExpr:
        """Return a size as a dimension."""
        scalar = self.to_scalar(value)
        return scalar if isinstance(scalar, PrimExpr) else prim.const(int(scalar), "int64")

    def to_shape(self, sizes: Sequence[object]) -> tuple[PrimExpr, ...]:
        """Return a shape as dimensions."""
        return tuple(map(self.to_dim, sizes))

    def convert(self, root: sympy.Basic) -> PrimExpr:
        """Convert a SymPy expression to a shape expression.

        Raises:
            Unsupported: A function has no rule here, or no input determines a symbol.
        """
        if isinstance(root, sympy.Symbol):
            if str(root) not in self.known:
                raise Unsupported(f"the size {root} is data that has no name here")
            return self.known[str(root)]
        if isinstance(root, (sympy.logic.boolalg.BooleanTrue, sympy.logic.boolalg.BooleanFalse)):
            return prim.const(bool(root))
        if root.is_Integer:
            return prim.const(int(root), "int64")
        if root.is_number and not root.free_symbols and not root.args:
            return prim.const(float(root), "float64")
        rule = _SYMPY_RULES.get(type(root))
        if rule is None:
            raise Unsupported(f"sizes cannot be computed with {type(root).__name__}")
        converted = rule(*(self.convert(a) for a in root.args))
        # Simplified at once, so that equal sizes compare equal as expressions.
        return simplify_dim(converted) if converted.dtype == "int64" else converted


def sole_symbol_name(size: object) -> str | None:
    """Return the name of the only symbol in a size such as `2 * h`; None for several or none."""
    names = SymbolTable.symbol_names(size)
    return names[0] if len(names) == 1 else None


def symbol_name(size: object) -> str | None:
    """Return the name of a size that is a single symbol; None for other sizes."""
    if not isinstance(size, torch.SymInt) or not isinstance(size.node.expr, sympy.Symbol):
        return None
    return str(size.node.expr)
