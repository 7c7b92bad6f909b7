"""Validation of a module and its example inputs before PyTorch traces them.

PyTorch's own errors would name its internals, or nothing.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from ekiden.frontend.torch.node import describe_node
from ekiden.runtime.errors import CompileError, UnsupportedError

LOG = logging.getLogger("ekiden.torch")
_EAGER_QUANTIZATION_MODULES = (
    "torch.ao.nn.quantized",
    "torch.ao.nn.intrinsic.quantized",
    "torch.nn.quantized",
)


def check_module(module: object, label: str) -> None:
    """Raise UnsupportedError for weights on the device "meta", and for modules of eager-mode
    quantization, which cannot be traced.
    """
    if not isinstance(module, torch.nn.Module):
        return
    for name, tensor in itertools.chain(module.named_parameters(), module.named_buffers()):
        if tensor.is_meta:
            text = f"the weight {name!r} is on the device 'meta', which has no numbers"
            raise UnsupportedError(f"import {label}: {text}: load them first")
    for name, inner in module.named_modules():
        if type(inner).__module__.startswith(_EAGER_QUANTIZATION_MODULES):
            text = f"{name or 'it'!r} is a {type(inner).__name__} of PyTorch's eager quantisation"
            hint = "torch.export takes what was quantised by quantize_pt2e, or torchao's quantize_"
            raise UnsupportedError(f"import {label}: {text}: {hint}")


def check_examples(
    module: torch.nn.Module,
    inputs: Sequence[object],
    kwargs: Mapping[str, object],
    dynamic_shapes: object,
    label: str,
) -> None:
    """Raise CompileError for sparse example inputs, and for dimensions in `dynamic_shapes` that
    they lack.
    """
    names = [*list(inspect.signature(module.forward).parameters)[: len(inputs)], *kwargs]
    specs = input_specs(dynamic_shapes, names)
    examples = [*inputs, *kwargs.values()]
    for name, example, spec in itertools.zip_longest(names, examples, specs[: len(examples)]):
        if not isinstance(example, torch.Tensor):
            continue
        if example.layout is not torch.strided:
            text = f"example input {name!r} is sparse: a dense one expected"
            raise CompileError(f"compile: {label}: {text}")
        for axis, _ in spec_dims(spec):
            if axis >= example.dim():
                text = f"the input {name!r} has no dimension {axis}: its rank is {example.dim()}"
                raise CompileError(f"compile: {label}: dynamic_shapes: {text}")


def warn_about_training_mode(program: ExportedProgram, label: str) -> None:
    """Warn of an operator in training mode, which is imported as such but seldom meant."""
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and _is_training(node, node.target):
            text = "%s is in training mode: %s does what it does there; eval() is meant, perhaps"
            LOG.warning(text, label, describe_node(node))
            return


def _is_training(node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
    arguments = target._schema.arguments
    values = {**dict(zip((a.name for a in arguments), node.args, strict=False)), **node.kwargs}
    return any(values.get(name) is True for name in ("train", "training"))


def input_specs(dynamic_shapes: object, names: Sequence[str]) -> list[object]:
    """Return the dynamic-shape specification of each input that is a plain tensor."""
    if isinstance(dynamic_shapes, Mapping):
        return [dynamic_shapes.get(name) for name in names]
    return list(dynamic_shapes) if isinstance(dynamic_shapes, (list, tuple)) else []


def spec_dims(spec: object) -> list[tuple[int, object]]:
    """Return the (axis, dimension) pairs of an input's dynamic-shape specification."""
    if isinstance(spec, Mapping):
        return [(axis, dim) for axis, dim in spec.items() if isinstance(axis, int)]
    return list(enumerate(spec)) if isinstance(spec, (list, tuple)) else []
