"""Conversion of sparse convolution weights to BSR."""

from __future__ import annotations

from ekiden.relay.data_dep_optimization.parameters import (
    Params,
    replace_by_bsr,
    run_pass_on_function,
    weight_names,
)
from ekiden.relay.expr import Call, Function
from ekiden.relay.transform.graph.sparse_weights import (
    Conv2dToSparse,
    Conv2dToSparse2,
    conv_weight_matrix,
    is_unit_stride_same_conv,
)
from ekiden.relay.transform.language.infer_type import InferType


def convert(
    func: Function,
    params: Params,
    blocksize: tuple[int, int],
    sparsity_threshold: float,
    layout: str = "NHWC",
    kernel_size: int = 1,
) -> tuple[Function, Params]:
    """Convert `nn.conv2d` with sparse weights to `nn.sparse_conv2d`.

    At least the share `sparsity_threshold` of a weight, a parameter, must be 0. The parameters
    change in place.
    """
    typed = run_pass_on_function(func, InferType())
    fitting = weight_names(
        typed,
        "nn.conv2d",
        lambda call: (
            _weight_operand(call) if is_unit_stride_same_conv(call, layout, kernel_size) else None
        ),
    )
    shapes = {}
    for name in fitting:
        if name in params:
            shapes_of_blocks = replace_by_bsr(
                params, name, lambda w: conv_weight_matrix(w, layout), blocksize, sparsity_threshold
            )
            shapes.update({} if shapes_of_blocks is None else {name: shapes_of_blocks})
    names, sizes = list(shapes), list(shapes.values())
    return run_pass_on_function(typed, Conv2dToSparse(names, sizes, layout, kernel_size)), params


def _weight_operand(call: Call) -> object:
    return call.args[1]


def convert2(
    func: Function,
    params: Params,
    blocksize: tuple[int, int],
    sparsity_threshold: float,
    layout: str,
    kernel_size: int,
) -> tuple[Function, Params]:
    """Convert as `convert`, for constant weights."""
    convert = Conv2dToSparse2(layout, kernel_size, blocksize, sparsity_threshold)
    return run_pass_on_function(func, convert), params
