"""Operators on images and boxes: sampling, regions, patches, deformed windows."""

from __future__ import annotations

import math
from itertools import product as every

import numpy as np

from ekiden.frontend.onnx.converters.axis import is_data
from ekiden.frontend.onnx.node import Node, Row
from ekiden.ir.prim import EQ, GE, binary
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.shape import Dim, as_dim, as_ints, known, tidy
from ekiden.topi.shape import product as product_of

_METHODS = {
    "nearest": "nearest", "bilinear": "bilinear", "linear": "bilinear", "bicubic": "bicubic",
    "cubic": "bicubic",
}  # fmt: skip


def _grid_sample(node: Node) -> Expr:
    rank = node.rank(0)
    if rank not in (4, 5):
        node.unsupported(f"expected an input of rank 4 or 5, got {rank}")
    return op.image.grid_sample(
        node.expr(0),
        op.transpose(node.expr(1), axes=[0, rank - 1, *range(1, rank - 1)]),
        method=_METHODS[node.get_string("mode", "linear")],
        layout="NCHW" if rank == 4 else "NCDHW",
        padding_mode=node.get_string("padding_mode", "zeros"),
        align_corners=bool(node.get_int("align_corners", 0)),
    )


def _affine_grid(node: Node) -> Expr:
    """Where each pixel of an image of a given size comes from, by an affine map of [-1, 1]."""
    maps, rank = node.expr(0), (known(node.shape(1)[0]) or 0) - 2
    if rank not in (2, 3):
        node.unsupported(f"'size' must have 4 or 5 elements, got {node.shape(1)[0]}")

    def column(index: int) -> Expr:
        """Column `index` of the maps [n, rank, rank + 1] as [n, rank, 1, ...], to broadcast over
        places.
        """
        part = op.take(maps, const(index, "int64"), axis=2)
        for _ in range(rank):
            part = op.expand_dims(part, axis=1)
        return part

    found = column(rank)
    for axis in range(rank):  # the first column of a map is for the last axis of the image
        line = op.expand_dims(_line(node, axis), axis=1)
        for _ in range(rank - 1 - axis):
            line = op.expand_dims(line, axis=1)
        found = op.add(found, op.multiply(line, column(rank - 1 - axis)))
    return found


def _line(node: Node, axis: int) -> Expr:
    """The places of the pixels along an axis of the image."""
    size, dtype = node.value(1), node.dtype(0)
    one, two = const(1.0, dtype), const(2.0, dtype)
    if size.is_known:
        extent = size.dims()[axis + 2]
        steps, number = op.arange(0, extent, 1, dtype="int64"), node.scope.scalar(as_dim(extent))
    else:
        number = op.take(op.cast(node.expr(1), "int64"), const(axis + 2, "int64"), axis=0)
        steps = op.arange(const(np.int64(0)), number, const(np.int64(1)), dtype="int64")
    at = op.multiply(two, op.cast(node.scope.expr(node.scope.bound(steps)), dtype))
    count = op.cast(number, dtype)
    if node.get_int("align_corners", 0):
        span = op.maximum(op.subtract(count, one), one)
        return op.subtract(op.divide(at, span), one)
    return op.subtract(op.divide(op.add(at, one), count), one)


def _roi_align(node: Node) -> Expr:
    rois = node.expr(1)
    image = op.expand_dims(op.cast(node.expr(2), node.dtype(1)), axis=1)
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


def _non_max_suppression(node: Node) -> Expr:
    """Rows (batch, class, box) of the boxes that are kept, as many as there are."""
    boxes = node.expr(0)
    if node.get_int("center_point_box", 0):
        x, y, width, height = (
            op.strided_slice(boxes, begin=[i], end=[i + 1], axes=[2]) for i in range(4)
        )
        half = const(0.5, node.dtype(0))
        w, h = op.multiply(width, half), op.multiply(height, half)
        sides = (op.subtract(y, h), op.subtract(x, w), op.add(y, h), op.add(x, w))
        boxes = op.concatenate(sides, axis=2)

    def limit(index: int, absent: Expr) -> Expr:
        return absent if node.optional(index) is None else op.reshape(node.expr(index), ())

    found = op.vision.all_class_non_max_suppression(
        boxes,
        node.expr(1),
        limit(2, const(0, "int64")),
        limit(3, const(0.0, "float32")),
        limit(4, const(-np.inf, "float32")),
    )
    rows, count = TupleGetItem(found, 0), TupleGetItem(found, 1)
    return op.strided_slice(rows, const(np.array([0])), count, axes=[0])


