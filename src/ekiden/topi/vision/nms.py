"""Non-maximum suppression: of boxes that overlap, the one with the highest score stays.

Results are padded: the number of boxes that stay is data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.prim import GE, PrimExpr, Select, binary, cast, const, logical_and
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.ranks import rank, rank_dtype
from ekiden.topi.shape import as_dim, expect_least, expect_shape, tidy
from ekiden.topi.sorting import merge_sort, sort_extern

LANES = 16
"""Boxes that are compared with one at a time."""
FIELDS = 5
"""Numbers of a Box."""
Corner = Callable[[PrimExpr, int], PrimExpr]
"""(box, n) -> a coordinate of the box."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box by its sides: where they begin and end on both axes, and its area."""

    low: tuple[PrimExpr, PrimExpr]
    high: tuple[PrimExpr, PrimExpr]
    area: PrimExpr

    @staticmethod
    def of(corner: Corner, box: PrimExpr) -> Box:
        """From corners, which may come in any order."""
        ends = [(corner(box, axis), corner(box, axis + 2)) for axis in (0, 1)]
        low, high = (tuple(f(*pair) for pair in ends) for f in (te.min, te.max))
        return Box(low, high, (high[0] - low[0]) * (high[1] - low[1]))  # type: ignore[arg-type]

    @property
    def fields(self) -> tuple[PrimExpr, ...]:
        """All numbers."""
        return (*self.low, *self.high, self.area)

    @staticmethod
    def made_of(fields: Sequence[PrimExpr]) -> Box:
        """From all numbers."""
        a, b, c, d, area = fields
        return Box((a, b), (c, d), area)

    def overlap(self, other: Box) -> PrimExpr:
        """Intersection over union, 0 where the union is empty."""
        shared: PrimExpr | None = None
        for low_a, high_a, low_b, high_b in zip(
            self.low, self.high, other.low, other.high, strict=True
        ):
            side = te.max(te.min(high_a, high_b) - te.max(low_a, low_b), 0.0)
            shared = side if shared is None else shared * side
        assert shared is not None
        union = self.area + other.area - shared
        positive = union > 0.0
        some = Select(positive, union, shared * 0.0 + 1.0, union.dtype)
        return Select(positive, shared / some, shared * 0.0, union.dtype)


