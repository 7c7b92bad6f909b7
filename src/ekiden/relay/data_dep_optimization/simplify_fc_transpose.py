"""Pre-transposition of dense weights that the program transposes."""

from __future__ import annotations

import numpy as np

from ekiden.relay.analysis.search import search_fc_transpose
from ekiden.relay.data_dep_optimization.parameters import Params, run_pass_on_function
from ekiden.relay.expr import Function
from ekiden.relay.transform.graph.sparse_weights import SimplifyFCTranspose
from ekiden.runtime.ndarray import array as new_tensor


def convert(func: Function, params: Params) -> tuple[Function, Params]:
    """Convert `nn.dense(x, transpose(w))` to `nn.dense(x, w.T)`.

    The weights are parameters, which change in place.
    """
    names = [name for name in search_fc_transpose(func) if name in params]
    for name in names:
        params[f"{name}.T"] = new_tensor(np.ascontiguousarray(params[name].numpy().T))
        del params[name]
    return run_pass_on_function(func, SimplifyFCTranspose(names)), params
