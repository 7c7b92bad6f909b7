"""Operators that move, choose or repeat elements, and shapes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.frontend.common.arithmetic import lift
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.value import Value, known
from ekiden.frontend.tflite.load import DTYPES
from ekiden.frontend.tflite.node import Node, Quantized, Row
from ekiden.ir.op import Array
from ekiden.relay import op
from ekiden.relay.expr import Expr, const
from ekiden.topi.shape import Dim
from ekiden.topi.shape import known as number

MOVED = Quantized.MOVED


def _reshape(node: Node) -> Result:
    if node.optional(1) is not None:
        shape: Sequence[Dim] = node.dims(1, "shape")
    else:
        options = node.operation.options
        shape = () if options is None else tuple(int(i) for i in options.NewShapeAsNumpy())
    value = node.value(0)
    if value.is_known and all(isinstance(d, int) for d in shape):
        return known(value.elements.reshape(tuple(map(int, shape))), node.dtype(0))  # type: ignore[arg-type]
    return op.reshape(node.expr(0), shape)


def _transpose(node: Node) -> Expr:
    return op.transpose(node.expr(0), node.axes(1, "permutation"))


def _concatenation(node: Node) -> Result:
    axis = node.axis(node.option("Axis"), node.rank(0))
    values = [node.value(i) for i in range(len(node.inputs))]
    if all(v.is_known for v in values):
        return known(np.concatenate(_lifted(values), axis), node.dtype(0))
    return node.activated(op.concatenate(node.exprs(), axis=axis))


def _pack(node: Node) -> Result:
    axis = node.axis(node.option("Axis"), node.rank(0) + 1)
    values = [node.value(i) for i in range(len(node.inputs))]
    if all(v.is_known for v in values):
        return known(np.stack(_lifted(values), axis), node.dtype(0))
    return op.stack(node.exprs(), axis=axis)


def _lifted(values: Sequence[Value]) -> list[Array]:
    """Known values as numbers, or all as expressions where one of them is."""
    if all(v.array is not None for v in values):
        return [v.elements for v in values]
    return [lift(v.elements) for v in values]


def _unpack(node: Node) -> Result:
    axis = node.axis(node.option("Axis"), node.rank(0))
    count = number(node.shape(0)[axis])
    if count is None or count != len(node.outs):
        node.unsupported(f"axis {axis} of {node.ins[0]} must be {len(node.outs)} long")
    index = [const(np.int32(i)) for i in range(count)]
    return [op.take(node.expr(0), i, axis=axis) for i in index]


def _split(node: Node) -> Result:
    """(axis, data) into equal parts."""
    (axis,) = node.axes(0, "axis")
    return op.split(node.expr(1), len(node.outs), axis=node.axis(axis, node.rank(1)))


def _split_v(node: Node) -> Result:
    """(data, sizes, axis); one size may be -1, the rest."""
    (axis,) = node.axes(2, "axis")
    axis = node.axis(axis, node.rank(0))
    sizes = list(node.axes(1, "sizes"))
    if -1 in sizes:
        extent = number(node.shape(0)[axis])
        if extent is None:
            node.unsupported(f"axis {axis} of {node.ins[0]} must be known for a size of -1")
        sizes[sizes.index(-1)] = extent - sum(s for s in sizes if s >= 0)
    places = [int(p) for p in np.cumsum(sizes)[:-1]]
    return op.split(node.expr(0), places, axis=axis) if places else [node.expr(0)]


def _slice(node: Node) -> Expr:
    """(data, begin, size), where a size of -1 is up to the end."""
    begin, size = node.axes(1, "begin"), node.axes(2, "size")
    shape = node.shape(0)
    end = [shape[i] if s == -1 else b + s for i, (b, s) in enumerate(zip(begin, size, strict=True))]
    return op.strided_slice(node.expr(0), begin, end)


class _Range:
    """What the masks of STRIDED_SLICE say of each axis of the data: Python's subscript."""

    def __init__(self, node: Node) -> None:
        self.node = node
        begin, end, step = (node.axes(i, n) for i, n in ((1, "begin"), (2, "end"), (3, "strides")))
        masks = {n: int(node.option(f"{n}Mask")) for n in _MASKS}
        self.items: list[slice | int | None] = []
        given = sum(not masks["NewAxis"] >> i & 1 for i in range(len(begin)))
        has_rest = bool(masks["Ellipsis"] & ((1 << len(begin)) - 1))
        for i, (b, e, s) in enumerate(zip(begin, end, step, strict=True)):
            if masks["Ellipsis"] >> i & 1:
                self.items += [slice(None)] * (node.rank(0) - given + 1)
            elif masks["NewAxis"] >> i & 1:
                self.items.append(None)
            elif masks["ShrinkAxis"] >> i & 1:
                self.items.append(b)
            else:
                first = None if masks["Begin"] >> i & 1 else b
                self.items.append(slice(first, None if masks["End"] >> i & 1 else e, s))
        if not has_rest:
            self.items += [slice(None)] * (node.rank(0) - given)

    def of_known(self, value: Value) -> Value:
        """The subscript of known elements."""
        return known(np.asarray(value.elements[tuple(self.items)]), value.type.dtype)

    def expr(self) -> Expr:
        """The subscript as operators: the slice, then axes that go, then those that come."""
        node, begin, end, steps = self.node, [], [], []
        places = [i for i in self.items if i is not None]
        for axis, item in enumerate(places):
            first, last, step = self._along(axis, item)
            begin.append(first)
            end.append(last)
            steps.append(step)
        made: Expr = op.strided_slice(node.expr(0), begin, end, steps)
        gone = [axis for axis, item in enumerate(places) if isinstance(item, int)]
        made = op.squeeze(made, axis=gone) if gone else made
        kept = [item for item in self.items if not isinstance(item, int)]
        for at in (i for i, item in enumerate(kept) if item is None):
            made = op.expand_dims(made, axis=at)
        return made

    def _along(self, axis: int, item: slice | int) -> tuple[int, Dim, int]:
        dim = self.node.shape(0)[axis]
        extent = number(dim)
        if isinstance(item, int):
            return item, dim if item == -1 else item + 1, 1
        step = item.step or 1
        if extent is not None:
            first, last, _ = item.indices(extent)
            return first, last if step > 0 or last >= 0 else -extent - 1, step
        if step < 0:
            self.node.unsupported(
                f"axis {axis} of {self.node.ins[0]} must be known to go backwards"
            )
        return item.start or 0, dim if item.stop is None else item.stop, step