def overlap(corner: Corner, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Intersection over union of two boxes, 0 where the union is empty.

    Corners may come in any order.
    """
    return Box.of(corner, a).overlap(Box.of(corner, b))


def get_valid_counts(
    data: Tensor, score_threshold: float | Tensor = 0, id_index: int = 0, score_index: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """(how many boxes of each batch have a score above the threshold and a class, the boxes with
    those first, where they were).

    data [batch, n, fields]; a class below 0 marks no box (id_index < 0: there are no classes). The
    rest of the rows are -1. Raises ValueError for a negative `score_index`."""
    batch, count, fields = data.shape
    if score_index < 0:
        raise ValueError(f"get_valid_counts: 'score_index' must not be negative, got {score_index}")
    expect_least("get_valid_counts", "data", (fields,), (max(score_index, id_index) + 1,))

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Batches in parallel; in each the boxes that count in their order, the rest -1."""
        ib = IRBuilder()
        source = ib.buffer_ptr(ins[0])
        valid, boxes, places = map(ib.buffer_ptr, outs)
        limit = (
            ib.buffer_ptr(ins[1])[()]
            if isinstance(score_threshold, Tensor)
            else const(score_threshold, data.dtype)
        )
        with ib.for_range(0, batch, "b", kind="parallel") as b:
            found = ib.allocate("int64", 1, "found", "local")
            found[0] = 0
            with ib.for_range(0, count, "n") as n:
                keep = source[b, n, score_index] > limit
                if id_index >= 0:
                    keep = logical_and(keep, binary(GE, source[b, n, id_index], 0.0))
                with ib.if_scope(keep):
                    slot = ib.let("slot", found[0])
                    with ib.for_range(0, fields, "f") as f:
                        boxes[b, slot, f] = source[b, n, f]
                    places[b, slot] = n
                    found[0] = slot + 1
            kept = ib.let("kept", found[0])
            with ib.for_range(kept, count, "rest") as rest:
                with ib.for_range(0, fields, "f") as f:
                    boxes[b, rest, f] = -1
                places[b, rest] = -1
            valid[b] = kept
        return ib.get()

    inputs = [data, *([score_threshold] if isinstance(score_threshold, Tensor) else [])]
    found = te.extern_op(
        [(batch,), data.shape, (batch, count)],
        inputs,
        build,
        ["int32", data.dtype, "int32"],
        name="get_valid_counts",
    )
    return found[0], found[1], found[2]


def _limit(value: int | Tensor, ib: IRBuilder, buffer: Buffer | None, size: PrimExpr) -> PrimExpr:
    """A bound that may be data; below 0 it is `size`."""
    if buffer is not None and isinstance(value, Tensor):
        given = cast(ib.buffer_ptr(buffer)[(as_dim(0),) * value.ndim], "int64")
        return Select(given < 0, size, given, "int64")
    return size if isinstance(value, Tensor) or value < 0 else te.min(size, as_dim(value))


def non_max_suppression(
    data: Tensor,
    valid_count: Tensor,
    indices: Tensor,
    max_output_size: int | Tensor = -1,
    iou_threshold: float | Tensor = 0.5,
    force_suppress: bool = False,
    top_k: int = -1,
    coord_start: int = 2,
    score_index: int = 1,
    id_index: int = 0,
    return_indices: bool = True,
    invalid_to_bottom: bool = False,
) -> list[Tensor] | Tensor:
    """The boxes of each batch that stay, from highest score: [positions, number of them], or
    (return_indices False) the boxes themselves, others -1.

    data [batch, n, fields] as get_valid_counts gives it, with its counts and positions; of the
    first `top_k` by score, a box goes when its overlap with one that stays, of the same class (or
    any: force_suppress), exceeds the threshold. At most `max_output_size` stay (below 0: all). In
    the boxes, those that go leave gaps (invalid_to_bottom: the others move up).
    """
    batch, count, fields = data.shape
    _check_fields(data, coord_start, score_index, id_index)
    expect_shape("non_max_suppression", "valid_count", valid_count.shape, (batch,))
    if return_indices:  # else nothing reads them
        expect_shape("non_max_suppression", "indices", indices.shape, (batch, count))
    scores = te.compute(
        (batch, count), lambda b, n: data[b, n, score_index], name="scores", tag="injective"
    )
    (order,) = sort_extern(
        scores, 1, False, count, [("indices", "int32")], valid_count, "nms_order"
    )
    bounds = [t for t in (max_output_size, iou_threshold) if isinstance(t, Tensor)]

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Batches in parallel; in each what goes leaves -1 behind."""
        ib = IRBuilder()
        source, valid, where, rank = map(ib.buffer_ptr, ins[:4])
        out = ib.buffer_ptr(outs[0])
        given = dict(zip(map(id, bounds), ins[4:], strict=True))
        most = _limit(max_output_size, ib, given.get(id(max_output_size)), count)
        threshold = (
            ib.buffer_ptr(given[id(iou_threshold)])[()]
            if isinstance(iou_threshold, Tensor)
            else const(iou_threshold, data.dtype)
        )
        with ib.for_range(0, batch, "b", kind="parallel") as b:

            def meets(box: PrimExpr, other: PrimExpr) -> PrimExpr:
                """Whether they overlap by too much, and are of one class where that counts."""
                found = overlap(lambda one, n: source[b, one, coord_start + n], box, other)
                if force_suppress or id_index < 0:
                    return found > threshold
                same = source[b, box, id_index].equal(source[b, other, id_index])
                return logical_and(found > threshold, same)

            def keep(n: PrimExpr, slot: PrimExpr, box: PrimExpr) -> None:
                """The box's position, or the box in its slot or where its rank is."""
                if return_indices:
                    out[b, slot] = where[b, box]
                    return
                row = slot if invalid_to_bottom else n
                with ib.for_range(0, fields, "f") as f:
                    out[b, row, f] = source[b, box, f]

            boxes = te.max(te.min(cast(valid[b], "int64"), count), 0)
            boxes = ib.let("boxes", boxes if top_k < 0 else te.min(boxes, as_dim(top_k)))
            with ib.for_range(0, count, "n") as n:
                if return_indices:
                    out[b, n] = -1
                else:
                    with ib.for_range(0, fields, "f") as f:
                        out[b, n, f] = -1
            ranked = lambda n: cast(rank[b, n], "int64")  # noqa: E731
            _, number = keep_greedily(ib, (boxes, count), most, ranked, meets, keep)
            if return_indices:
                ib.buffer_ptr(outs[1])[b, 0] = number[0]
        return ib.get()

    shapes = [(batch, count), (batch, as_dim(1))] if return_indices else [data.shape]
    dtypes = ["int32", "int32"] if return_indices else [data.dtype]
    result = te.extern_op(
        shapes, [data, valid_count, indices, order, *bounds], build, dtypes, name="nms"
    )
    return list(result) if return_indices else result[0]


def _check_fields(data: Tensor, coord_start: int, score_index: int, id_index: int) -> None:
    """Raises ValueError for rows of fewer fields than are asked for."""
    name, fields = "non_max_suppression", data.shape[2]
    for what, index in (("coord_start", coord_start + 3), ("score_index", score_index)):
        expect_least(name, "data", (fields,), (index + 1,))
        if index < 0 or coord_start < 0:
            raise ValueError(f"{name}: {what!r} must not be negative")
    expect_least(name, "data", (fields,), (max(id_index, -1) + 1,))


def keep_greedily(
    ib: IRBuilder,
    sizes: tuple[PrimExpr, PrimExpr],
    most: PrimExpr,
    ranked: Callable[[PrimExpr], PrimExpr],
    meets: Callable[[PrimExpr, PrimExpr], PrimExpr],
    keep: Callable[[PrimExpr, PrimExpr, PrimExpr], None] | None = None,
) -> tuple[BufferVar, BufferVar]:
    """(the boxes that stay, their number) of one row, at most `most`, from the first in rank.

    sizes: how many boxes there are, and for how many there is room; ranked(n): box number n. One
    stays unless it `meets(box, other)` one that stays, which takes time of the product of both
    numbers. keep(n, slot, box) is called for one that does.
    """
    count, room = sizes
    kept = ib.allocate("int64", room, "kept")
    number = ib.allocate("int64", 1, "number", "local")
    number[0] = 0
    with ib.for_range(0, count, "n") as n, ib.if_scope(number[0] < most):
        box = ib.let("box", ranked(n))
        stays = ib.allocate("int32", 1, "stays", "local")
        stays[0] = 1
        already = ib.let("already", number[0])
        with ib.for_range(0, already, "k") as k:
            other = ib.let("other", kept[k])
            with ib.if_scope(meets(box, other)):
                stays[0] = 0
        with ib.if_scope(stays[0].equal(1)):
            slot = ib.let("slot", number[0])
            kept[slot] = box
            number[0] = slot + 1
            if keep is not None:
                keep(n, slot, box)
    return kept, number


def all_class_non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: int | Tensor,
    iou_threshold: float | Tensor,
    score_threshold: float | Tensor,
    output_format: str = "onnx",
) -> list[Tensor]:
    """Per class, the boxes with the highest scores that do not overlap.

    boxes [batch, n, 4], scores [batch, classes, n]. output_format "onnx": [(batch, class, box)
    int64 padded with 0, number of rows (1,) int64]; "tensorflow": [(class, box) [batch, classes *
    n, 2] int64, scores, number [batch] int64], each class behind another, in it the highest score
    first, padded with 0. ONNX NonMaxSuppression. Raises ValueError for another `output_format`."""
    if output_format not in ("onnx", "tensorflow"):
        raise ValueError(
            f"all_class_non_max_suppression: output_format must be onnx or tensorflow, got"
            f" {output_format!r}"
        )
    batch, classes, count = scores.shape
    expect_shape("all_class_non_max_suppression", "boxes", boxes.shape, (batch, count, 4))
    rows = tidy(batch * classes)
    bounds = [
        t
        for t in (max_output_boxes_per_class, iou_threshold, score_threshold)
        if isinstance(t, Tensor)
    ]

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """A row for each batch and class, in parallel, its boxes sorted by score."""
        ib = IRBuilder()
        corners, value = map(ib.buffer_ptr, ins[:2])
        selected, number = map(ib.buffer_ptr, outs)
        given = dict(zip(map(id, bounds), ins[2:], strict=True))
        most = _limit(
            max_output_boxes_per_class, ib, given.get(id(max_output_boxes_per_class)), count
        )

        def threshold(t: float | Tensor) -> PrimExpr:
            """The threshold as a scalar, read where it is data."""
            if not isinstance(t, Tensor):
                return const(t, scores.dtype)
            return cast(ib.buffer_ptr(given[id(t)])[(as_dim(0),) * t.ndim], scores.dtype)

        with ib.for_range(0, rows, "row", kind="parallel") as row:
            b, c = row // classes, row % classes
            ranks = ib.allocate(rank_dtype(scores.dtype), count * 2, "ranks")
            order = ib.allocate("int64", count * 2, "order")
            above = _above(
                ib, lambda n: value[b, c, n], count, threshold(score_threshold), ranks, order
            )
            begin = merge_sort(ib, ranks, order, above, count)
            kept = _select(
                ib,
                (above, count),
                lambda n: order[begin + n],
                lambda box, n: corners[b, box, n],
                lambda slot, box: selected.__setitem__((row, slot), box),
                (most, threshold(iou_threshold)),
            )
            number[row] = kept
        return ib.get()

    chosen = te.extern_op(
        [(rows, count), (rows,)],
        [boxes, scores, *bounds],
        build,
        ["int32", "int32"],
        name="all_class_nms",
    )
    if output_format == "onnx":
        return _as_onnx(chosen[0], chosen[1], classes)
    return _as_tensorflow(chosen[0], chosen[1], scores)


