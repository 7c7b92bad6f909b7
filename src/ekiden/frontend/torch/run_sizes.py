"""Evaluation of the symbolic sizes of a torch.compile graph with the numbers of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from ekiden.frontend.torch.symbols import symbol_name
from ekiden.runtime.lazy_dataclass import dataclass

SymbolSources = Mapping[str, tuple[int, int | None]]
"""A symbol -> the argument that it can be read from, and which axis of it; None for a number."""


def symbol_sources_of(nodes: Sequence[torch.fx.Node]) -> SymbolSources:
    """Return, per symbol of a graph, the input and axis that it can be read from."""
    sources: dict[str, tuple[int, int | None]] = {}
    for at, node in enumerate(nodes):
        meta = node.meta.get("val")
        sizes = enumerate(meta.shape) if isinstance(meta, torch.Tensor) else [(None, meta)]
        for axis, size in sizes:
            name = symbol_name(size)
            if name is not None:
                sources.setdefault(name, (at, axis))
    return sources


_SYMBOLIC_TYPES = (torch.SymInt, torch.SymFloat, torch.SymBool)


def size_expression(size: object) -> sympy.Expr:
    """Return a size as a SymPy expression."""
    return size.node.expr if isinstance(size, _SYMBOLIC_TYPES) else sympy.sympify(size)


def symbol_names_of(value: object) -> list[str]:
    """Return the names of the symbols of a size; none for anything else."""
    if not isinstance(value, _SYMBOLIC_TYPES):
        return []
    return [str(symbol) for symbol in value.node.expr.free_symbols]


@dataclass(frozen=True, slots=True)
class RunSizes:
    """Symbolic sizes of one run.

    args: the run's arguments; others: values of symbols that no argument shows; places: the
    argument and axis that each other symbol is read from.
    """

    places: SymbolSources
    args: Sequence[Any]
    others: Mapping[str, int]

    def number(self, size: Any) -> Any:  # noqa: ANN401 - a number as PyTorch's operators take it
        """Evaluate a size; anything else is returned unchanged."""
        if not isinstance(size, _SYMBOLIC_TYPES):
            return size
        expr = size_expression(size)
        values = {symbol: self._value(str(symbol)) for symbol in expr.free_symbols}
        kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(size)]
        return kind(expr.xreplace(values))

    def numbers(self, sizes: Sequence[object]) -> list[int]:
        """Evaluate sizes."""
        return [int(self.number(size)) for size in sizes]

    def _value(self, name: str) -> sympy.Integer:
        if name in self.others:
            return sympy.Integer(self.others[name])
        at, axis = self.places[name]
        return sympy.Integer(int(self.args[at] if axis is None else self.args[at].shape[axis]))


__all__ = ["RunSizes", "SymbolSources", "size_expression", "symbol_names_of", "symbol_sources_of"]
