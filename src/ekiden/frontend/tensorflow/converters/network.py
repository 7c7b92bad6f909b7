"""Convolutions, pools, products and normalisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.frontend.common.cells import gate, lstm
from ekiden.frontend.common.converters.reduction import local_response
from ekiden.frontend.common.matrices import transposed
from ekiden.frontend.common.products import multiplied
from ekiden.frontend.tensorflow.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import known

_SPATIAL = {"NHWC": (1, 2), "NCHW": (2, 3), "NDHWC": (1, 2, 3), "NCDHW": (2, 3, 4)}


def _layout(node: Node, default: str = "NHWC") -> str:
    found = node.text("data_format", default)
    if found not in _SPATIAL:
        node.unsupported(f"the data format {found!r} is not supported")
    return found


def _along(node: Node, name: str, layout: str) -> tuple[int, ...]:
    """What an attribute says of the axes of the image; 1 where it is not given.

    Gives up where it says something of the others: maxima over channels.
    """
    found = node.ints(name)
    others = [found[a] for a in range(len(found)) if a not in _SPATIAL[layout]]
    if any(each != 1 for each in others):
        node.unsupported(f"'{name}' {list(found)} must be 1 for the batch and the channels")
    return tuple(found[a] for a in _SPATIAL[layout]) if found else (1,) * (len(layout) - 2)


def _padding(
    node: Node, index: int, layout: str, window: Sequence[int], strides: Sequence[int],
    dilation: Sequence[int],
) -> tuple[int, ...]:  # fmt: skip
    """All sides before, then all behind: what SAME adds, the odd one behind.

    Gives up where it depends on extents that are symbolic.
    """
    kind = node.text("padding")
    if kind == "EXPLICIT":
        pairs = node.ints("explicit_paddings")
        sides = [(pairs[2 * a], pairs[2 * a + 1]) for a in _SPATIAL[layout]]
    elif kind == "VALID":
        sides = [(0, 0) for _ in window]
    else:
        sides = []
        extents = [known(node.shape(index)[a]) for a in _SPATIAL[layout]]
        for extent, size, step, d in zip(extents, window, strides, dilation, strict=True):
            reach = (size - 1) * d + 1
            if extent is None and step > 1:
                node.unsupported("padding SAME with strides needs known extents of the image")
            if extent is None:
                total = reach - 1
            else:
                total = max((-(-extent // step) - 1) * step + reach - extent, 0)
            sides.append((total // 2, total - total // 2))
    return (*(b for b, _ in sides), *(a for _, a in sides))


def _weight_shape(node: Node, index: int) -> tuple[int, ...]:
    found = [known(d) for d in node.shape(index)]
    if None in found:
        node.unsupported("the weight must have known extents")
    return tuple(d for d in found if d is not None)


def _conv(node: Node) -> Expr:
    """Weights are (..., in, out), where fewer in than the data has make groups."""
    is_deep = node.op == "Conv3D"
    layout = _layout(node, "NDHWC" if is_deep else "NHWC")
    *window, depth, out = _weight_shape(node, 1)
    channels = known(node.shape(0)[layout.index("C")])
    if channels is None or channels % depth:
        node.unsupported(f"the data must have a multiple of {depth} channels")
    strides, dilation = _along(node, "strides", layout), _along(node, "dilations", layout)
    sides = _padding(node, 0, layout, window, strides, dilation)
    function = op.nn.conv3d if is_deep else op.nn.conv2d
    return function(
        node.expr(0), node.expr(1), strides, sides, dilation, channels // depth, out,
        tuple(window), layout, "DHWIO" if is_deep else "HWIO",
    )  # fmt: skip


def _depthwise(node: Node) -> Expr:
    """Weights are (height, width, in, multiplier): of each channel of the data so many."""
    layout = _layout(node)
    height, width, depth, times = _weight_shape(node, 1)
    strides, dilation = _along(node, "strides", layout), _along(node, "dilations", layout)
    sides = _padding(node, 0, layout, (height, width), strides, dilation)
    weight = op.reshape(node.expr(1), (height, width, 1, depth * times))
    return op.nn.conv2d(
        node.expr(0), weight, strides, sides, dilation, depth, depth * times, (height, width),
        layout, "HWIO",
    )  # fmt: skip


def _transposed(node: Node) -> Expr:
    """(shape of the result, weights (.., out, in), data): what a convolution of the result would
    have padded is left out.
    """
    is_deep = node.op.startswith("Conv3D")
    layout = _layout(node, "NDHWC" if is_deep else "NHWC")
    spatial = _SPATIAL[layout]
    stated = node.dims(0, "input_sizes")
    *window, out, _ = _weight_shape(node, 1)
    strides, gaps = _along(node, "strides", layout), _along(node, "dilations", layout)
    pairs = node.ints("explicit_paddings") if node.text("padding") == "EXPLICIT" else ()
    sides, more = [], []
    for axis, size, step, gap in zip(spatial, window, strides, gaps, strict=True):
        extent, wanted = known(node.shape(2)[axis]), stated[axis]
        if extent is None or not isinstance(wanted, int):
            node.unsupported("the image must have known extents")
        whole = (extent - 1) * step + (size - 1) * gap + 1
        cut = max(whole - wanted, 0) if node.text("padding") == "SAME" else 0
        side = (pairs[2 * axis], pairs[2 * axis + 1]) if pairs else (cut // 2, cut - cut // 2)
        sides.append(side)
        more.append(wanted - whole + sum(side))
    rank, last = len(window) + 2, layout.index("C") == len(window) + 1
    function = op.nn.conv3d_transpose if is_deep else op.nn.conv2d_transpose
    front = (0, rank - 1, *range(1, rank - 1))
    made = function(
        op.transpose(node.expr(2), front) if last else node.expr(2),
        op.transpose(node.expr(1), (rank - 1, rank - 2, *range(rank - 2))), strides,
        (*(b for b, _ in sides), *(a for _, a in sides)),
        channels=out, kernel_size=tuple(window), output_padding=tuple(more), dilation=gaps,
    )  # fmt: skip
    return op.transpose(made, (0, *range(2, rank), 1)) if last else made


def _pool(function: Callable[..., Expr]) -> Converter:
    def convert(node: Node) -> Expr:
        """The pooling in the layout that the operator names, 2D or 3D."""
        layout = _layout(node, "NDHWC" if node.op.endswith("3D") else "NHWC")
        window, strides = _along(node, "ksize", layout), _along(node, "strides", layout)
        sides = _padding(node, 0, layout, window, strides, (1,) * len(window))
        return function(node.expr(0), window, strides, padding=sides, layout=layout)

    return convert


def _mat_mul(node: Node) -> Expr:
    return _product(node, node.flag("transpose_a"), node.flag("transpose_b"))


def _batch_mat_mul(node: Node) -> Expr:
    return _product(node, node.flag("adj_x"), node.flag("adj_y"))


def _product(node: Node, turns_a: bool, turns_b: bool) -> Expr:
    a, weight = node.expr(0), node.value(1).array
    a = transposed(a, node.rank(0)) if turns_a else a
    if weight is not None and weight.ndim == 2:  # dense has it as (out, in): a view
        return op.nn.dense(a, const(weight if turns_b else weight.T))
    b = transposed(node.expr(1), node.rank(1)) if turns_b else node.expr(1)
    return multiplied(node, a, b)


def _einsum(node: Node) -> Expr:
    equation = node.text("equation").replace(" ", "")
    return op.einsum(node.exprs(), equation)


def _batch_norm(node: Node) -> list[Expr]:
    """With the statistics that are given; those of a batch are training's."""
    if node.has("is_training") and node.flag("is_training"):
        node.unsupported("it computes the statistics of a batch, as training does")
    axis = 1 if node.text("data_format", "NHWC").startswith("NC") else node.rank(0) - 1
    scale, shift, mean, variance = (node.expr(i) for i in range(1, 5))
    made = op.nn.batch_norm(
        node.expr(0), scale, shift, mean, variance, axis=axis, epsilon=node.real("epsilon", 1e-4)
    )
    return [made[0], mean, variance]


