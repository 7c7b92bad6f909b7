"""ONNX image operators: GridSample, AffineGrid, RoiAlign, NonMaxSuppression, DeformConv, Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.composite_ops import append_unit_axes
from ekiden.frontend.common.sliding_window import Window
from ekiden.frontend.onnx.converters.resample import fold_constant_table
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow
from ekiden.ir.prim import EQ, GE, PrimExpr, fold_binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import as_dim, as_ints, known_int, simplify_dim, to_attr_dims
from ekiden.topi.dimensions import product_of_dims as product_of

_SAMPLE_METHODS = {
    "nearest": "nearest", "bilinear": "bilinear", "linear": "bilinear", "bicubic": "bicubic",
    "cubic": "bicubic",
}  # fmt: skip


def _grid_sample(node: OnnxNode) -> Expr:
    rank = node.rank(0)
    if rank not in (4, 5):
        node.reject(f"expected an input of rank 4 or 5, got {rank}")
    # ONNX stores coordinates in the last axis, TVM's operator expects them in axis 1.
    return op.image.grid_sample(
        node.expr(0),
        op.transpose(node.expr(1), axes=[0, rank - 1, *range(1, rank - 1)]),
        method=_SAMPLE_METHODS[node.get_string("mode", "linear")],
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=node.get_string("padding_mode", "zeros"),
        align_corners=bool(node.get_int("align_corners", 0)),
    )


def _affine_grid(node: OnnxNode) -> Expr:
    """Convert AffineGrid: the sampling grid of an image under affine maps of [-1, 1]."""
    maps, rank = node.expr(0), (known_int(node.shape(1)[0]) or 0) - 2
    if rank not in (2, 3):
        node.reject(f"'size' must have 4 or 5 elements, got {node.shape(1)[0]}")

    def map_column(index: int) -> Expr:
        """Emit column `index` of the maps [n, rank, rank + 1] as [n, 1, ..., rank]."""
        map_column = op.take(maps, const(index, "int64"), axis=2)
        for _ in range(rank):
            map_column = op.expand_dims(map_column, axis=1)
        return map_column

    grid = map_column(rank)
    for axis in range(rank):  # the first column of a map is for the last axis of the image
        coordinates = op.expand_dims(_axis_coordinates(node, axis), axis=1)
        for _ in range(rank - 1 - axis):
            coordinates = op.expand_dims(coordinates, axis=1)
        grid = op.add(grid, op.multiply(coordinates, map_column(rank - 1 - axis)))
    return grid


def _axis_coordinates(node: OnnxNode, axis: int) -> Expr:
    """Emit the normalised pixel coordinates along an axis of the image."""
    size, dtype = node.value(1), node.dtype(0)
    one, two = const(1.0, dtype), const(2.0, dtype)
    if size.is_known:
        extent = size.dims()[axis + 2]
        steps, number = op.arange(0, extent, 1, dtype="int64"), node.scope.emit_dim(as_dim(extent))
    else:
        number = op.take(op.cast(node.expr(1), "int64"), const(axis + 2, "int64"), axis=0)
        steps = op.arange(const(np.int64(0)), number, const(np.int64(1)), dtype="int64")
    position = op.multiply(two, op.cast(node.scope.expr(node.scope.bind_named(steps)), dtype))
    count = op.cast(number, dtype)
    # align_corners: -1 and 1 are the centres of the corner pixels, otherwise the borders of the
    # image.
    if node.get_int("align_corners", 0):
        span = op.maximum(op.subtract(count, one), one)
        return op.subtract(op.divide(position, span), one)
    return op.subtract(op.divide(op.add(position, one), count), one)


def _roi_align(node: OnnxNode) -> Expr:
    rois = node.expr(1)
    image = op.expand_dims(op.cast(node.expr(2), node.dtype(1)), axis=1)
    # The attribute came with opset 16; earlier versions did not shift by half a pixel.
    before = "output_half_pixel" if node.opset < 16 else "half_pixel"
    return op.vision.roi_align(
        node.expr(0),
        op.concatenate([image, rois], axis=1),
        (node.get_int("output_height", 1), node.get_int("output_width", 1)),
        node.get_float("spatial_scale", 1.0),
        sample_ratio=node.get_int("sampling_ratio", 0) or -1,
        mode={"avg": "avg", "max": "max_tap"}[node.get_string("mode", "avg")],
        aligned=node.get_string("coordinate_transformation_mode", before) == "half_pixel",
    )


def _non_max_suppression(node: OnnxNode) -> Expr:
    """Convert NonMaxSuppression: rows (batch, class, box) of the selected boxes."""
    boxes = node.expr(0)
    if node.get_int("center_point_box", 0):
        x, y, width, height = (
            op.strided_slice(boxes, begin=[i], end=[i + 1], axes=[2]) for i in range(4)
        )
        half = const(0.5, node.dtype(0))
        w, h = op.multiply(width, half), op.multiply(height, half)
        # ONNX corners are [y1, x1, y2, x2]; center boxes are [x, y, width, height].
        sides = (op.subtract(y, h), op.subtract(x, w), op.add(y, h), op.add(x, w))
        boxes = op.concatenate(sides, axis=2)

    def scalar_limit(index: int, absent: Expr) -> Expr:
        """Return an input limit as a scalar, or the default."""
        return absent if node.optional_value(index) is None else op.reshape(node.expr(index), ())

    selected = op.vision.all_class_non_max_suppression(
        boxes,
        node.expr(1),
        scalar_limit(2, const(0, "int64")),
        scalar_limit(3, const(0.0, "float32")),
        scalar_limit(4, const(-np.inf, "float32")),
    )
    # The operator's result is padded to the most boxes; the slice gives the count a symbolic name.
    rows, count = TupleGetItem(selected, 0), TupleGetItem(selected, 1)
    return op.strided_slice(rows, const(np.array([0])), count, axes=[0])


def _deform_conv(node: OnnxNode) -> Expr:
    kernel = as_ints(node.shape(1)[2:])
    if len(kernel) != 2:
        node.reject(f"expected a kernel of 2 spatial axes, got {len(kernel)}")
    pads = node.get_ints("pads", (0, 0, 0, 0))
    groups = node.get_int("offset_group", 1)
    strides, dilations = (node.get_ints(n, (1, 1)) for n in ("strides", "dilations"))
    for axis in range(2):
        extent, offset_extent = (known_int(node.shape(n)[2 + axis]) for n in (0, 2))
        if (
            extent is None or offset_extent is None or strides[axis] < 1
        ):  # the operator refuses those
            continue
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        windows = (extent + pads[axis] + pads[2 + axis] - reach) // strides[axis] + 1
        if offset_extent != windows:
            node.reject(
                f"'offset' has {offset_extent} positions along spatial axis {axis}, expected "
                f"{windows}"
            )
    # The mask is a modulation factor per tap (deformable convolution version 2).
    mask = node.optional_value(4)
    convolved: Expr = op.nn.deformable_conv2d(
        node.expr(0),
        node.expr(2),
        node.expr(1),
        mask=None if mask is None else node.scope.expr(mask),
        strides=strides,
        padding=pads,
        dilation=dilations,
        deformable_groups=groups,
        groups=node.get_int("group", 1),
        channels=known_int(node.shape(1)[0]),
        kernel_size=kernel,
        border="zeros",
    )
    return (
        convolved
        if node.optional_value(3) is None
        else op.nn.bias_add(convolved, node.expr(3), axis=1)
    )


def _col2im_pads(node: OnnxNode, rank: int) -> tuple[int, ...]:
    """Return the padding of Col2Im; raise Unsupported for negative numbers."""
    pads = tuple(node.get_ints("pads", (0,) * 2 * rank))
    if min(pads, default=0) < 0:
        node.reject(f"attribute 'pads' must not be negative, got {min(pads)}")
    return pads


def _col2im(node: OnnxNode) -> Expr:
    """Convert Col2Im: scatter-add the patches into the padded image, and crop it. The positions are
    a constant where the extents are known.
    """
    block = node.constant_ints(2, "block_shape")
    rank = len(block)
    image = [as_dim(d) for d in node.dims(1, "image_shape", rank)]
    strides, dilations = (node.get_ints(n, (1,) * rank) for n in ("strides", "dilations"))
    pads = _col2im_pads(node, rank)
    node.check_declared_count("the number of elements of a patch", max(math.prod(block), *block))
    window = Window(block, strides, dilations, pads[:rank], pads[rank:])
    padded = [simplify_dim(d + pads[i] + pads[i + rank]) for i, d in enumerate(image)]
    for extent in image:  # padding may hide one below 0
        if (number := known_int(extent)) is not None and number < 0:
            node.reject(f"'image_shape' must not be negative, got {number}")
        node.scope.require_condition(fold_binary(GE, extent, as_dim(0)), " with 'image_shape'")
    for extent, span in zip(padded, window.dilated_extents, strict=True):
        if (number := known_int(extent)) is not None:
            node.check_declared_count("an extent of the padded image", number)
        node.scope.require_condition(fold_binary(GE, extent, span), " with 'image_shape'")
    steps = window.output_extents(padded)
    batch, rows, columns = node.shape(0)
    channels = simplify_dim(rows // math.prod(block))
    planes, count = (
        product_of((batch, channels)),
        simplify_dim(product_of(steps) * math.prod(block)),
    )
    if (number := known_int(count)) is not None:
        node.check_declared_count("the number of elements of all patches", number)
    node.scope.require_condition(fold_binary(EQ, columns, product_of(steps)), " with 'image_shape'")
    zeros = op.full(const(0, node.dtype(0)), (planes, product_of(padded)), dtype=node.dtype(0))
    updates = op.reshape(node.expr(0), (planes, count))
    patch_offsets = fold_constant_table(node, _patch_indices(node, window, padded, steps))
    indices = op.broadcast_to(op.reshape(patch_offsets, (1, count)), (planes, count))
    total = op.scatter_elements(zeros, indices, updates, axis=1, reduction="add")
    padded_image = op.reshape(total, (batch, channels, *padded))
    begin = list(pads[:rank])
    end = to_attr_dims(simplify_dim(b + d) for b, d in zip(begin, image, strict=True))
    return op.strided_slice(padded_image, begin=begin, end=end, axes=list(range(2, 2 + rank)))


def _patch_indices(
    node: OnnxNode, window: Window, padded: Sequence[PrimExpr], steps: Sequence[PrimExpr]
) -> Expr:
    """Emit the flat index in the padded image of each element of each patch, [taps, *steps]."""
    rank = len(steps)
    taps = np.array(list(np.ndindex(*window.static_extents)), np.int64) * np.array(window.dilations)
    position: Expr = const(np.zeros((len(taps), *(1,) * rank), np.int64))
    for axis, (extent, count, stride) in enumerate(zip(padded, steps, window.strides, strict=True)):
        starts = op.multiply(op.arange(0, count, 1, dtype="int64"), const(np.int64(stride)))
        tap = const(taps[:, axis].reshape(-1, *(1,) * rank))
        own = op.add(append_unit_axes(starts, rank - 1 - axis), tap)
        position = op.add(op.multiply(position, node.scope.emit_dim(extent)), own)
    return position


_GRID_SAMPLE_VALUES = {
    "mode": tuple(_SAMPLE_METHODS),
    "padding_mode": ("zeros", "border", "reflection"),
}

# fmt: off
ROWS = (
    OnnxRow("GridSample", _grid_sample, since_version=16,
        attributes="align_corners mode padding_mode",
        supported_values=_GRID_SAMPLE_VALUES),
    OnnxRow("AffineGrid", _affine_grid, since_version=20, attributes="align_corners"),
    OnnxRow("RoiAlign", _roi_align, since_version=10,
        attributes="coordinate_transformation_mode mode output_height output_width"
            " sampling_ratio spatial_scale",
        supported_values={"mode": ("avg", "max"),
                "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}),
    OnnxRow("NonMaxSuppression", _non_max_suppression, since_version=10,
        attributes="center_point_box"),
    OnnxRow("DeformConv", _deform_conv, since_version=19,
        attributes="dilations group kernel_shape offset_group pads strides"),
    OnnxRow("Col2Im", _col2im, since_version=18, attributes="dilations pads strides"),
)
# fmt: on
