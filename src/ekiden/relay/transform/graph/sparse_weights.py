"""Convert dense weights to block-sparse rows (BSR) for dense layers and convolutions.

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
from ekiden.relay.analysis.search import find_transposed_weight
from ekiden.relay.expr import Call, Constant, Expr, Function, Var
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs
from ekiden.relay.transform.graph.call_rewrites import CallRewrite, rewrite_calls
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import map_functions
from ekiden.relay.visitor import free_vars
from ekiden.topi.dimensions import Dim, as_shape

BSR_FIELDS = ("data", "indices", "indptr")
KERNEL_LAYOUT_BY_DATA_LAYOUT = {"NHWC": "HWIO", "NCHW": "OIHW"}
"""Weight layout by data layout."""


def dense_to_bsr(weight: Array, block_size: tuple[int, int]) -> tuple[Array, Array, Array]:
    """Convert a matrix to block-sparse rows: (data [blocks, r, c], indices, indptr) of its non-zero
    blocks. Raises ValueError where blocks do not fit.
    """
    high, wide = block_size
    if weight.ndim != 2 or weight.shape[0] % high or weight.shape[1] % wide:
        raise ValueError(f"blocks of {block_size} do not fill a weight of {weight.shape}")
    # [block rows, block columns, rows in a block, columns in a block].
    tiles = weight.reshape(weight.shape[0] // high, high, -1, wide).swapaxes(1, 2)
    used = tiles.any(axis=(2, 3))
    starts = np.concatenate([[0], np.cumsum(used.sum(axis=1))])
    return tiles[used], np.nonzero(used)[1].astype("int32"), starts.astype("int32")


def conv_weight_matrix(weight: Array, layout: str) -> Array:
    """Reshape a convolution weight to a matrix [channels, columns].

    Args:
        weight: The weight.
        layout: The layout of the data.
    """
    flat = weight.reshape(-1, weight.shape[-1]).T if layout == "NHWC" else weight
    return flat.reshape(flat.shape[0], -1)


def kernel_window(weight_shape: Sequence[int], layout: str) -> tuple[int, ...]:
    """Return the spatial kernel size of a convolution weight."""
    return tuple(weight_shape[:2] if layout == "NHWC" else weight_shape[2:])


def is_unit_stride_same_conv(call: Call, layout: str, kernel_size: int) -> bool:
    """Return whether `nn.sparse_conv2d` can compute the convolution (unit strides, same padding,
    matching layout).
    """
    attrs = call.attrs
    assert isinstance(attrs, Conv2DAttrs)
    kind = call.args[1].checked_type
    if (
        not isinstance(kind, TensorType)
        or layout not in KERNEL_LAYOUT_BY_DATA_LAYOUT
        or attrs.groups != 1
    ):
        return False
    layouts = attrs.data_layout, attrs.kernel_layout, attrs.out_layout or layout
    if layouts != (layout, KERNEL_LAYOUT_BY_DATA_LAYOUT[layout], layout):
        return False
    steps, border = {*attrs.strides, *attrs.dilation}, set(attrs.padding)
    window = kernel_window(kind.concrete_shape, layout)
    return steps == {1} and border == {kernel_size // 2} and set(window) == {kernel_size}


class _WeightReplacements:
    """Weight variables of a function with the parameters that replace them."""

    def __init__(self, makers: Mapping[str, Callable[[Var], tuple[Var, ...]]]) -> None:
        self.param_builders, self.replacements = makers, dict[Var, tuple[Var, ...]]()

    def replacement_params(self, weight: Expr) -> tuple[Var, ...] | None:
        """Return the parameters that replace a weight variable, or None for a weight that is not
        replaced.
        """
        if not isinstance(weight, Var) or weight.name_hint not in self.param_builders:
            return None
        if weight not in self.replacements:
            # Calls that share a weight share its replacements.
            self.replacements[weight] = self.param_builders[weight.name_hint](weight)
        return self.replacements[weight]

    def rewrite_function(self, function: Function, table: Mapping[str, CallRewrite]) -> Function:
        """Rewrite a function's calls and its parameter list."""
        body = rewrite_calls(function.body, table)
        still_used = set(free_vars(body))
        parameters: list[Var] = []
        for param in function.params:
            # A weight that other calls use too stays beside its replacements.
            if param not in self.replacements or param in still_used:
                parameters.append(param)
            parameters += self.replacements.get(param, ())
        return function.with_fields(params=tuple(parameters), body=body, ret_type=None)


def _weight_replacement_pass(
    name: str,
    makers: Mapping[str, Callable[[Var], tuple[Var, ...]]],
    table: Callable[[_WeightReplacements], Mapping[str, CallRewrite]],
) -> Pass:
    def rewrite(function: Function) -> Function:
        weights = _WeightReplacements(makers)
        return weights.rewrite_function(function, table(weights))

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, rewrite)

    return Pass(name, transform, 0, (InferType(),))


def _typed_var(name: str, kind: TensorType) -> Var:
    variable = Var(name, kind)
    variable.set_checked_type(kind)
    return variable


def _bsr_param_builder(shape: Sequence[Dim]) -> Callable[[Var], tuple[Var, ...]]:
    """Return a builder of the three BSR parameters of a weight.

    Args:
        shape: The numbers of their shapes, one after the other: the last two are of vectors.
    """

    def build_params(weight: Var) -> tuple[Var, ...]:
        """Build the BSR parameters, named after the weight with `.data`, `.indices` and `.indptr`.

        The data has its dtype, the other two int32.
        """
        kind = weight.checked_type
        assert isinstance(kind, TensorType)
        shapes = (tuple(shape[:-2]), (shape[-2],), (shape[-1],))
        dtypes = (kind.dtype, "int32", "int32")
        return tuple(
            _typed_var(f"{weight.name_hint}.{suffix}", TensorType(as_shape(dims), dtype))
            for suffix, dims, dtype in zip(BSR_FIELDS, shapes, dtypes, strict=True)
        )

    return build_params


