"""Conversion of sparse dense-layer weights to BSR."""

from __future__ import annotations

from ekiden.relay.data_dep_optimization.parameters import (
    Params,
    replace_by_bsr,
    run_pass_on_function,
    weight_names,
)
from ekiden.relay.expr import Function
from ekiden.relay.transform.graph.sparse_weights import DenseToSparse


def convert(
    func: Function, params: Params, blocksize: tuple[int, int], sparsity_threshold: float
) -> tuple[Function, Params]:
    """Convert `nn.dense` with sparse weights to `nn.sparse_dense`.

    At least the share `sparsity_threshold` of a weight, a parameter, must be 0. The parameters
    change in place: blocks (BSR) replace the weight.
    """
    shapes = {}
    for name in weight_names(func, "nn.dense", lambda call: call.args[1]):
        if name in params:
            shapes_of_blocks = replace_by_bsr(
                params, name, lambda w: w, blocksize, sparsity_threshold
            )
            shapes.update({} if shapes_of_blocks is None else {name: shapes_of_blocks})
    return run_pass_on_function(func, DenseToSparse(list(shapes), list(shapes.values()))), params
