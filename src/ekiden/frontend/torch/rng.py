"""Random number generation of torch.compile graphs, by nodes that PyTorch runs before the module.

PyTorch draws them before a graph runs, from its own generator and in its own order, and passes them
as arguments; so they equal those of eager PyTorch.

This covers operators whose draws depend on sizes alone: rand, randn_like, randint, randperm,
bernoulli with a constant probability, and dropout, whose mask PyTorch draws with it. Operators
whose probabilities are data (multinomial) are not drawn in advance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, _prims_common

from ekiden.frontend.torch.overloads import existing_overloads
from ekiden.frontend.torch.symbolic_sizes import RunSizes
from ekiden.runtime.lazy_dataclass import dataclass

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def draws_random(node: torch.fx.Node) -> bool:
    """Return whether a node draws random numbers; a dropout does in training only."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    is_active = all(argument_value(node, name, True) for name in ("train", "dropout_p"))
    return torch.Tag.nondeterministic_seeded in target.tags and is_active


def argument_value(node: torch.fx.Node, name: str, default: object = None) -> object:
    """Return an operator's argument at a node, or the schema's default.

    Args:
        node: A call of an operator.
        name: Name of the argument in the operator's schema.
        default: Value if the operator has no such argument.
    """
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    for index, parameter in enumerate(target._schema.arguments):
        if parameter.name == name:
            value = node.args[index] if index < len(node.args) else node.kwargs.get(name)
            return parameter.default_value if value is None else value
    return default


def is_shape_only_draw(node: torch.fx.Node) -> bool:
    """Return whether a node's random numbers depend only on sizes."""
    if not draws_random(node):
        return False
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    # Operators that read tensor data cannot run ahead of the compiled graph.
    of_data = any(isinstance(n.meta.get("val"), torch.Tensor) for n in node.all_input_nodes)
    return not of_data or target._opname.endswith("_like") or target in _SHAPE_ONLY_DRAWS


_SHAPE_ONLY_DRAWS = existing_overloads(
    (
        "bernoulli.p",
        "cauchy.default",
        "exponential.default",
        "geometric.default",
        "log_normal.default",
        "normal_functional.default",
        "uniform.default",
    )
)
"""Operators that take a tensor whose sizes alone they look at, beside those that are named so."""
_COMPOSITE_DROPOUTS = existing_overloads(("dropout.default", "alpha_dropout.default"))
"""Operators that PyTorch composes in C++ of draws, and in Python, for compilers, of others."""


def native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """Return a dropout as the CPU kernel computes it: scaled kept elements, and the mask."""
    if train is False or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    # ATen's CPU kernel consumes the generator in memory order: draw in a permuted view to get the
    # same mask.
    order = _prims_common.compute_elementwise_output_logical_to_physical_perm(x)[0]
    moved = x.permute(order)
    drawn = torch.bernoulli(torch.empty(moved.shape, dtype=torch.bool), 1 - p)
    mask = drawn.permute([order.index(axis) for axis in range(x.dim())])
    return x * mask * (1 / (1 - p)), mask


def drop_unfaithful_random_decompositions(decompositions: Decompositions) -> Decompositions:
    """Return the decompositions without those that draw other random numbers than eager PyTorch."""
    unchanged = {
        t: f
        for t, f in decompositions.items()
        if t not in (*_SHAPE_ONLY_DRAWS, *_COMPOSITE_DROPOUTS)
    }
    return {**unchanged, torch.ops.aten.native_dropout.default: native_dropout}


@dataclass(frozen=True, slots=True)
class RandomDraw:
    """Node that draws random numbers before a run.

    Its tensor arguments are empty ones with the run's sizes and strides: the draw order follows the
    memory layout.
    """

    node: torch.fx.Node

    def __call__(self, sizes: RunSizes) -> torch.Tensor:
        """Return the numbers of a run."""
        call: Callable[..., torch.Tensor] = self.node.target  # type: ignore[assignment]

        def value(node: torch.fx.Node) -> Any:  # noqa: ANN401 - a tensor or a number
            """Return a number, or a tensor of the node's sizes and strides without data."""
            meta = node.meta["val"]
            if not isinstance(meta, torch.Tensor):
                return sizes.evaluate(meta)
            shape, steps = sizes.evaluate_all(meta.shape), sizes.evaluate_all(meta.stride())
            # Only sizes and strides are read by such an operator: no data are needed.
            return torch.empty_strided(shape, steps, dtype=meta.dtype)

        args: Any = torch.fx.map_arg(self.node.args, value)
        kwargs: Any = torch.fx.map_arg(self.node.kwargs, value)
        return call(*args, **kwargs)