def _deform_conv(node: Node) -> Expr:
    kernel = as_ints(node.shape(1)[2:])
    if len(kernel) != 2:
        node.unsupported(f"expected a kernel of 2 spatial axes, got {len(kernel)}")
    pads = node.get_ints("pads", (0, 0, 0, 0))
    groups = node.get_int("offset_group", 1)
    strides, dilations = (node.get_ints(n, (1, 1)) for n in ("strides", "dilations"))
    for axis in range(2):
        extent, given = (known(node.shape(n)[2 + axis]) for n in (0, 2))
        if extent is None or given is None or strides[axis] < 1:  # the operator refuses those
            continue
        reach = (kernel[axis] - 1) * dilations[axis] + 1
        windows = (extent + pads[axis] + pads[2 + axis] - reach) // strides[axis] + 1
        if given != windows:
            node.unsupported(
                f"'offset' has {given} positions along spatial axis {axis}, expected {windows}"
            )
    mask = node.optional(4)
    found: Expr = op.nn.deformable_conv2d(
        node.expr(0),
        node.expr(2),
        node.expr(1),
        mask=None if mask is None else node.scope.expr(mask),
        strides=strides,
        padding=pads,
        dilation=dilations,
        deformable_groups=groups,
        groups=node.get_int("group", 1),
        channels=known(node.shape(1)[0]),
        kernel_size=kernel,
        border="zeros",
    )
    return found if node.optional(3) is None else op.nn.bias_add(found, node.expr(3), axis=1)


def _borders(node: Node, rank: int) -> tuple[int, ...]:
    """Return the padding of Col2Im: an image cannot be cut out of a smaller one."""
    pads = tuple(node.get_ints("pads", (0,) * 2 * rank))
    if min(pads, default=0) < 0:
        node.unsupported(f"attribute 'pads' must not be negative, got {min(pads)}")
    return pads