_MASKS = ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")


def _strided_slice(node: Node) -> Result:
    places = _Range(node)
    value = node.value(0)
    return places.of_known(value) if value.is_known else places.expr()


def _gather(node: Node) -> Expr:
    axis, batch = node.axis(node.option("Axis"), node.rank(0)), int(node.option("BatchDims"))
    batch = batch + node.rank(1) if batch < 0 else batch
    return op.take(node.expr(0), node.expr(1), axis=axis, batch_dims=batch)


def _gather_nd(node: Node) -> Expr:
    """Relay has the coordinates along the first axis, TensorFlow along the last."""
    rank = node.rank(1)
    return op.gather_nd(node.expr(0), op.transpose(node.expr(1), (rank - 1, *range(rank - 1))))


def _pairs(node: Node, index: int) -> list[list[int]]:
    found: list[list[int]] = node.numbers(index, "paddings").astype(np.int64).tolist()
    return found


def _pad(node: Node) -> Expr:
    """With a number, else with what stands for zero."""
    if node.optional(2) is not None:
        return op.nn.pad(node.expr(0), _pairs(node, 1), node.expr(2))
    steps = node.outs[0].quantization
    return op.nn.pad(node.expr(0), _pairs(node, 1), float(steps.zero_point[0]) if steps else 0.0)


def _mirror_pad(node: Node) -> Expr:
    mode = ("REFLECT", "SYMMETRIC")[node.option("Mode")]
    return op.nn.mirror_pad(node.expr(0), _pairs(node, 1), mode)


def _squeeze(node: Node) -> Expr:
    options = node.operation.options
    has = options is not None and options.SqueezeDimsLength()
    axes = [int(a) for a in options.SqueezeDimsAsNumpy()] if has else []
    axes = axes or [i for i, d in enumerate(node.shape(0)) if number(d) == 1]
    return op.squeeze(node.expr(0), axis=axes) if axes else node.expr(0)


def _expand_dims(node: Node) -> Expr:
    (axis,) = node.axes(1, "axis")
    return op.expand_dims(node.expr(0), axis=node.axis(axis, node.rank(0) + 1))


def _tile(node: Node) -> Expr:
    return op.tile(node.expr(0), node.dims(1, "multiples"))


