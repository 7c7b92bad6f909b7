"""Evaluation of the symbolic sizes of a torch.compile graph with the numbers of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from ekiden.frontend.torch.sympy_conversion import symbol_name
from ekiden.runtime.lazy_dataclass import dataclass

SymbolSources = Mapping[str, tuple[int, int | None]]
"""A symbol -> the argument that it can be read from, and which axis of it; None for a number."""


def find_symbol_sources(nodes: Sequence[torch.fx.Node]) -> SymbolSources:
    """Return, per symbol of a graph, the input and axis that it can be read from."""
    sources: dict[str, tuple[int, int | None]] = {}
    for index, node in enumerate(nodes):
        meta = node.meta.get("val")
        sizes = enumerate(meta.shape) if isinstance(meta, torch.Tensor) else [(None, meta)]
        for axis, size in sizes:
            name = symbol_name(size)
            if name is not None:
                sources.setdefault(name, (index, axis))
    return sources


_SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def size_expression(size: object) -> sympy.Expr:
    """Return a size as a SymPy expression."""
    return size.node.expr if isinstance(size, _SYMBOLIC_TYPES) else sympy.sympify(size)


def size_symbol_names(value: object) -> list[str]:
    """Return the names of the symbols of a size; none for anything else."""
    if not isinstance(value, _SYMBOLIC_TYPES):
        return []
    return [str(symbol) for symbol in value.node.expr.free_symbols]


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Symbolic sizes of one run.

    args: the run's arguments; unsourced_symbol_values: values of symbols that no argument shows;
    symbol_sources: the argument and axis that each other symbol is read from.
    """

    symbol_sources: SymbolSources
    args: Sequence[Any]
    unsourced_symbol_values: Mapping[str, int]

    def evaluate(self, size: Any) -> Any:  # noqa: ANN401 - a number as PyTorch's operators take it
        """Evaluate a size; anything else is returned unchanged."""
        if not isinstance(size, _SYMBOLIC_TYPES):
            return size
        expr = size_expression(size)
        values = {symbol: self._symbol_value(str(symbol)) for symbol in expr.free_symbols}
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)]
        return kind(expr.xreplace(values))

    def evaluate_all(self, sizes: Sequence[object]) -> list[int]:
        """Evaluate sizes."""
        return [int(self.evaluate(size)) for size in sizes]

    def _symbol_value(self, name: str) -> sympy.Integer:
        if name in self.unsourced_symbol_values:
            return sympy.Integer(self.unsourced_symbol_values[name])
        position, axis = self.symbol_sources[name]
        return sympy.Integer(
            int(self.args[position] if axis is None else self.args[position].shape[axis])
        )


__all__ = [
    "RunSizes",
    "SymbolSources",
    "find_symbol_sources",
    "size_expression",
    "size_symbol_names",
]
