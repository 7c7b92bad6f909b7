"""Custom operators that preserve recurrent layers while PyTorch traces a module.

PyTorch's own definitions of `torch.lstm`, `gru` and `rnn_*` run step by step wherever it traces: a
number of steps that is symbolic becomes the example's, and graphs of torch.compile have every step.
Operators of our own stand in for them: `preserve_recurrent_layers` where torch.export traces,
`replace_recurrent_layers` in a
graph of torch.compile that no gradient goes through. Run eagerly they are PyTorch's.

Packed sequences, whose sizes are data, stay padded beside their lengths where torch.export traces;
what is packed is made for whoever looks into it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence
from torch.overrides import TorchFunctionMode

_LIBRARY: Any = torch.library.Library("ekiden", "FRAGMENT")  # type: ignore[no-untyped-call]
_COMMON_SCHEMA = (
    "Tensor[] params, bool has_biases, int num_layers, float dropout, bool train, "
    "bool bidirectional, bool batch_first, Tensor? lengths=None"
)
_STATE_COUNTS: Mapping[str, int] = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""Layer -> how many states it has."""
BATCH_FIRST_INDEX = 8
"""The place of that argument, which layers of packed sequences have not."""


def _eager_layer(name: str, data: Tensor, *args: Any, lengths: Tensor | None = None) -> Any:  # noqa: ANN401
    """Run a layer by PyTorch's own function; `lengths`, of packed sequences only, are in descending
    order.
    """
    function = getattr(torch, name)
    if lengths is None:
        return function(data, *args)
    # Only our own export path passes lengths, sorted longest first as pack_padded_sequence
    # requires.
    packed = pack_padded_sequence(data, lengths.cpu())
    every, *states = function(packed.data, packed.batch_sizes, *args[:-1])
    repacked = PackedSequence(every, packed.batch_sizes)
    return (pad_packed_sequence(repacked, total_length=len(data))[0], *states)


def _fake_layer(
    count: int,
    data: Tensor,
    states: Any,  # noqa: ANN401
    *args: Any,  # noqa: ANN401
    **_: object,
) -> tuple[Tensor, ...]:
    """Return empty tensors of the result shapes: all hidden states, then each final state."""
    begin = [states] if isinstance(states, Tensor) else list(states)
    directions, batch = 2 if args[5] else 1, data.shape[0 if args[6] else 1]
    every = data.new_empty((*data.shape[:2], directions * begin[0].shape[-1]))
    ends = (s.new_empty((s.shape[0], batch, s.shape[2])) for s in begin[:count])
    return (every, *ends)


def _define_operator(name: str, count: int) -> torch._ops.OpOverload:
    states = "Tensor[] hx" if count > 1 else "Tensor hx"
    results = ", ".join(["Tensor"] * (1 + count))
    _LIBRARY.define(f"{name}(Tensor input, {states}, {_COMMON_SCHEMA}) -> ({results})")
    _LIBRARY.impl(name, partial(_eager_layer, name), "CompositeExplicitAutograd")
    torch.library.register_fake(f"ekiden::{name}", partial(_fake_layer, count), lib=_LIBRARY)
    overload: torch._ops.OpOverload = getattr(torch.ops.ekiden, name).default
    return overload


_LAYER_OPERATORS: Mapping[Callable[..., Any], torch._ops.OpOverload] = {
    theirs: ours
    for name, count in _STATE_COUNTS.items()
    for ours in (_define_operator(name, count),)
    for theirs in (getattr(torch, name), getattr(torch.ops.aten, name).input)
}
"""How a layer is called -> what stands in for it."""


def _layer_operator(target: object, args: Sequence[Any]) -> torch._ops.OpOverload | None:
    """Return the whole-layer operator of a call; None if dropout is drawn between its layers."""
    operator = _LAYER_OPERATORS.get(target) if callable(target) else None
    if operator is None or len(args) <= BATCH_FIRST_INDEX:
        return None
    dropout, is_training = args[5 + _is_packed(args)], args[6 + _is_packed(args)]
    # Dropout between layers draws random numbers, which the whole-layer operator does not.
    return None if is_training and dropout > 0 else operator


def _is_packed(args: Sequence[Any]) -> bool:
    """Return whether a layer takes packed sequences, whose batch sizes precede the states."""
    return not isinstance(args[3], bool)


