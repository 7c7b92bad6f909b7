"""Block-sparse (BSR) weights for products and convolutions.

    nn.dense(%x, %w)    ->  nn.sparse_dense(%x, %w.data, %w.indices, %w.indptr)     DenseToSparse
    nn.conv2d(%x, %w)   ->  nn.sparse_conv2d(%x, %w.data, %w.indices, %w.indptr)    Conv2dToSparse
    nn.conv2d(%x, W)    ->  nn.sparse_conv2d(%x, W in blocks)                       Conv2dToSparse2
    nn.dense(%x, transpose(%w, [1, 0]))  ->  nn.dense(%x, %w.T)                 SimplifyFCTranspose

The parameters of functions change with it; ekiden.relay.data_dep_optimization changes their values.
Convolutions are those of strides of 1 without groups whose border keeps the extent of the data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.analysis.search import transposed_weight
from ekiden.relay.expr import Call, Constant, Expr, Function, Var
from ekiden.relay.op.nn.geometry import Conv2DAttrs
from ekiden.relay.transform.graph.calls import Rewrite, rewrite_calls
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import map_functions
from ekiden.relay.visitor import free_vars
from ekiden.topi.dimensions import Dim, as_shape

SPARSE_FIELDS = ("data", "indices", "indptr")
KERNEL_LAYOUTS = {"NHWC": "HWIO", "NCHW": "OIHW"}
"""Layout of the data -> of the weight."""


def blocks_of(weight: Array, block_size: tuple[int, int]) -> tuple[Array, Array, Array]:
    """(data [blocks, r, c], indices, indptr) of a matrix: the blocks that hold anything, row of
    blocks by row. Raises ValueError where blocks do not fit."""
    high, wide = block_size
    if weight.ndim != 2 or weight.shape[0] % high or weight.shape[1] % wide:
        raise ValueError(f"blocks of {block_size} do not fill a weight of {weight.shape}")
    tiles = weight.reshape(weight.shape[0] // high, high, -1, wide).swapaxes(1, 2)
    used = tiles.any(axis=(2, 3))
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    return tiles[used], np.nonzero(used)[1].astype("int32"), starts.astype("int32")


def conv_matrix(weight: Array, layout: str) -> Array:
    """Return the weight of a convolution as a matrix [channels, columns].

    Args:
        weight: The weight.
        layout: The layout of the data.
    """
    flat = weight.reshape(-1, weight.shape[-1]).T if layout == "NHWC" else weight
    return flat.reshape(flat.shape[0], -1)


def window_of(weight_shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Return the window of such a weight."""
    return tuple(weight_shape[:2] if layout == "NHWC" else weight_shape[2:])


def is_plain_conv(call: Call, layout: str, kernel_size: int) -> bool:
    """Return whether `nn.sparse_conv2d` computes what a convolution does."""
    attrs = call.attrs
    assert isinstance(attrs, Conv2DAttrs)
    kind = call.args[1].checked_type
    if not isinstance(kind, TensorType) or layout not in KERNEL_LAYOUTS or attrs.groups != 1:
        return False
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or layout
    if layouts != (layout, KERNEL_LAYOUTS[layout], layout):
        return False
    steps, border = {*attrs.strides, *attrs.dilation}, set(attrs.padding)
    window = window_of(kind.concrete_shape, layout)
    return steps == {1} and border == {kernel_size // 2} and set(window) == {kernel_size}


class _ReplacedWeights:
    """Parameters of a function that replace weights, as calls need them."""

    def __init__(self, makers: Mapping[str, Callable[[Var], tuple[Var, ...]]]) -> None:
        self.made, self.found = makers, dict[Var, tuple[Var, ...]]()

    def of(self, weight: Expr) -> tuple[Var, ...] | None:
        """Return the parameters that replace a weight; None for one that stays."""
        if not isinstance(weight, Var) or weight.name_hint not in self.made:
            return None
        if weight not in self.found:
            self.found[weight] = self.made[weight.name_hint](weight)
        return self.found[weight]

    def on(self, function: Function, table: Mapping[str, Rewrite]) -> Function:
        """Rewrite the calls of a function, and its parameters."""
        body = rewrite_calls(function.body, table)
        still_used = set(free_vars(body))
        parameters: list[Var] = []
        for param in function.params:
            # A weight that other calls use too stays beside its replacements.
            if param not in self.found or param in still_used:
                parameters.append(param)
            parameters += self.found.get(param, ())
        return function.with_fields(params=tuple(parameters), body=body, ret_type=None)


def _parameter_pass(
    name: str,
    makers: Mapping[str, Callable[[Var], tuple[Var, ...]]],
    table: Callable[[_ReplacedWeights], Mapping[str, Rewrite]],
) -> Pass:
    def rewrite(function: Function) -> Function:
        weights = _ReplacedWeights(makers)
        return weights.on(function, table(weights))

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, rewrite)

    return Pass(name, transform, 0, (InferType(),))


def _parameter(name: str, kind: TensorType) -> Var:
    variable = Var(name, kind)
    variable.set_checked_type(kind)
    return variable


