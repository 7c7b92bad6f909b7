"""Non-maximum suppression: of overlapping boxes, the one with the highest score is kept.

Results are padded: the number of boxes that stay is data.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.prim import GE, PrimExpr, Select, cast, const, fold_binary, logical_and
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import as_dim, require_min_extent, require_shape, simplify_dim
from ekiden.topi.sort_keys import order_preserving_key, sort_key_dtype
from ekiden.topi.sorting import emit_merge_sort, sorted_rows

BOXES_PER_COMPARE = 16
"""Boxes compared at once (vector lanes)."""
FIELDS_PER_BOX = 5
"""Number of fields of a CornerBox."""
BoxCorner = Callable[[PrimExpr, int], PrimExpr]
"""Function (box, n) -> coordinate n of the box."""


@dataclass(frozen=True, slots=True)
class CornerBox:
    """Box by its lower and upper coordinates on both axes, and its area."""

    low: tuple[PrimExpr, PrimExpr]
    high: tuple[PrimExpr, PrimExpr]
    area: PrimExpr

    @staticmethod
    def from_corners(corner: BoxCorner, box: PrimExpr) -> CornerBox:
        """Return the box of two opposite corners in any order."""
        ends = [(corner(box, axis), corner(box, axis + 2)) for axis in (0, 1)]
        low, high = (tuple(f(*pair) for pair in ends) for f in (te.min, te.max))
        return CornerBox(low, high, (high[0] - low[0]) * (high[1] - low[1]))  # type: ignore[arg-type]

    @property
    def fields(self) -> tuple[PrimExpr, ...]:
        """Return the coordinates and the area as a flat list."""
        return (*self.low, *self.high, self.area)

    @staticmethod
    def from_fields(fields: Sequence[PrimExpr]) -> CornerBox:
        """Return the box of a flat list of fields."""
        a, b, c, d, area = fields
        return CornerBox((a, b), (c, d), area)

    def iou(self, second: CornerBox) -> PrimExpr:
        """Return the intersection over union, 0 where the union is empty."""
        shared: PrimExpr | None = None
        for low_a, high_a, low_b, high_b in zip(
            self.low, self.high, second.low, second.high, strict=True
        ):
            side = te.max(te.min(high_a, high_b) - te.max(low_a, low_b), 0.0)
            shared = side if shared is None else shared * side
        assert shared is not None
        union = self.area + second.area - shared
        positive = union > 0.0
        # Both sides of a select are evaluated: an empty union divides by 1.
        some = Select(positive, union, shared * 0.0 + 1.0, union.dtype)
        return Select(positive, shared / some, shared * 0.0, union.dtype)


def box_iou(corner: BoxCorner, a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return the intersection over union of two boxes, 0 where the union is empty."""
    return CornerBox.from_corners(corner, a).iou(CornerBox.from_corners(corner, b))


