"""What the conversions have in common."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform.graph.sparse_weights import PARTS, blocks_of
from ekiden.relay.visitor import post_order
from ekiden.runtime import Tensor
from ekiden.runtime.ndarray import array as new_tensor

Params = MutableMapping[str, Tensor]
"""Values of parameters by their names."""


def run_on(func: Function, transform: Pass) -> Function:
    """A pass over a function alone."""
    found = transform(IRModule.from_expr(func))["main"]
    assert isinstance(found, Function)
    return found


def weights_of(func: Function, name: str, weight: Callable[[Call], object]) -> list[str]:
    """The names of the variables that calls of an operator have for weights, each once."""
    calls = (e for e in post_order(func) if isinstance(e, Call))
    found = (weight(c) for c in calls if getattr(c.op, "name", "") == name)
    return list(dict.fromkeys(v.name_hint for v in found if isinstance(v, Var)))


def in_blocks(
    params: Params,
    name: str,
    matrix: Callable[[Array], Array],
    block_size: tuple[int, int],
    sparsity_threshold: float,
) -> list[int] | None:
    """Put a weight's blocks in its place, if so many of its elements are 0; the shapes of the
    three parts, one after the other. None if it stays."""
    weight = np.asarray(params[name].numpy())
    if 1 - np.count_nonzero(weight) / max(1, weight.size) < sparsity_threshold:
        return None
    parts = blocks_of(matrix(weight), block_size)
    del params[name]
    for part, value in zip(PARTS, parts, strict=True):
        params[f"{name}.{part}"] = new_tensor(value)
    return [extent for value in parts for extent in value.shape]