def _bsr_builders_by_name(
    weight_name: Sequence[str], weight_shape: Sequence[Sequence[Dim]]
) -> dict[str, Callable[[Var], tuple[Var, ...]]]:
    pairs = zip(weight_name, weight_shape, strict=True)
    return {str(name): _bsr_param_builder(shape) for name, shape in pairs}


def DenseToSparse(  # noqa: N802
    weight_name: Sequence[str], weight_shape: Sequence[Sequence[Dim]]
) -> Pass:
    """Return a pass that replaces nn.dense by nn.sparse_dense for the named weights (TVM's
    DenseToSparse).

    Args:
        weight_name: The names of the weights.
        weight_shape: The shapes of their data, indices and indptr, one after the other.
    """

    def table(weights: _WeightReplacements) -> Mapping[str, CallRewrite]:
        """Return the rewrite table for nn.dense."""

        def rewrite_dense(call: Call) -> Call | None:
            """Return the sparse product of a call whose weight is sparse, else None."""
            sparse_params = weights.replacement_params(call.args[1])
            return (
                None if sparse_params is None else op.nn.sparse_dense(call.args[0], sparse_params)
            )

        return {"nn.dense": rewrite_dense}

    return _weight_replacement_pass(
        "DenseToSparse", _bsr_builders_by_name(weight_name, weight_shape), table
    )


def Conv2dToSparse(  # noqa: N802
    weight_name: Sequence[str],
    weight_shape: Sequence[Sequence[Dim]],
    layout: str,
    kernel_size: int,
) -> Pass:
    """Return a pass that replaces nn.conv2d by nn.sparse_conv2d for the named weights (TVM's
    Conv2dToSparse).

    Args:
        weight_name: The names of the weights.
        weight_shape: The shapes of their data, indices and indptr, one after the other.
        layout: The layout of the data.
        kernel_size: The window.
    """

    def table(weights: _WeightReplacements) -> Mapping[str, CallRewrite]:
        """Return the rewrite table for nn.conv2d."""

        def rewrite_conv2d(call: Call) -> Call | None:
            """Rewrite a supported convolution by sparse_conv2d, or return None."""
            fits = is_unit_stride_same_conv(call, layout, kernel_size)
            sparse_params = weights.replacement_params(call.args[1]) if fits else None
            if sparse_params is None:
                return None
            return op.nn.sparse_conv2d(call.args[0], sparse_params, layout, kernel_size)

        return {"nn.conv2d": rewrite_conv2d}

    return _weight_replacement_pass(
        "Conv2dToSparse", _bsr_builders_by_name(weight_name, weight_shape), table
    )


def Conv2dToSparse2(  # noqa: N802
    layout: str, kernel_size: int, blocksize: tuple[int, int], sparsity_threshold: float
) -> Pass:
    """Return a pass that replaces nn.conv2d with sparse constant weights by nn.sparse_conv2d (TVM's
    Conv2dToSparse2).

    Args:
        layout: The layout of the data.
        kernel_size: The window.
        blocksize: Rows and columns of a block.
        sparsity_threshold: The fraction of the weight that must be outside of nonzero blocks.
    """

    def rewrite_conv2d(call: Call) -> Call | None:
        """Rewrite a convolution whose weight is sparse enough, or return None."""
        weight = call.args[1]
        if not isinstance(weight, Constant) or not is_unit_stride_same_conv(
            call, layout, kernel_size
        ):
            return None
        matrix = conv_weight_matrix(np.asarray(weight.data), layout)
        data, indices, indptr = dense_to_bsr(matrix, (blocksize[0], blocksize[1]))
        if 1 - data.size / matrix.size < sparsity_threshold:
            return None
        sparse_weight = Constant(data), Constant(indices), Constant(indptr)
        return op.nn.sparse_conv2d(call.args[0], sparse_weight, layout, kernel_size)

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Rewrite the sparse convolutions of a module."""
        return map_functions(
            module,
            lambda f: f.with_fields(body=rewrite_calls(f.body, {"nn.conv2d": rewrite_conv2d})),
        )

    return Pass("Conv2dToSparse2", transform, 0, (InferType(),))


def _transposed_weight_param(weight: Var) -> tuple[Var, ...]:
    kind = weight.checked_type
    assert isinstance(kind, TensorType)
    return (_typed_var(f"{weight.name_hint}.T", TensorType(kind.shape[::-1], kind.dtype)),)


def SimplifyFCTranspose(target_weight_name: Sequence[str]) -> Pass:  # noqa: N802
    """Return a pass that replaces transposed nn.dense weights by pre-transposed parameters (TVM's
    SimplifyFCTranspose).
    """

    def table(weights: _WeightReplacements) -> Mapping[str, CallRewrite]:
        """Return the rewrite table for nn.dense."""

        def rewrite_dense(call: Call) -> Call | None:
            """Rewrite a dense layer to read the pre-transposed parameter."""
            source = find_transposed_weight(call)
            new_weight = None if source is None else weights.replacement_params(source)
            return (
                None if new_weight is None else call.with_fields(args=(call.args[0], *new_weight))
            )

        return {"nn.dense": rewrite_dense}

    makers = {str(name): _transposed_weight_param for name in target_weight_name}
    return _weight_replacement_pass("SimplifyFCTranspose", makers, table)
