"""Random numbers in graphs of torch.compile: PyTorch draws them, from its generator and in its
order, before a graph runs, and they are arguments of it. So they are those of eager PyTorch.

That is done for operators of which the sizes alone say what is drawn: rand, randn_like, randint,
randperm, bernoulli by a number, and so dropout, whose mask PyTorch draws by that. Numbers whose
chances are data (multinomial) are not drawn ahead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _prims_common

from ekiden.frontend.torch.run_sizes import RunSizes
from ekiden.runtime.lazy_dataclass import dataclass

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


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


aten = torch.ops.aten
_OF_SIZES = (
    aten.bernoulli.p,
    aten.cauchy.default,
    aten.exponential.default,
    aten.geometric.default,
    aten.log_normal.default,
    aten.normal_functional.default,
    aten.uniform.default,
)
"""Operators that take a tensor whose sizes alone they look at, beside those that are named so."""
_COMPOSED = (aten.dropout.default, aten.alpha_dropout.default)
"""Operators that PyTorch composes in C++ of draws, and in Python, for compilers, of others."""


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return a dropout as the CPU computes it, (what is kept and scaled, the mask): numbers are
    drawn in the order that the input has in memory, and none where all is dropped."""
    if train is False or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    order = _prims_common.compute_elementwise_output_logical_to_physical_perm(x)[0]
    moved = x.permute(order)
    drawn = torch.bernoulli(torch.empty(moved.shape, dtype=torch.bool), 1 - p)
    mask = drawn.permute([order.index(axis) for axis in range(x.dim())])
    return x * mask * (1 / (1 - p)), mask


def with_own_draws(decompositions: Decompositions) -> Decompositions:
    """Return the decompositions without those that draw other numbers than eager PyTorch."""
    kept = {t: f for t, f in decompositions.items() if t not in (*_OF_SIZES, *_COMPOSED)}
    return {**kept, aten.native_dropout.default: native_dropout}


@dataclass(frozen=True, slots=True)
class Draw:
    """A node that draws. Tensors that it is given have the sizes and strides of a run alone: where
    numbers go follows from how a tensor lies in memory.
    """

    node: torch.fx.Node

    def __call__(self, sizes: RunSizes) -> torch.Tensor:
        """Return the numbers of a run."""
        call: Callable[..., torch.Tensor] = self.node.target  # type: ignore[assignment]

        def value(node: torch.fx.Node) -> Any:  # noqa: ANN401 - a tensor or a number
            meta = node.meta["val"]
            if not isinstance(meta, torch.Tensor):
                return sizes.number(meta)
            shape, steps = sizes.numbers(meta.shape), sizes.numbers(meta.stride())
            return torch.empty_strided(shape, steps, dtype=meta.dtype)

        args: Any = torch.fx.map_arg(self.node.args, value)
        kwargs: Any = torch.fx.map_arg(self.node.kwargs, value)
        return call(*args, **kwargs)
