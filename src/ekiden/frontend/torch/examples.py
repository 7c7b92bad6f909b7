"""What a module is traced with, looked at before PyTorch does, which would tell of its own inside
or of nothing.
"""

from __future__ import annotations

import inspect
import itertools
import logging
from collections.abc import Mapping, Sequence

import torch
from torch.export import ExportedProgram

from ekiden.frontend.torch.node import describe
from ekiden.runtime.errors import CompileError, UnsupportedError

LOG = logging.getLogger("ekiden.torch")
_EAGER = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.nn.quantized")


def check_module(module: object, label: str) -> None:
    """Raise UnsupportedError for a module without numbers (on the device "meta"), and for one that
    was quantised in PyTorch's eager mode, which cannot be traced.
    """
    if not isinstance(module, torch.nn.Module):
        return
    for name, each in itertools.chain(module.named_parameters(), module.named_buffers()):
        if each.is_meta:
            text = f"the weight {name!r} is on the device 'meta', which has no numbers"
            raise UnsupportedError(f"import {label}: {text}: load them first")
    for name, part in module.named_modules():
        if type(part).__module__.startswith(_EAGER):
            text = f"{name or 'it'!r} is a {type(part).__name__} of PyTorch's eager quantisation"
            hint = "torch.export takes what was quantised by quantize_pt2e, or torchao's quantize_"
            raise UnsupportedError(f"import {label}: {text}: {hint}")


def check_examples(
    module: torch.nn.Module,
    inputs: Sequence[object],
    kwargs: Mapping[str, object],
    dynamic_shapes: object,
    label: str,
) -> None:
    """Raise CompileError for example inputs that are sparse, and for dimensions in `dynamic_shapes`
    that they have not.
    """
    names = [*list(inspect.signature(module.forward).parameters)[: len(inputs)], *kwargs]
    specs = specs_of(dynamic_shapes, names)
    given = [*inputs, *kwargs.values()]
    for name, each, spec in itertools.zip_longest(names, given, specs[: len(given)]):
        if not isinstance(each, torch.Tensor):
            continue
        if each.layout is not torch.strided:
            text = f"example input {name!r} is sparse: a dense one expected"
            raise CompileError(f"compile: {label}: {text}")
        for axis, _ in dims_of(spec):
            if axis >= each.dim():
                text = f"the input {name!r} has no dimension {axis}: its rank is {each.dim()}"
                raise CompileError(f"compile: {label}: dynamic_shapes: {text}")


def warn_of_training(program: ExportedProgram, label: str) -> None:
    """Say so where operators do what they do in training alone: it is done, and seldom meant."""
    for node in program.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and _is_training(node, node.target):
            text = "%s is in training mode: %s does what it does there; eval() is meant, perhaps"
            LOG.warning(text, label, describe(node))
            return


def _is_training(node: torch.fx.Node, target: torch._ops.OpOverload) -> bool:
    arguments = target._schema.arguments
    given = {**dict(zip((a.name for a in arguments), node.args, strict=False)), **node.kwargs}
    return any(given.get(name) is True for name in ("train", "training"))


def specs_of(dynamic_shapes: object, names: Sequence[str]) -> list[object]:
    """What is said of each input, where the inputs are tensors by themselves."""
    if isinstance(dynamic_shapes, Mapping):
        return [dynamic_shapes.get(name) for name in names]
    return list(dynamic_shapes) if isinstance(dynamic_shapes, (list, tuple)) else []


def dims_of(spec: object) -> list[tuple[int, object]]:
    """(axis, what is said of it) of an input."""
    if isinstance(spec, Mapping):
        return [(axis, dim) for axis, dim in spec.items() if isinstance(axis, int)]
    return list(enumerate(spec)) if isinstance(spec, (list, tuple)) else []
