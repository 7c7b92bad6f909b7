"""Backend of torch.compile(model, backend="ekiden"), which PyTorch finds by its entry point.

AOTAutograd gives graphs of core operators, one for inference or two for training; each is compiled
once for all sizes that PyTorch says are dynamic. In inference weights are constants, which kernels
have packed; when one is changed in place, or another module runs the same code, they become
arguments, once. A graph that cannot be imported runs eagerly as a whole: the logger "ekiden.torch"
names it and its reasons, and `counters` counts it. Random numbers are PyTorch's own (see draws).
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.utils import make_boxed_func
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import _disable_current_modes

from ekiden import runtime
from ekiden._lazy import load_module
from ekiden.frontend.torch.aot_autograd import ImportedGraph, import_graph
from ekiden.frontend.torch.export import decomposition_table
from ekiden.frontend.torch.recurrent_layers import (
    remove_inactive_dropouts,
    replace_recurrent_layers,
    requires_gradients,
)
from ekiden.frontend.torch.rng import drop_unfaithful_random_decompositions
from ekiden.frontend.torch.symbolic_sizes import RunSizes
from ekiden.runtime.errors import CompileError, InternalError, LinAlgError

LOG = logging.getLogger("ekiden.torch")
counters: Counter[str] = Counter()
"""How many graphs were "compiled", run "eager", and were "thawed": compiled again with the weights
as arguments.
"""

RNN_BREAK_REASON = "RNN, GRU, or LSTM"
"""What PyTorch's reason says where it traces no further since there is a recurrent layer."""

INFERENCE_SDP_BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]
"""How PyTorch may trace attention: whole, or as products and a softmax, which alone it trains."""

RunFunction = Callable[[list[Any]], list[Any]]
"""A graph of AOTAutograd made ready: arguments, which it takes over, to results."""