def get_valid_counts(
    data: Tensor, score_threshold: float | Tensor = 0, id_index: int = 0, score_index: int = 1
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the number of boxes per batch above the score threshold and with a class, these boxes
    first, and their original positions. The remaining rows are -1. Raises ValueError for a negative
    `score_index`.
    """
    batch, count, fields = data.shape
    if score_index < 0:
        raise ValueError(f"get_valid_counts: 'score_index' must not be negative, got {score_index}")
    require_min_extent("get_valid_counts", "data", (fields,), (max(score_index, id_index) + 1,))

    def emit_valid_counts(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit batches in parallel: valid boxes in order, the rest -1."""
        ib = IRBuilder()
        source = ib.buffer_ptr(ins[0])
        valid, boxes, positions = map(ib.buffer_ptr, outs)
        limit = (
            ib.buffer_ptr(ins[1])[()]
            if isinstance(score_threshold, Tensor)
            else const(score_threshold, data.dtype)
        )
        # Batches are independent; within one, the order of boxes must be kept, which is serial.
        with ib.for_range(0, batch, "b", kind="parallel") as b:
            count_state = ib.allocate("int64", 1, "found", "local")
            count_state[0] = 0
            with ib.for_range(0, count, "n") as n:
                keep = source[b, n, score_index] > limit
                if id_index >= 0:
                    keep = logical_and(keep, fold_binary(GE, source[b, n, id_index], 0.0))
                with ib.if_scope(keep):
                    slot = ib.let("slot", count_state[0])
                    with ib.for_range(0, fields, "f") as f:
                        boxes[b, slot, f] = source[b, n, f]
                    positions[b, slot] = n
                    count_state[0] = slot + 1
            valid_count = ib.let("kept", count_state[0])
            with ib.for_range(valid_count, count, "rest") as row_index:
                with ib.for_range(0, fields, "f") as f:
                    boxes[b, row_index, f] = -1
                positions[b, row_index] = -1
            valid[b] = valid_count
        return ib.get()

    inputs = [data, *([score_threshold] if isinstance(score_threshold, Tensor) else [])]
    outputs = te.extern_op(
        [(batch,), data.shape, (batch, count)],
        inputs,
        emit_valid_counts,
        ["int32", data.dtype, "int32"],
        name="get_valid_counts",
    )
    return outputs[0], outputs[1], outputs[2]


def _bound_or_size(
    value: int | Tensor, ib: IRBuilder, buffer: Buffer | None, size: PrimExpr
) -> PrimExpr:
    """Return a bound that may be data; `size` for negative ones."""
    if buffer is not None and isinstance(value, Tensor):
        data_limit = cast(ib.buffer_ptr(buffer)[(as_dim(0),) * value.ndim], "int64")
        return Select(data_limit < 0, size, data_limit, "int64")
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
    """Return the boxes of each batch that survive non-maximum suppression, highest score first:
    [positions, count] or (return_indices False) the boxes.

    data [batch, n, fields], counts and positions are as from get_valid_counts. Of the first `top_k`
    by score, a box is suppressed if its overlap with a surviving one of the same class (or any:
    force_suppress) exceeds the threshold. At most `max_output_size` survive (below 0: all). In the
    boxes, suppressed ones leave gaps (invalid_to_bottom: the others move up).
    """
    batch, count, fields = data.shape
    _check_fields(data, coord_start, score_index, id_index)
    require_shape("non_max_suppression", "valid_count", valid_count.shape, (batch,))
    if return_indices:  # else nothing reads them
        require_shape("non_max_suppression", "indices", indices.shape, (batch, count))
    scores = te.compute(
        (batch, count), lambda b, n: data[b, n, score_index], name="scores", tag="injective"
    )
    (order,) = sorted_rows(
        scores, 1, False, count, [("indices", "int32")], valid_count, "nms_order"
    )
    bounds = [t for t in (max_output_size, iou_threshold) if isinstance(t, Tensor)]

    def emit_nms(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit batches in parallel; suppressed boxes become -1."""
        ib = IRBuilder()
        source, valid, where, rank = map(ib.buffer_ptr, ins[:4])
        out = ib.buffer_ptr(outs[0])
        bound_buffers = dict(zip(map(id, bounds), ins[4:], strict=True))
        max_kept = _bound_or_size(
            max_output_size, ib, bound_buffers.get(id(max_output_size)), count
        )
        threshold = (
            ib.buffer_ptr(bound_buffers[id(iou_threshold)])[()]
            if isinstance(iou_threshold, Tensor)
            else const(iou_threshold, data.dtype)
        )
        with ib.for_range(0, batch, "b", kind="parallel") as b:

            def suppresses(box: PrimExpr, kept_box: PrimExpr) -> PrimExpr:
                """Return whether two boxes overlap too much, and are of one class where that
                matters.
                """
                iou = box_iou(lambda one, n: source[b, one, coord_start + n], box, kept_box)
                if force_suppress or id_index < 0:
                    return iou > threshold
                same = source[b, box, id_index].equal(source[b, kept_box, id_index])
                return logical_and(iou > threshold, same)

            def store_selected(n: PrimExpr, slot: PrimExpr, box: PrimExpr) -> None:
                """Store the box's position, or the box in its slot or at its rank."""
                if return_indices:
                    out[b, slot] = where[b, box]
                    return
                row = slot if invalid_to_bottom else n
                with ib.for_range(0, fields, "f") as f:
                    out[b, row, f] = source[b, box, f]

            # The count is data: clamped, so that no box out of range is read.
            boxes = te.max(te.min(cast(valid[b], "int64"), count), 0)
            boxes = ib.let("boxes", boxes if top_k < 0 else te.min(boxes, as_dim(top_k)))
            with ib.for_range(0, count, "n") as n:
                if return_indices:
                    out[b, n] = -1
                else:
                    with ib.for_range(0, fields, "f") as f:
                        out[b, n, f] = -1
            ranked = lambda n: cast(rank[b, n], "int64")  # noqa: E731
            _, number = emit_greedy_nms(
                ib, (boxes, count), max_kept, ranked, suppresses, store_selected
            )
            if return_indices:
                ib.buffer_ptr(outs[1])[b, 0] = number[0]
        return ib.get()

    shapes = [(batch, count), (batch, as_dim(1))] if return_indices else [data.shape]
    dtypes = ["int32", "int32"] if return_indices else [data.dtype]
    result = te.extern_op(
        shapes, [data, valid_count, indices, order, *bounds], emit_nms, dtypes, name="nms"
    )
    return list(result) if return_indices else result[0]


def _check_fields(data: Tensor, coord_start: int, score_index: int, id_index: int) -> None:
    """Raise ValueError for rows with too few fields."""
    name, fields = "non_max_suppression", data.shape[2]
    for what, index in (("coord_start", coord_start + 3), ("score_index", score_index)):
        require_min_extent(name, "data", (fields,), (index + 1,))
        if index < 0 or coord_start < 0:
            raise ValueError(f"{name}: {what!r} must not be negative")
    require_min_extent(name, "data", (fields,), (max(id_index, -1) + 1,))


def emit_greedy_nms(
    ib: IRBuilder,
    sizes: tuple[PrimExpr, PrimExpr],
    max_kept: PrimExpr,
    ranked: Callable[[PrimExpr], PrimExpr],
    meets: Callable[[PrimExpr, PrimExpr], PrimExpr],
    keep: Callable[[PrimExpr, PrimExpr, PrimExpr], None] | None = None,
) -> tuple[BufferVar, BufferVar]:
    """Emit greedy suppression of one row.

    Args:
        ib: the builder.
        sizes: number of boxes, and capacity of the result.
        max_kept: maximum number of kept boxes.
        ranked: ranked(n) is the n-th box.
        meets: meets(box, other) tells whether a kept box suppresses another.
        keep: keep(n, slot, box) is called for a kept box.

    Returns:
        The kept boxes and their number. The time is the product of both numbers of boxes.
    """
    count, room = sizes
    kept_boxes = ib.allocate("int64", room, "kept")
    number = ib.allocate("int64", 1, "number", "local")
    number[0] = 0
    # Boxes come in order of their scores, so a box only has to be compared with those already kept.
    with ib.for_range(0, count, "n") as n, ib.if_scope(number[0] < max_kept):
        box = ib.let("box", ranked(n))
        stays = ib.allocate("int32", 1, "stays", "local")
        stays[0] = 1
        already = ib.let("already", number[0])
        with ib.for_range(0, already, "k") as k:
            kept_box = ib.let("other", kept_boxes[k])
            with ib.if_scope(meets(box, kept_box)):
                stays[0] = 0
        with ib.if_scope(stays[0].equal(1)):
            slot = ib.let("slot", number[0])
            kept_boxes[slot] = box
            number[0] = slot + 1
            if keep is not None:
                keep(n, slot, box)
    return kept_boxes, number


def all_class_non_max_suppression(
    boxes: Tensor,
    scores: Tensor,
    max_output_boxes_per_class: int | Tensor,
    iou_threshold: float | Tensor,
    score_threshold: float | Tensor,
    output_format: str = "onnx",
) -> list[Tensor]:
    """Return, per class, the highest-scoring boxes that do not overlap.

    boxes [batch, n, 4], scores [batch, classes, n]. output_format "onnx": [(batch, class, box)
    int64 padded with 0, number of rows (1,) int64]; "tensorflow": [(class, box) [batch, classes *
    n, 2] int64, scores, number [batch] int64], each class behind another, in it the highest score
    first, padded with 0. ONNX NonMaxSuppression. Raises ValueError for another `output_format`.
    """
    if output_format not in ("onnx", "tensorflow"):
        raise ValueError(
            f"all_class_non_max_suppression: output_format must be onnx or tensorflow, got"
            f" {output_format!r}"
        )
    batch, classes, count = scores.shape
    require_shape("all_class_non_max_suppression", "boxes", boxes.shape, (batch, count, 4))
    rows = simplify_dim(batch * classes)
    bounds = [
        t
        for t in (max_output_boxes_per_class, iou_threshold, score_threshold)
        if isinstance(t, Tensor)
    ]

    def emit_all_class_nms(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a row for each batch and class in parallel, its boxes sorted by score."""
        ib = IRBuilder()
        corners, value = map(ib.buffer_ptr, ins[:2])
        selected, number = map(ib.buffer_ptr, outs)
        bound_buffers = dict(zip(map(id, bounds), ins[2:], strict=True))
        max_kept = _bound_or_size(
            max_output_boxes_per_class, ib, bound_buffers.get(id(max_output_boxes_per_class)), count
        )

        def load_threshold(t: float | Tensor) -> PrimExpr:
            """Return a threshold as a scalar, loaded where it is data."""
            if not isinstance(t, Tensor):
                return const(t, scores.dtype)
            return cast(ib.buffer_ptr(bound_buffers[id(t)])[(as_dim(0),) * t.ndim], scores.dtype)

        with ib.for_range(0, rows, "row", kind="parallel") as row:
            b, c = row // classes, row % classes
            ranks = ib.allocate(sort_key_dtype(scores.dtype), count * 2, "ranks")
            order = ib.allocate("int64", count * 2, "order")
            above = _emit_score_filter(
                ib, lambda n: value[b, c, n], count, load_threshold(score_threshold), ranks, order
            )
            begin = emit_merge_sort(ib, ranks, order, above, count)
            kept_count = _emit_vector_nms(
                ib,
                (above, count),
                lambda n: order[begin + n],
                lambda box, n: corners[b, box, n],
                lambda slot, box: selected.__setitem__((row, slot), box),
                (max_kept, load_threshold(iou_threshold)),
            )
            number[row] = kept_count
        return ib.get()

    chosen = te.extern_op(
        [(rows, count), (rows,)],
        [boxes, scores, *bounds],
        emit_all_class_nms,
        ["int32", "int32"],
        name="all_class_nms",
    )
    if output_format == "onnx":
        return _flatten_to_onnx(chosen[0], chosen[1], classes)
    return _group_by_batch(chosen[0], chosen[1], scores)


def _emit_score_filter(
    ib: IRBuilder,
    score: Callable[[PrimExpr], PrimExpr],
    count: PrimExpr,
    threshold: PrimExpr,
    ranks: BufferVar,
    order: BufferVar,
) -> PrimExpr:
    """Emit the collection of ranks and positions of the scores above the threshold; return their
    number.
    """
    count_state = ib.allocate("int64", 1, "above", "local")
    count_state[0] = 0
    with ib.for_range(0, count, "n") as n:
        value = ib.let("value", score(n))
        with ib.if_scope(value > threshold):
            slot = ib.let("slot", count_state[0])
            ranks[slot], order[slot] = order_preserving_key(value, False), n
            count_state[0] = slot + 1
    return ib.let("eligible", count_state[0])


def _emit_vector_nms(
    ib: IRBuilder,
    sizes: tuple[PrimExpr, PrimExpr],
    ranked: Callable[[PrimExpr], PrimExpr],
    corner: BoxCorner,
    keep: Callable[[PrimExpr, PrimExpr], None],
    limits: tuple[PrimExpr, PrimExpr],
) -> PrimExpr:
    """Emit greedy suppression of one row, a vector of kept boxes at a time; return how many boxes
    survive, in rank order. sizes: number and capacity; limits: maximum and overlap. Survivors
    are stored contiguously, so that a box is compared with BOXES_PER_COMPARE at a time until one
    suppresses it (1,000 boxes, 40 classes, Zen 4: 6.3 ms one by one).
    """
    (count, room), (max_kept, threshold) = sizes, limits
    wide = simplify_dim((room + (BOXES_PER_COMPARE - 1)) // BOXES_PER_COMPARE * BOXES_PER_COMPARE)
    # Structure of arrays, rounded up to whole vectors: a compare loads each field of
    # BOXES_PER_COMPARE boxes contiguously.
    kept_fields = ib.allocate(corner(as_dim(0), 0).dtype, wide * FIELDS_PER_BOX, "kept")
    kept_count = ib.allocate("int64", 1, "found", "local")
    hits = ib.allocate("int32", BOXES_PER_COMPARE, "hits", "local")
    kept_count[0] = 0
    with ib.for_range(0, count, "n") as n, ib.if_scope(kept_count[0] < max_kept):
        box = ib.let("box", ranked(n))
        corner_box = CornerBox.from_fields(
            [ib.let("mine", f) for f in CornerBox.from_corners(corner, box).fields]
        )
        stays = ib.allocate("int32", 1, "stays", "local")
        first = ib.allocate("int64", 1, "first", "local")
        stays[0], first[0] = 1, 0
        already = ib.let("already", kept_count[0])
        with ib.while_loop(logical_and(first[0] < already, stays[0].equal(1))):
            begin = ib.let("begin", first[0])
            with ib.for_range(0, BOXES_PER_COMPARE, "lane", kind="vectorized") as lane:
                kept_index = begin + lane
                kept_box = CornerBox.from_fields(
                    [kept_fields[f * wide + kept_index] for f in range(FIELDS_PER_BOX)]
                )
                # Lanes behind the kept boxes hold uninitialised memory; the second condition masks
                # them.
                meets = logical_and(corner_box.iou(kept_box) > threshold, kept_index < already)
                hits[lane] = cast(meets, "int32")
            for lane_number in range(BOXES_PER_COMPARE):
                with ib.if_scope(hits[lane_number].equal(1)):
                    stays[0] = 0
            first[0] = begin + BOXES_PER_COMPARE
        with ib.if_scope(stays[0].equal(1)):
            for field, value in enumerate(corner_box.fields):
                kept_fields[field * wide + already] = value
            keep(already, box)
            kept_count[0] = already + 1
    return kept_count[0]


def _flatten_to_onnx(chosen: Tensor, number: Tensor, classes: PrimExpr) -> list[Tensor]:
    """Return the kept boxes as ONNX's rows (batch, class, box)."""
    rows, count = chosen.shape
    size = simplify_dim(rows * count)

    def emit_onnx_rows(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the store of all rows' boxes consecutively: offsets follow from the counts
        before.
        """
        ib = IRBuilder()
        picked, counts = map(ib.buffer_ptr, ins)
        out, total = map(ib.buffer_ptr, outs)
        total[0] = 0
        with ib.for_range(0, rows, "row") as row:
            row_count = ib.let("here", cast(counts[row], "int64"))
            with ib.for_range(0, row_count, "k") as k:
                slot = ib.let("slot", total[0])
                for field, value in enumerate((row // classes, row % classes, picked[row, k])):
                    out[slot, field] = value
                total[0] = slot + 1
        with ib.for_range(total[0], size, "n") as n:
            for field in range(3):
                out[n, field] = 0
        return ib.get()

    shapes = [(size, as_dim(3)), (as_dim(1),)]
    return list(
        te.extern_op(shapes, [chosen, number], emit_onnx_rows, ["int64", "int64"], name="nms_rows")
    )


def _group_by_batch(chosen: Tensor, number: Tensor, scores: Tensor) -> list[Tensor]:
    """Return the kept boxes of each batch consecutively, as TensorFlow does."""
    batch, classes, count = scores.shape
    size = simplify_dim(classes * count)

    def emit_batch_rows(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the store of the classes of each batch consecutively."""
        ib = IRBuilder()
        picked, counts, value = map(ib.buffer_ptr, ins)
        pairs, scores_out, total = map(ib.buffer_ptr, outs)
        with ib.for_range(0, batch, "b", kind="parallel") as b:
            with ib.for_range(0, size, "n") as n:
                scores_out[b, n] = const(0, scores.dtype)
                for field in range(2):
                    pairs[b, n, field] = 0
            total[b] = 0
            with ib.for_range(0, classes, "c") as c:
                row = ib.let("row", b * classes + c)
                with ib.for_range(0, cast(counts[row], "int64"), "k") as k:
                    slot = ib.let("slot", total[b])
                    box = cast(picked[row, k], "int64")
                    pairs[b, slot, 0] = c
                    pairs[b, slot, 1] = box
                    scores_out[b, slot] = value[b, c, box]
                    total[b] = slot + 1
        return ib.get()

    shapes = [(batch, size, as_dim(2)), (batch, size), (batch,)]
    dtypes = ["int64", scores.dtype, "int64"]
    return list(
        te.extern_op(shapes, [chosen, number, scores], emit_batch_rows, dtypes, name="nms_pairs")
    )


__all__ = ["all_class_non_max_suppression", "get_valid_counts", "non_max_suppression"]