class preserve_recurrent_layers(TorchFunctionMode):  # noqa: N801 - what `with` takes
    """Torch function mode that replaces recurrent layers by custom operators while torch.export
    traces.
    """

    def __init__(self) -> None:
        super().__init__()
        self.padded: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        """By the identity of packed data, and of their sizes: these, [steps, batch, ..] as they
        were, and lengths."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401
        """Run a call, replaced by the whole-layer operator where there is one."""
        if kwargs:
            return func(*args, **kwargs)
        if func == torch._VF._pack_padded_sequence:
            data, lengths, batch_first = args
            return self._pack_padded(data.transpose(0, 1) if batch_first else data, lengths)
        if func == Tensor.__getitem__ and id(args[0]) in self.padded and args[1:] == (0,):
            return self.padded[id(args[0])][1].shape[1]  # the batch: each sequence has a step
        operator = _layer_operator(func, args)
        if func == torch._VF._pad_packed_sequence and id(args[0]) in self.padded:
            return self._pad_packed(*args)
        if operator is None or not _is_packed(args):
            return (operator or func)(*args)
        if id(args[0]) not in self.padded:
            return func(*args)
        _, data, lengths = self.padded[id(args[0])]
        every, *states = operator(data, *args[2:], False, lengths=lengths)
        return (self._pack_padded(every, lengths)[0], *states)

    def _pack_padded(self, padded: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Pack data step by step to [sum of lengths, ...]; return also the number of sequences at
        each step.
        """
        is_there = _step_mask(padded, lengths)
        check: Callable[[bool], None] = torch._check
        longest = lengths.max().item()
        check(longest >= 1)
        check(longest <= padded.shape[0])
        data = padded[is_there]
        sizes = is_there.sum(1).narrow(0, 0, longest)  # type: ignore[arg-type]
        # Keyed by identity: the entry keeps the tensor alive, so that its id is not reused.
        self.padded |= {id(tensor): (tensor, padded, lengths) for tensor in (data, sizes)}
        return data, sizes

    def _pad_packed(
        self, data: Tensor, sizes: Tensor, batch_first: bool, fill: float, total: int | torch.SymInt
    ) -> tuple[Tensor, Tensor]:
        _, padded, lengths = self.padded[id(data)]
        is_there = _step_mask(padded, lengths)
        is_there = is_there.reshape(*is_there.shape, *[1] * (padded.dim() - 2))
        data_out = torch.where(is_there, padded, fill)
        steps: int | torch.SymInt = data_out.shape[0]
        if isinstance(total, int) and isinstance(steps, int) and total > steps:
            filler = data_out.new_full((total - steps, *data_out.shape[1:]), fill)
            data_out = torch.cat([data_out, filler])
        else:
            data_out = data_out.narrow(0, 0, total)
        return data_out.transpose(0, 1) if batch_first else data_out, lengths


def _step_mask(padded: Tensor, lengths: Tensor) -> Tensor:
    """Return the mask [steps, batch] of steps that a sequence reaches."""
    return torch.arange(padded.shape[0]).unsqueeze(1) < lengths


def requires_gradients(inputs: Sequence[object]) -> bool:
    """Return whether gradients are recorded through a graph of these inputs."""
    is_traced = any(isinstance(x, Tensor) and x.requires_grad for x in inputs)
    return torch.is_grad_enabled() and is_traced


def replace_recurrent_layers(module: torch.fx.GraphModule, inputs: Sequence[object]) -> None:
    """Replace the recurrent layers of a TorchDynamo graph by whole operators, if no gradient is
    needed.
    """
    # The whole-layer operators have no backward formula.
    if requires_gradients(inputs):
        return
    for submodule in module.modules():
        if not isinstance(submodule, torch.fx.GraphModule):
            continue
        for node in submodule.graph.nodes:
            operator = None if node.kwargs else _layer_operator(node.target, node.args)
            if operator is not None and not _is_packed(node.args):
                node.target = operator
                submodule.recompile()


_DROPOUT_FUNCTIONS = (torch.nn.functional.dropout, torch.dropout)


def remove_inactive_dropouts(module: torch.fx.GraphModule) -> None:
    """Remove dropouts that drop nothing from a TorchDynamo graph.

    They return their input itself, which PyTorch's compilers would copy.
    """
    for submodule in module.modules():
        if not isinstance(submodule, torch.fx.GraphModule):
            continue
        for node in submodule.graph.nodes:
            if node.target in _DROPOUT_FUNCTIONS and _is_inactive_dropout(node):
                node.replace_all_uses_with(node.args[0])
                submodule.graph.erase_node(node)
        submodule.recompile()


def _is_inactive_dropout(node: torch.fx.Node) -> bool:
    names = ("input", "p", "training" if node.target is _DROPOUT_FUNCTIONS[0] else "train")
    bound = {"p": 0.5, "training": True, **dict(zip(names, node.args, strict=False)), **node.kwargs}
    is_input = bool(node.args) and isinstance(node.args[0], torch.fx.Node)
    return is_input and bool(bound["p"] == 0 or bound[names[2]] is False)


__all__ = [
    "preserve_recurrent_layers",
    "remove_inactive_dropouts",
    "replace_recurrent_layers",
    "requires_gradients",
]