def ekiden(
    module: torch.fx.GraphModule, example_inputs: Sequence[Any], **options: object
) -> Callable[..., Any]:
    """Compile a TorchDynamo graph to a function: the backend's entry point.

    Raises:
        CompileError: Options were passed; the backend has none.
    """
    if options:
        raise CompileError(f"torch.compile: backend 'ekiden' takes no options, got {list(options)}")
    replace_recurrent_layers(module, example_inputs)
    remove_inactive_dropouts(module)
    log = torch._dynamo.utils.counters
    if any(
        RNN_BREAK_REASON in reason
        for kind in ("graph_break", "unimplemented")
        for reason in log[kind]
    ):
        _warn_of_eager_rnn()
    weights = _static_weights(example_inputs)
    count = len(example_inputs)

    def compile_inference(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> RunFunction:
        """Compile the graph that AOTAutograd made, with the weights frozen if they are aligned."""
        # AOTAutograd may add or drop inputs; the positions of the weights hold only if their number
        # is unchanged.
        is_aligned = len(inputs) == count
        return compile_or_eager(graph, weights if is_aligned else {}, "inference")

    backend = aot_autograd(
        fw_compiler=lambda graph, inputs: compile_or_eager(graph, {}, "forward"),
        bw_compiler=lambda graph, inputs: compile_or_eager(graph, {}, "backward"),
        inference_compiler=compile_inference,
        decompositions=drop_unfaithful_random_decompositions(decomposition_table()),
        partition_fn=min_cut_rematerialization_partition,
    )
    # PyTorch differentiates attention only in its math form, whose products have gradients here.
    with sdpa_kernel(
        INFERENCE_SDP_BACKENDS if not requires_gradients(example_inputs) else SDPBackend.MATH
    ):
        compiled_function: Callable[..., Any] = backend(module, example_inputs)
    return compiled_function


@cache
def _warn_of_eager_rnn() -> None:
    """Warn, once per process, that functions with recurrent layers run eagerly."""
    text = (
        "what uses LSTM, GRU and RNN modules runs eagerly: torch._dynamo.config.allow_rnn is False"
    )
    LOG.warning("torch.compile: %s, by PyTorch's own setting", text)


def _static_weights(inputs: Sequence[Any]) -> dict[int, torch.Tensor]:
    """Return the inputs that are parameters or buffers, by position."""
    own = {}
    for index, item in enumerate(inputs):
        # Dynamo marks parameters and buffers that it lifted to inputs as static.
        is_own = isinstance(item, torch.nn.Parameter) or hasattr(item, "_dynamo_static_input_type")
        if isinstance(item, torch.Tensor) and is_own and _is_dense_cpu_tensor(item):
            own[index] = item
    return own


def _is_dense_cpu_tensor(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided


def compile_or_eager(
    graph: torch.fx.GraphModule, weights: Mapping[int, torch.Tensor], label: str
) -> RunFunction:
    """Compile a graph; return the eager one if it cannot be imported or compiled."""
    name = f"{label} graph of {_count_operators(graph)} operators"
    started = time.perf_counter()
    try:
        run = _CompiledGraph(graph, name, weights)
    except (CompileError, InternalError) as error:
        # A graph that cannot be compiled runs eagerly, as torch.compile promises to keep the
        # semantics.
        counters["eager"] += 1
        LOG.warning("torch.compile: the %s runs eagerly: %s", name, error)
        eager: RunFunction = make_boxed_func(graph.forward)
        return eager
    counters["compiled"] += 1
    LOG.info("torch.compile: the %s took %.2f s", name, time.perf_counter() - started)
    run._boxed_call = True  # type: ignore[attr-defined]  # what PyTorch asks for
    return run


def _count_operators(graph: torch.fx.GraphModule) -> int:
    return sum(n.op == "call_function" for n in graph.graph.nodes)


class _CompiledGraph:
    """Compiled graph: its executable, and the weights that were frozen into it."""

    def __init__(
        self, graph: torch.fx.GraphModule, name: str, weights: Mapping[int, torch.Tensor]
    ) -> None:
        self.graph, self.name = graph, name
        self.made = _compile_imported(graph, name, weights)
        self.weights = {position: _tensor_version(w) for position, w in weights.items()}

    def __call__(self, args: list[Any]) -> list[Any]:
        """Run with these arguments; the list is emptied, so that they can be freed."""
        # Weights are baked in as constants: a changed pointer or version makes them arguments for
        # good.
        if self.weights and any(
            _tensor_version(args[position]) != s for position, s in self.weights.items()
        ):
            LOG.info("torch.compile: weights of the %s are no constants", self.name)
            counters["thawed"] += 1
            # An optimizer wrote a frozen weight: recompile once with weights as arguments, so that
            # this cannot recur.
            self.made, self.weights = _compile_imported(self.graph, self.name, {}), {}
        call, imported = self.made
        inputs = [
            _as_argument(args[argument.argument_index], argument.part)
            for argument in imported.arguments
        ]
        sizes = RunSizes(imported.symbol_sources, args, {})
        inputs += [_as_argument(draw(sizes)) for draw in imported.random_draws]
        try:
            returned: Any = call(*inputs) if call is not None else ()
        except LinAlgError as error:  # as who calls PyTorch catches it
            raise torch.linalg.LinAlgError(str(error)) from error  # type: ignore[attr-defined]
        outputs = returned if isinstance(returned, tuple) else (returned,)
        results = imported.results.evaluate(sizes, outputs)
        # PyTorch's boxed calling convention: the callee empties the list so that arguments can be
        # freed early.
        args.clear()
        return results


def _compile_imported(
    graph: torch.fx.GraphModule, name: str, weights: Mapping[int, torch.Tensor]
) -> tuple[Callable[..., Any] | None, ImportedGraph]:
    with _disable_current_modes():  # weights are tensors here, whatever is being traced
        imported = import_graph(graph, name, weights)
    if imported.module is None:
        return None, imported
    driver = load_module("ekiden.compiler.compile")  # above: it is loaded when PyTorch asks for it
    return driver.compile(imported.module.to_module()), imported


def _tensor_version(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the address and version counter of a tensor, which change when it is replaced or
    written.
    """
    # Inference tensors have no version counter.
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version


def _as_argument(value: object, component: int | None = None) -> object:
    """Return an argument for the executable: a tensor by DLPack, one part of a complex tensor, or a
    size as int64 scalar.
    """
    if isinstance(value, torch.Tensor):
        # DLPack refuses tensors that require gradients.
        plain = value.detach() if value.requires_grad else value
        if component is not None:
            plain = torch.view_as_real(plain.resolve_conj())[..., component]
        return runtime.from_dlpack(plain.resolve_neg().contiguous())
    return np.asarray(value, np.int64)
