"""Products with weights of few elements."""

from __future__ import annotations

from ekiden.relay.data_dep_optimization.parameters import Params, in_blocks, run_on, weights_of
from ekiden.relay.expr import Function
from ekiden.relay.transform.graph.sparse_weights import DenseToSparse


def convert(
    func: Function, params: Params, blocksize: tuple[int, int], sparsity_threshold: float
) -> tuple[Function, Params]:
    """`nn.dense` as `nn.sparse_dense` where at least that share of the weight, a parameter, is 0.
    The parameters change in place: blocks (BSR) take the weight's place."""
    shapes = {}
    for name in weights_of(func, "nn.dense", lambda call: call.args[1]):
        if name in params:
            found = in_blocks(params, name, lambda w: w, blocksize, sparsity_threshold)
            shapes.update({} if found is None else {name: found})
    return run_on(func, DenseToSparse(list(shapes), list(shapes.values()))), params