def _above(
    ib: IRBuilder,
    score: Callable[[PrimExpr], PrimExpr],
    count: PrimExpr,
    threshold: PrimExpr,
    ranks: BufferVar,
    order: BufferVar,
) -> PrimExpr:
    """How many scores are above the threshold: their ranks, largest first, and positions come to
    the front.
    """
    found = ib.allocate("int64", 1, "above", "local")
    found[0] = 0
    with ib.for_range(0, count, "n") as n:
        value = ib.let("value", score(n))
        with ib.if_scope(value > threshold):
            slot = ib.let("slot", found[0])
            ranks[slot], order[slot] = rank(value, False), n
            found[0] = slot + 1
    return ib.let("eligible", found[0])


def _select(
    ib: IRBuilder,
    sizes: tuple[PrimExpr, PrimExpr],
    ranked: Callable[[PrimExpr], PrimExpr],
    corner: Corner,
    keep: Callable[[PrimExpr, PrimExpr], None],
    limits: tuple[PrimExpr, PrimExpr],
) -> PrimExpr:
    """How many boxes of one row stay, from the first in rank; sizes: how many there are, and may
    be; limits: (at most, overlap).

    Those that stay lie side by side, so that a box meets LANES of them at a time, until one of
    them takes its place (1,000 boxes, 40 classes, Zen 4: 6.3 ms one by one).
    """
    (count, room), (most, threshold) = sizes, limits
    wide = tidy((room + (LANES - 1)) // LANES * LANES)
    kept = ib.allocate(corner(as_dim(0), 0).dtype, wide * FIELDS, "kept")
    found = ib.allocate("int64", 1, "found", "local")
    hits = ib.allocate("int32", LANES, "hits", "local")
    found[0] = 0
    with ib.for_range(0, count, "n") as n, ib.if_scope(found[0] < most):
        box = ib.let("box", ranked(n))
        mine = Box.made_of([ib.let("mine", f) for f in Box.of(corner, box).fields])
        stays = ib.allocate("int32", 1, "stays", "local")
        first = ib.allocate("int64", 1, "first", "local")
        stays[0], first[0] = 1, 0
        already = ib.let("already", found[0])
        with ib.while_loop(logical_and(first[0] < already, stays[0].equal(1))):
            begin = ib.let("begin", first[0])
            with ib.for_range(0, LANES, "lane", kind="vectorized") as lane:
                place = begin + lane
                other = Box.made_of([kept[f * wide + place] for f in range(FIELDS)])
                meets = logical_and(mine.overlap(other) > threshold, place < already)
                hits[lane] = cast(meets, "int32")
            for lane_number in range(LANES):
                with ib.if_scope(hits[lane_number].equal(1)):
                    stays[0] = 0
            first[0] = begin + LANES
        with ib.if_scope(stays[0].equal(1)):
            for field, value in enumerate(mine.fields):
                kept[field * wide + already] = value
            keep(already, box)
            found[0] = already + 1
    return found[0]


def _as_onnx(chosen: Tensor, number: Tensor, classes: PrimExpr) -> list[Tensor]:
    rows, count = chosen.shape
    size = tidy(rows * count)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """All rows' boxes one behind the other: their places follow from the numbers before."""
        ib = IRBuilder()
        picked, many = map(ib.buffer_ptr, ins)
        out, total = map(ib.buffer_ptr, outs)
        total[0] = 0
        with ib.for_range(0, rows, "row") as row:
            here = ib.let("here", cast(many[row], "int64"))
            with ib.for_range(0, here, "k") as k:
                slot = ib.let("slot", total[0])
                for field, value in enumerate((row // classes, row % classes, picked[row, k])):
                    out[slot, field] = value
                total[0] = slot + 1
        with ib.for_range(total[0], size, "n") as n:
            for field in range(3):
                out[n, field] = 0
        return ib.get()

    shapes = [(size, as_dim(3)), (as_dim(1),)]
    return list(te.extern_op(shapes, [chosen, number], build, ["int64", "int64"], name="nms_rows"))


def _as_tensorflow(chosen: Tensor, number: Tensor, scores: Tensor) -> list[Tensor]:
    batch, classes, count = scores.shape
    size = tidy(classes * count)

    def gather(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """In each batch the classes one behind the other."""
        ib = IRBuilder()
        picked, many, value = map(ib.buffer_ptr, ins)
        pairs, found, total = map(ib.buffer_ptr, outs)
        with ib.for_range(0, batch, "b", kind="parallel") as b:
            with ib.for_range(0, size, "n") as n:
                found[b, n] = const(0, scores.dtype)
                for field in range(2):
                    pairs[b, n, field] = 0
            total[b] = 0
            with ib.for_range(0, classes, "c") as c:
                row = ib.let("row", b * classes + c)
                with ib.for_range(0, cast(many[row], "int64"), "k") as k:
                    slot = ib.let("slot", total[b])
                    box = cast(picked[row, k], "int64")
                    pairs[b, slot, 0] = c
                    pairs[b, slot, 1] = box
                    found[b, slot] = value[b, c, box]
                    total[b] = slot + 1
        return ib.get()

    shapes = [(batch, size, as_dim(2)), (batch, size), (batch,)]
    dtypes = ["int64", scores.dtype, "int64"]
    return list(te.extern_op(shapes, [chosen, number, scores], gather, dtypes, name="nms_pairs"))


__all__ = ["all_class_non_max_suppression", "get_valid_counts", "non_max_suppression"]