def _global_norm(node: Node) -> Expr:
    """(data, means, variances, shift, scale) of the last axis."""
    data, mean, variance, shift, scale = node.exprs()
    width = op.rsqrt(op.add(variance, const(node.real("variance_epsilon"), node.dtype(0))))
    width = op.multiply(width, scale) if node.flag("scale_after_normalization") else width
    return op.add(op.multiply(op.subtract(data, mean), width), shift)


def _dilation(node: Node) -> Expr:
    """The largest of windows of NHWC data plus weights (height, width, in)."""
    steps, apart = _along(node, "strides", "NHWC"), _along(node, "rates", "NHWC")
    height, width, _ = _weight_shape(node, 1)
    sides = _padding(node, 0, "NHWC", (height, width), steps, apart)
    return op.image.dilation2d(node.expr(0), node.expr(1), steps, sides, apart, "NHWC", "HWI")


def _lstm_cell(node: Node) -> list[Expr]:
    """(data, cell, output, weights of both, peepholes of i, f, o, bias), gates in the order i, g,
    f, o: i, cell, f, o, g, what the cell shows, output.
    """
    x, before, output, weight, *holes, bias = node.exprs()
    sides = op.concatenate([x, output], axis=1)
    parts = op.split(op.add(op.nn.matmul(sides, weight), bias), 4, axis=1)
    take, new, keep, show = (parts[i] for i in range(4))
    keep = op.add(keep, const(node.real("forget_bias", 1.0), node.dtype(0)))
    eyes = holes if node.flag("use_peephole") else (None, None, None)
    gates = [gate(take, eyes[0]), gate(keep, eyes[1]), gate(new), gate(show, eyes[2])]
    made = lstm(gates, before, bound=node.real("cell_clip", 3.0))
    return [made.take, made.cell, made.keep, made.show, made.new, made.shown, made.hidden]