def _broadcast_to(node: Node) -> Expr:
    return op.broadcast_to(node.expr(0), node.dims(1, "shape"))


def _fill(node: Node) -> Expr:
    return op.full(node.expr(1), node.dims(0, "shape"), node.dtype(1))


def _shape(node: Node) -> Value:
    return known(np.array(node.shape(0), object), DTYPES[node.option("OutType", 2)])


def _rank(node: Node) -> Value:
    return known(np.array(node.rank(0)), "int32")


def _reverse(node: Node) -> Expr:
    made = node.expr(0)
    for axis in node.axes(1):
        made = op.reverse(made, axis=node.axis(axis, node.rank(0)))
    return made


def _topk(node: Node) -> Expr:
    (count,) = node.axes(1, "k")
    return op.topk(node.expr(0), count, axis=-1, ret_type="both", dtype="int32")


def _space_to_depth(node: Node) -> Expr:
    return op.nn.space_to_depth(node.expr(0), int(node.option("BlockSize")), "NHWC")


def _depth_to_space(node: Node) -> Expr:
    return op.nn.depth_to_space(node.expr(0), int(node.option("BlockSize")), "NHWC")


def _space_to_batch(node: Node) -> Expr:
    return op.nn.space_to_batch_nd(node.expr(0), node.axes(1, "block"), _pairs(node, 2))


def _batch_to_space(node: Node) -> Expr:
    return op.nn.batch_to_space_nd(node.expr(0), node.axes(1, "block"), _pairs(node, 2))


def _places(node: Node) -> str:
    if node.option("AlignCorners"):
        return "align_corners"
    return "half_pixel" if node.option("HalfPixelCenters") else "asymmetric"


def _resize_bilinear(node: Node) -> Expr:
    return op.image.resize2d(
        node.expr(0), node.axes(1, "size"), layout="NHWC", method="linear",
        coordinate_transformation_mode=_places(node),
    )  # fmt: skip


def _resize_nearest(node: Node) -> Expr:
    places = _places(node)
    rounding = "floor" if places == "asymmetric" else "round_prefer_ceil"
    return op.image.resize2d(
        node.expr(0), node.axes(1, "size"), layout="NHWC", method="nearest_neighbor",
        coordinate_transformation_mode=places, rounding_method=rounding,
    )  # fmt: skip


# fmt: off
ROWS = (
    Row("RESHAPE",                 _reshape,        MOVED),
    Row("TRANSPOSE",               _transpose,      MOVED),
    Row("CONCATENATION",           _concatenation,  MOVED, data=()),
    Row("PACK",                    _pack,           MOVED, data=()),
    Row("UNPACK",                  _unpack,         MOVED),
    Row("SPLIT",                   _split,          MOVED, data=(1,)),
    Row("SPLIT_V",                 _split_v,        MOVED),
    Row("SLICE",                   _slice,          MOVED),
    Row("STRIDED_SLICE",           _strided_slice,  MOVED),
    Row("GATHER",                  _gather,         MOVED),
    Row("GATHER_ND",               _gather_nd,      MOVED),
    Row("PAD",                     _pad,            MOVED),
    Row("PADV2",                   _pad,            MOVED, data=(0, 2)),
    Row("MIRROR_PAD",              _mirror_pad,     MOVED),
    Row("SQUEEZE",                 _squeeze,        MOVED),
    Row("EXPAND_DIMS",             _expand_dims,    MOVED),
    Row("TILE",                    _tile,           MOVED),
    Row("BROADCAST_TO",            _broadcast_to,   MOVED),
    Row("FILL",                    _fill,           MOVED, data=(1,)),
    Row("SHAPE",                   _shape,          Quantized.OWN),
    Row("RANK",                    _rank,           Quantized.OWN),
    Row("REVERSE_V2",              _reverse,        MOVED),
    Row("TOPK_V2",                 _topk),
    Row("SPACE_TO_DEPTH",          _space_to_depth, MOVED),
    Row("DEPTH_TO_SPACE",          _depth_to_space, MOVED),
    Row("SPACE_TO_BATCH_ND",       _space_to_batch),
    Row("BATCH_TO_SPACE_ND",       _batch_to_space, MOVED),
    Row("RESIZE_BILINEAR",         _resize_bilinear),
    Row("RESIZE_NEAREST_NEIGHBOR", _resize_nearest, MOVED),
)
# fmt: on
