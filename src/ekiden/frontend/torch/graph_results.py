"""Mapping of a torch.compile graph's results to module outputs, views and arguments: their aliasing
and strides.

A result is in eager PyTorch an argument, a tensor made anew, or a view of either. A module gives
what is made anew, each tensor in memory of its own; views are taken of these and of the arguments
by PyTorch when a run ends, by the graph's own operators. So results share memory with arguments and
with each other exactly as in eager PyTorch, with its strides, and PyTorch notices writes into what
it saved for a gradient.

    arg.t() -> (arg.t(),)          exp(x) -> (%e, view(%e, [-1])): %e is the module's, once
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch

from ekiden.frontend.torch.symbolic_sizes import RunSizes, size_expression
from ekiden.runtime.lazy_dataclass import dataclass

_UNDECLARED_VIEWS = (torch.ops.aten._unsafe_view.default,)
"""Operators that give views and do not say so."""


def view_base(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node whose memory this node views; None for a new tensor."""
    target = node.target
    if target is operator.getitem:
        base = node.args[0]
        return base if isinstance(base, torch.fx.Node) and view_base(base) is not None else None
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return None
    says_so = any(result.alias_info is not None for result in target._schema.returns)
    source = node.args[0] if node.args else None
    if not (says_so or target in _UNDECLARED_VIEWS) or not isinstance(source, torch.fx.Node):
        return None
    return source if _storage_id(node) == _storage_id(source) is not None else None


def _storage_id(node: torch.fx.Node) -> int | None:
    """Return the storage that PyTorch inferred for a node; of a list that of its first tensor."""
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    for first_meta in metas[:1]:
        if isinstance(first_meta, torch.Tensor) and first_meta.layout is torch.strided:
            return int(first_meta.untyped_storage()._cdata)
    return None


def dense_memory_order(meta: torch.Tensor) -> tuple[int, ...] | None:
    """Return the axes of a gapless tensor from largest to smallest stride; None for others, and
    where symbolic sizes leave it open.
    """
    sizes, steps = [*map(size_expression, meta.shape)], [*map(size_expression, meta.stride())]
    single = [axis for axis, size in enumerate(sizes) if size == 1]
    proper_axes = [axis for axis in range(len(sizes)) if axis not in single]
    # Symbolic strides cannot be compared: sort by the example's strides, then verify the order
    # symbolically.
    hints = {axis: _size_hint(meta.stride()[axis]) for axis in proper_axes}
    order = sorted(proper_axes, key=lambda axis: -hints[axis])
    step: sympy.Expr = sympy.Integer(1)
    for axis in reversed(order):
        # Strides with gaps or overlaps are no permutation of a dense layout.
        if sympy.expand(steps[axis] - step) != 0:
            return None
        step = step * sizes[axis]
    if order == sorted(order):  # axes of one element lie anywhere
        return tuple(range(len(sizes)))
    return (*single, *order)


def _size_hint(size: int | torch.SymInt) -> int:
    if not isinstance(size, torch.SymInt):
        return int(size)
    hint = size.node.hint if size.node.has_hint() else None
    return 0 if hint is None else int(hint)


@dataclass(frozen=True, slots=True)
class ComputedTensor:
    """Tensor that the module computes, by the index of its output.

    imaginary: the output that has the imaginary part; memory_order: its axes from slowest to
    fastest in memory, None if PyTorch's strides need a copy.
    """

    node: torch.fx.Node
    output_index: int
    imaginary: int | None = None
    memory_order: tuple[int, ...] | None = None

    def make_tensor(self, outputs: Sequence[Any], sizes: RunSizes) -> torch.Tensor:
        """Return the tensor of a run with the strides that PyTorch inferred."""
        result = torch.utils.dlpack.from_dlpack(outputs[self.output_index])
        if self.imaginary is not None:
            imaginary_part = torch.utils.dlpack.from_dlpack(outputs[self.imaginary])
            result = torch.complex(result, imaginary_part)
        if self.memory_order is not None:
            if list(self.memory_order) == sorted(self.memory_order):
                return result
            return result.permute(
                [self.memory_order.index(axis) for axis in range(len(self.memory_order))]
            )
        steps = sizes.evaluate_all(self.node.meta["val"].stride())
        # An expanded axis (stride 0) cannot be the result of a copy.
        if list(result.stride()) == steps or 0 in steps:
            return result
        return torch.empty_strided(result.shape, steps, dtype=result.dtype).copy_(result)


@dataclass(frozen=True, slots=True)
class GraphResults:
    """Results of a graph, in order: nodes, sizes that are outputs, and constants."""

    results: tuple[object, ...]
    argument_nodes: tuple[tuple[torch.fx.Node, int], ...] = ()
    """What is an argument as it came, or is viewed: which of a run's it is."""
    attribute_tensors: tuple[tuple[torch.fx.Node, torch.Tensor], ...] = ()
    """The same of tensors of the graph itself."""
    computed_tensors: tuple[ComputedTensor, ...] = ()
    view_nodes: tuple[torch.fx.Node, ...] = ()
    """Operators that PyTorch runs, in order."""
    symbol_outputs: Mapping[str, int] | None = None
    """Symbols that are data -> outputs that have them."""

    def evaluate(self, sizes: RunSizes, outputs: Sequence[Any]) -> list[Any]:
        """Return the results of a run from the module's outputs."""
        if self.symbol_outputs:
            data_symbols = {
                name: int(outputs[position].numpy())
                for name, position in self.symbol_outputs.items()
            }
            sizes = RunSizes(sizes.symbol_sources, sizes.args, data_symbols)
        env: dict[torch.fx.Node, Any] = {
            node: sizes.args[position] for node, position in self.argument_nodes
        }
        env.update(self.attribute_tensors)
        env.update(
            (computed.node, computed.make_tensor(outputs, sizes))
            for computed in self.computed_tensors
        )

        def value(node: torch.fx.Node) -> Any:  # noqa: ANN401 - a tensor or a number
            """Return the value of a node: what was emitted for it, or a symbolic number."""
            return env[node] if node in env else sizes.evaluate(node.meta["val"])

        for node in self.view_nodes:
            args: Any = torch.fx.map_arg(node.args, value)
            kwargs: Any = torch.fx.map_arg(node.kwargs, value)
            env[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return [_evaluate_result(result, env, outputs) for result in self.results]


@dataclass(frozen=True, slots=True)
class SizeResult:
    """Size among the results, which is an output of the module."""

    output_index: int


def _evaluate_result(item: object, env: Mapping[torch.fx.Node, Any], outputs: Sequence[Any]) -> Any:  # noqa: ANN401
    if isinstance(item, torch.fx.Node):
        return env[item]
    return int(outputs[item.output_index].numpy()) if isinstance(item, SizeResult) else item


__all__ = ["ComputedTensor", "GraphResults", "SizeResult", "dense_memory_order", "view_base"]