def _lrn(node: Node) -> Expr:
    bias, alpha, beta = node.real("bias", 1.0), node.real("alpha", 1.0), node.real("beta", 0.5)
    return local_response(node, node.number("depth_radius", 5), bias, alpha, beta)


def _crop_and_resize(node: Node) -> Expr:
    return op.image.crop_and_resize(
        node.expr(0), node.expr(1), node.expr(2), node.axes(3, "crop_size"), "NHWC",
        node.text("method", "bilinear"), node.real("extrapolation_value"),
    )  # fmt: skip


# fmt: off
ROWS = (
    *(Row(n, _conv) for n in ("Conv2D", "Conv3D")),
    Row("DepthwiseConv2dNative", _depthwise),
    *(Row(n, _transposed) for n in ("Conv2DBackpropInput", "Conv3DBackpropInputV2")),
    Row("BatchNormWithGlobalNormalization", _global_norm),
    Row("Dilation2D",            _dilation),
    Row("LSTMBlockCell",         _lstm_cell),
    Row("AvgPool",               _pool(op.nn.avg_pool2d)),
    Row("MaxPool",               _pool(op.nn.max_pool2d)),
    Row("AvgPool3D",             _pool(op.nn.avg_pool3d)),
    Row("MaxPool3D",             _pool(op.nn.max_pool3d)),
    Row("MatMul",                _mat_mul),
    *(Row(n, _batch_mat_mul) for n in ("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3")),
    Row("Einsum",                _einsum),
    *(Row(n, _batch_norm) for n in ("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")),
    Row("LRN",                   _lrn),
    Row("CropAndResize",         _crop_and_resize),
)
# fmt: on
