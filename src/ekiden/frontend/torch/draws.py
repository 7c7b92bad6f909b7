"""Random numbers in graphs of torch.compile: PyTorch draws them, from its generator and in its
order, before a graph runs, and they are arguments of it. So they are those of eager PyTorch.

That is done for operators of which the sizes alone say what is drawn: rand, randn_like, randint,
randperm, bernoulli by a number. Numbers whose chances are data (multinomial) are not drawn ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch

from ekiden.frontend.torch.symbols import plain_name
from ekiden.runtime.late_methods import dataclass

Places = Mapping[str, tuple[int, int | None]]
"""A symbol -> the argument that it can be read from, and which axis of it; None for a number."""


def is_random(node: torch.fx.Node) -> bool:
    """Whether a node draws random numbers: a dropout does in training alone."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    asked = all(argument(node, name, True) for name in ("train", "dropout_p"))
    return torch.Tag.nondeterministic_seeded in target.tags and asked


def argument(node: torch.fx.Node, name: str, default: object = None) -> object:
    """What a node gives an argument of its operator; the default where that has none."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    for at, each in enumerate(target._schema.arguments):
        if each.name == name:
            given = node.args[at] if at < len(node.args) else node.kwargs.get(name)
            return each.default_value if given is None else given
    return default


def is_draw(node: torch.fx.Node) -> bool:
    """Whether a node gives random numbers that depend on sizes alone."""
    if not is_random(node):
        return False
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    of_data = any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes)
    return not of_data or target._opname.endswith("_like") or target in _OF_SIZES


_OF_SIZES = (torch.ops.aten.bernoulli.p,)
"""Operators that take a tensor whose sizes alone they look at, beside those that are named so."""


def places_of(nodes: Sequence[torch.fx.Node]) -> Places:
    """Where the symbols of a graph can be read from, of its inputs."""
    found: dict[str, tuple[int, int | None]] = {}
    for at, node in enumerate(nodes):
        meta = node.meta.get("val")
        sizes = enumerate(meta.shape) if isinstance(meta, torch.Tensor) else [(None, meta)]
        for axis, size in sizes:
            name = plain_name(size)
            if name is not None:
                found.setdefault(name, (at, axis))
    return found


@dataclass(frozen=True, slots=True)
class Draw:
    """A node that draws. Its sizes are symbols, which `places` finds in the arguments of a run."""

    node: torch.fx.Node
    places: Places

    def __call__(self, args: Sequence[Any]) -> torch.Tensor:
        """The numbers of a run with these arguments."""
        call: Callable[..., torch.Tensor] = self.node.target  # type: ignore[assignment]

        def value(node: torch.fx.Node) -> Any:  # noqa: ANN401 - a tensor or a number
            return self._value(node.meta["val"], args)

        given: Any = torch.fx.map_arg(self.node.args, value)
        named: Any = torch.fx.map_arg(self.node.kwargs, value)
        return call(*given, **named)

    def _value(self, meta: object, args: Sequence[Any]) -> object:
        if isinstance(meta, torch.Tensor):  # of a tensor nothing but its sizes is looked at
            return torch.empty([self._size(s, args) for s in meta.shape], dtype=meta.dtype)
        return self._size(meta, args)

    def _size(self, size: Any, args: Sequence[Any]) -> int:  # noqa: ANN401 - a number or SymInt
        if not isinstance(size, torch.SymInt):
            return int(size)
        values: dict[sympy.Symbol, int] = {}
        for symbol in size.node.expr.free_symbols:
            at, axis = self.places[str(symbol)]
            values[symbol] = int(args[at] if axis is None else args[at].shape[axis])
        return int(size.node.expr.xreplace(values))
