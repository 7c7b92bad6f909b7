"""Helpers shared by the data-dependent optimisations."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.transform import Pass
from ekiden.relay.expr import Call, Function, Var
from ekiden.relay.transform.graph.sparse_weights import BSR_FIELDS, dense_to_bsr
from ekiden.relay.visitor import post_order
from ekiden.runtime import Tensor
from ekiden.runtime.ndarray import array as new_tensor

Params = MutableMapping[str, Tensor]
"""Parameter values by name."""


def run_pass_on_function(func: Function, transform: Pass) -> Function:
    """Run a pass on a single function."""
    transformed = transform(IRModule.from_expr(func))["main"]
    assert isinstance(transformed, Function)
    return transformed


def weight_names(func: Function, name: str, weight: Callable[[Call], object]) -> list[str]:
    """Return the distinct names of the weight variables of an operator's calls."""
    calls = (e for e in post_order(func) if isinstance(e, Call))
    weights = (weight(c) for c in calls if getattr(c.op, "name", "") == name)
    return list(dict.fromkeys(v.name_hint for v in weights if isinstance(v, Var)))


def replace_by_bsr(
    params: Params,
    name: str,
    matrix: Callable[[Array], Array],
    block_size: tuple[int, int],
    sparsity_threshold: float,
) -> list[int] | None:
    """Replace a weight by its BSR form if it is sparse enough.

    Returns:
        The shapes of the three arrays, one after the other, or None if the weight stays.
    """
    weight = np.asarray(params[name].numpy())
    if 1 - np.count_nonzero(weight) / max(1, weight.size) < sparsity_threshold:
        return None
    arrays = dense_to_bsr(matrix(weight), block_size)
    del params[name]
    for suffix, value in zip(BSR_FIELDS, arrays, strict=True):
        params[f"{name}.{suffix}"] = new_tensor(value)
    return [extent for value in arrays for extent in value.shape]