def _sparse_parameters(shape: Sequence[Dim]) -> Callable[[Var], tuple[Var, ...]]:
    """Return the maker of the three parameters of a weight.

    Args:
        shape: The numbers of their shapes, one after the other: the last two are of vectors.
    """

    def parts(weight: Var) -> tuple[Var, ...]:
        """Return the parameters of a weight, named after it with `.data` and so on.

        The data has its dtype, the other two int32.
        """
        kind = weight.checked_type
        assert isinstance(kind, TensorType)
        shapes = (tuple(shape[:-2]), (shape[-2],), (shape[-1],))
        dtypes = (kind.dtype, "int32", "int32")
        return tuple(
            _parameter(f"{weight.name_hint}.{suffix}", TensorType(as_shape(dims), dtype))
            for suffix, dims, dtype in zip(SPARSE_FIELDS, shapes, dtypes, strict=True)
        )

    return parts


def _by_name(
    weight_name: Sequence[str], weight_shape: Sequence[Sequence[Dim]]
) -> dict[str, Callable[[Var], tuple[Var, ...]]]:
    pairs = zip(weight_name, weight_shape, strict=True)
    return {str(name): _sparse_parameters(shape) for name, shape in pairs}


def DenseToSparse(  # noqa: N802
    weight_name: Sequence[str], weight_shape: Sequence[Sequence[Dim]]
) -> Pass:
    """Return the pass that makes `nn.dense` with some weights `nn.sparse_dense`.

    Args:
        weight_name: The names of the weights.
        weight_shape: The shapes of their data, indices and indptr, one after the other.
    """

    def table(weights: _ReplacedWeights) -> Mapping[str, Rewrite]:
        """Return the rewrite of nn.dense for those weights."""

        def dense(call: Call) -> Call | None:
            sparse_params = weights.of(call.args[1])
            return (
                None if sparse_params is None else op.nn.sparse_dense(call.args[0], sparse_params)
            )

        return {"nn.dense": dense}

    return _parameter_pass("DenseToSparse", _by_name(weight_name, weight_shape), table)


def Conv2dToSparse(  # noqa: N802
    weight_name: Sequence[str],
    weight_shape: Sequence[Sequence[Dim]],
    layout: str,
    kernel_size: int,
) -> Pass:
    """Return the pass that makes `nn.conv2d` with some weights `nn.sparse_conv2d`.

    Args:
        weight_name: The names of the weights.
        weight_shape: The shapes of their data, indices and indptr, one after the other.
        layout: The layout of the data.
        kernel_size: The window.
    """

    def table(weights: _ReplacedWeights) -> Mapping[str, Rewrite]:
        """Return the rewrite of nn.conv2d for those weights."""

        def conv(call: Call) -> Call | None:
            """Rewrite a convolution; None for one with strides, padding or another layout or
            window.
            """
            fits = is_plain_conv(call, layout, kernel_size)
            sparse_params = weights.of(call.args[1]) if fits else None
            if sparse_params is None:
                return None
            return op.nn.sparse_conv2d(call.args[0], sparse_params, layout, kernel_size)

        return {"nn.conv2d": conv}

    return _parameter_pass("Conv2dToSparse", _by_name(weight_name, weight_shape), table)


def Conv2dToSparse2(  # noqa: N802
    layout: str, kernel_size: int, blocksize: tuple[int, int], sparsity_threshold: float
) -> Pass:
    """Return the pass that makes `nn.conv2d` with sparse constant weights `nn.sparse_conv2d`.

    Args:
        layout: The layout of the data.
        kernel_size: The window.
        blocksize: Rows and columns of a block.
        sparsity_threshold: The fraction of the weight that must be outside of nonzero blocks.
    """

    def conv(call: Call) -> Call | None:
        """Rewrite a convolution; None where the weight has fewer zero blocks than the threshold."""
        weight = call.args[1]
        if not isinstance(weight, Constant) or not is_plain_conv(call, layout, kernel_size):
            return None
        matrix = conv_matrix(np.asarray(weight.data), layout)
        data, indices, indptr = blocks_of(matrix, (blocksize[0], blocksize[1]))
        if 1 - data.size / matrix.size < sparsity_threshold:
            return None
        sparse_weight = Constant(data), Constant(indices), Constant(indptr)
        return op.nn.sparse_conv2d(call.args[0], sparse_weight, layout, kernel_size)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite those convolutions of a module."""
        return map_functions(
            module, lambda f: f.with_fields(body=rewrite_calls(f.body, {"nn.conv2d": conv}))
        )

    return Pass("Conv2dToSparse2", transform, 0, (InferType(),))


def _transposed_parameter(weight: Var) -> tuple[Var, ...]:
    kind = weight.checked_type
    assert isinstance(kind, TensorType)
    return (_parameter(f"{weight.name_hint}.T", TensorType(kind.shape[::-1], kind.dtype)),)


def SimplifyFCTranspose(target_weight_name: Sequence[str]) -> Pass:  # noqa: N802
    """Return the pass that replaces transposed weights of `nn.dense` by transposed parameters."""

    def table(weights: _ReplacedWeights) -> Mapping[str, Rewrite]:
        """Return the rewrite of nn.dense for those weights."""

        def dense(call: Call) -> Call | None:
            """Rewrite a product with the new parameter, which holds the transpose."""
            source = transposed_weight(call)
            new_weight = None if source is None else weights.of(source)
            return (
                None if new_weight is None else call.with_fields(args=(call.args[0], *new_weight))
            )

        return {"nn.dense": dense}

    makers = {str(name): _transposed_parameter for name in target_weight_name}
    return _parameter_pass("SimplifyFCTranspose", makers, table)