def _col2im(node: Node) -> Expr:
    """Sums of the patches that lie in the columns, each at its place in the padded image."""
    if is_data(node, 1):
        return _col2im_by_data(node)
    image, block = node.axes(1, "image_shape"), node.axes(2, "block_shape")
    rank = len(image)
    strides = node.get_ints("strides", (1,) * rank)
    dilations = node.get_ints("dilations", (1,) * rank)
    pads = _borders(node, rank)
    padded = [d + pads[i] + pads[i + rank] for i, d in enumerate(image)]
    steps = [
        range((p - (b - 1) * d - 1) // s + 1)
        for p, b, d, s in zip(padded, block, dilations, strides, strict=True)
    ]
    count = math.prod(map(len, steps)) * math.prod(block)
    node.believed("the number of elements of all patches", max(count, *padded, *block))
    taps = np.array(list(every(*map(range, block)))) * np.array(dilations)
    starts = np.array(list(every(*steps))) * np.array(strides)
    at = taps[:, None, :] + starts[None, :, :]
    flat = np.ravel_multi_index(tuple(np.moveaxis(at, -1, 0)), padded).reshape(1, -1)
    batch, rows, _ = node.shape(0)
    channels = tidy(rows // len(taps))
    planes = product_of((batch, channels))
    extent = math.prod(map(int, padded))
    zeros = op.full(const(0, node.dtype(0)), (planes, extent), dtype=node.dtype(0))
    updates = op.reshape(node.expr(0), (planes, flat.shape[1]))
    places = op.broadcast_to(const(flat.astype(np.int64)), (planes, flat.shape[1]))
    total = op.scatter_elements(zeros, places, updates, axis=1, reduction="add")
    whole = op.reshape(total, (batch, channels, *padded))
    begin = list(pads[:rank])
    end: list[Dim] = [b + d for b, d in zip(begin, image, strict=True)]
    return op.strided_slice(whole, begin=begin, end=end, axes=list(range(2, 2 + rank)))


def _col2im_by_data(node: Node) -> Expr:
    """The same for an image whose extents come at run time: the places of patches are computed."""
    block = node.axes(2, "block_shape")
    rank = len(block)
    image = [as_dim(d) for d in node.dims(1, "image_shape", rank)]
    strides = node.get_ints("strides", (1,) * rank)
    dilations = node.get_ints("dilations", (1,) * rank)
    pads = _borders(node, rank)
    node.believed("the number of elements of a patch", max(math.prod(block), *block))
    taps = np.array(list(every(*map(range, block)))) * np.array(dilations)
    padded = [tidy(d + pads[i] + pads[i + rank]) for i, d in enumerate(image)]
    spans = [(b - 1) * d + 1 for b, d in zip(block, dilations, strict=True)]
    for extent, span in zip(padded, spans, strict=True):
        node.scope.require(binary(GE, extent, as_dim(span)), " with 'image_shape'")
    steps = [
        tidy((extent - span) // stride + 1)
        for extent, span, stride in zip(padded, spans, strides, strict=True)
    ]
    place: Expr = const(np.zeros((len(taps), *(1,) * rank), np.int64))
    for axis in range(rank):
        starts = op.multiply(
            op.arange(0, steps[axis], 1, dtype="int64"), const(np.int64(strides[axis]))
        )
        shape = [as_dim(1)] * (rank + 1)
        shape[axis + 1] = steps[axis]
        tap = const(taps[:, axis].astype(np.int64).reshape(-1, *(1,) * rank))
        own = op.add(op.reshape(starts, shape), tap)
        place = op.add(op.multiply(place, node.scope.scalar(padded[axis])), own)
    batch, rows, columns = node.shape(0)
    channels = tidy(rows // len(taps))
    planes, count = product_of((batch, channels)), tidy(product_of(steps) * len(taps))
    node.scope.require(binary(EQ, columns, product_of(steps)), " with 'image_shape'")
    extent = product_of(padded)
    zeros = op.full(const(0, node.dtype(0)), (planes, extent), dtype=node.dtype(0))
    updates = op.reshape(node.expr(0), (planes, count))
    places = op.broadcast_to(op.reshape(place, (1, count)), (planes, count))
    total = op.scatter_elements(zeros, places, updates, axis=1, reduction="add")
    whole: Expr = op.reshape(total, (batch, channels, *padded))
    for axis in range(rank):
        at = op.arange(0, image[axis], 1, dtype="int64")
        whole = op.take(whole, op.add(at, const(np.int64(pads[axis]))), axis=axis + 2)
    return whole


_PADDING = {"mode": tuple(_METHODS), "padding_mode": ("zeros", "border", "reflection")}

# fmt: off
ROWS = (
    Row("GridSample", _grid_sample, since=16, attributes="align_corners mode padding_mode",
        values=_PADDING),
    Row("AffineGrid", _affine_grid, since=20, attributes="align_corners"),
    Row("RoiAlign", _roi_align, since=10,
        attributes="coordinate_transformation_mode mode output_height output_width"
                   " sampling_ratio spatial_scale",
        values={"mode": ("avg", "max"),
                "coordinate_transformation_mode": ("half_pixel", "output_half_pixel")}),
    Row("NonMaxSuppression", _non_max_suppression, since=10, attributes="center_point_box"),
    Row("DeformConv", _deform_conv, since=19,
        attributes="dilations group kernel_shape offset_group pads strides"),
    Row("Col2Im", _col2im, since=18, attributes="dilations pads strides"),
)
# fmt: on
