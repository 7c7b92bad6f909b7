"""Sorting operators, and operators on sorted rows.

Rows run in parallel; each is sorted by merging, stable, with not-a-number as the largest value.

Merging, from the bottom up, takes n log n comparisons whatever the data, twice the row as memory,
and no recursion; comparisons that cannot be predicted cost less than in quicksort, as each merge
writes in order. topk of a small k puts the first k in order and then passes over the rest. Equal
elements keep their order, so that indices are the same on every processor and for any number of
threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import IntImm, Not, Or, PrimExpr, Select, cast, const, fold_binary, logical_and
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import (
    Dim,
    as_dim,
    assume_condition,
    known_int,
    normalize_axis,
    product_of_dims,
    replace_dim,
    require_shape,
)
from ekiden.topi.elementwise import as_bool
from ekiden.topi.sort_keys import (
    RowSelection,
    order_preserving_key,
    position_dtype,
    prefers_selection,
    sort_key_dtype,
)
from ekiden.topi.transform import unravel

MAX_MERGE_PASSES = 48
"""Number of merge passes that sorts any row."""


def precedes(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Return whether a precedes b strictly in increasing order, numbers before NaN."""
    if a.dtype == "bool":
        a, b = cast(a, "int32"), cast(b, "int32")
    if not dt.is_float(a.dtype):
        return a < b
    nan_a, nan_b = call_intrin("isnan", a), call_intrin("isnan", b)
    return fold_binary(Or, a < b, logical_and(nan_b, Not(nan_a)))


def emit_merge_sort(
    ib: IRBuilder, ranks: BufferVar, order: BufferVar, size: PrimExpr, half: PrimExpr
) -> PrimExpr:
    """Emit the merge sort of ranks[:size] with their positions order[:size]; both buffers have two
    halves of `half`.

    Gives where the sorted half begins: 0 or `half` by the parity of the number of passes.
    """
    begins = ib.allocate("int64", 1, "begins", "register")  # where the sorted half begins
    begins[0] = 0
    # A constant number of passes, guarded: the extent may be symbolic, and 2**48 elements exceed
    # any memory.
    with ib.for_range(0, MAX_MERGE_PASSES, "pass") as step:
        width = ib.let("width", call_intrin("left_shift", const(1, "int64"), step))
        with ib.if_scope(width < size):
            source = ib.let("source", begins[0])
            # The halves alternate as source and target, so nothing is copied back.
            target = ib.let("target", half - source)
            with ib.for_range(0, (size + width * 2 - 1) // (width * 2), "run") as run:
                low = ib.let("low", run * width * 2)
                middle = ib.let("middle", te.min(low + width, size))
                high = ib.let("high", te.min(middle + width, size))
                _emit_merge(ib, (ranks, order), source, target, (low, middle, high))
            begins[0] = target
    return ib.let("sorted", begins[0])


def _emit_merge(
    ib: IRBuilder,
    buffers: tuple[BufferVar, BufferVar],
    source: PrimExpr,
    target: PrimExpr,
    bounds: tuple[PrimExpr, PrimExpr, PrimExpr],
) -> None:
    """Emit the merge of two sorted runs into one, without branches: the comparison is
    unpredictable.
    """
    ranks, order = buffers
    low, middle, high = bounds
    state = ib.allocate("int64", 2, "state", "register")  # the next of the left, of the right run
    state[0], state[1] = low, middle
    with ib.for_range(low, high, "at") as position:
        left_next, right_next = ib.let("left", state[0]), ib.let("right", state[1])
        # Both loads happen in every step; the clamp keeps the load of an exhausted run in range.
        a = ib.let("a", ranks[source + te.min(left_next, middle - 1)])
        b = ib.let("b", ranks[source + te.min(right_next, high - 1)])
        # Strictly less: of equal ranks the left one is taken, which makes the sort stable.
        behind = fold_binary(Or, left_next >= middle, b < a)
        second = ib.let("second", logical_and(right_next < high, behind))
        ranks[target + position] = Select(second, b, a, ranks.dtype)
        order[target + position] = order[source + Select(second, right_next, left_next, "int64")]
        from_right = ib.let("taken", cast(second, "int64"))
        state[0] = left_next + 1 - from_right
        state[1] = right_next + from_right


def sorted_rows(
    data: Tensor,
    axis: int,
    ascending: bool,
    extent: PrimExpr,
    outputs: Sequence[tuple[str, str]],
    valid_count: Tensor | None = None,
    name: str = "sort",
) -> tuple[Tensor, ...]:
    """Return the first `extent` sorted elements of each row. `outputs` lists (what, dtype) with
    "values" or "indices". Rows with a valid count sort only that many elements; the rest keep
    their positions.
    """
    size = data.shape[axis]
    row_shape = replace_dim(data.shape, axis, as_dim(1))
    are_few = prefers_selection(extent, size) if valid_count is None else const(False)

    def emit_sort(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit rows in parallel, each by selection if few elements are requested, else by merge
        sort.
        """
        ib = IRBuilder()
        source = ib.buffer_ptr(ins[0])
        with ib.for_range(0, product_of_dims(row_shape), "row", kind="parallel") as row:
            row_index = unravel(row, row_shape)

            def rank_at(at: PrimExpr) -> PrimExpr:
                """Return an integer sort key with the order of the element at `at` of this row."""
                return order_preserving_key(source[replace_dim(row_index, axis, at)], ascending)

            def store_sorted(position: PositionMap) -> None:
                """Store the first `extent` elements, the k-th at `position(k)`, to the outputs."""
                with ib.for_range(0, extent, "k") as k:
                    offset = ib.let("at", cast(position(k), "int64"))
                    inside = replace_dim(row_index, axis, k)
                    for (what, _), out in zip(outputs, outs, strict=True):
                        value = (
                            source[replace_dim(row_index, axis, offset)]
                            if what == "values"
                            else offset
                        )
                        ib.buffer_ptr(out)[inside] = value

            def select_first() -> None:
                """Select the first positions by rank instead of sorting all."""
                store_sorted(
                    _emit_selected_positions(ib, rank_at, extent, size, sort_key_dtype(data.dtype))
                )

            def sort_all() -> None:
                """Merge-sort the elements that count."""
                count = size
                if valid_count is not None:
                    valid = cast(ib.buffer_ptr(ins[1])[row_index[: valid_count.ndim]], "int64")
                    count = ib.let("count", te.max(te.min(valid, size), 0))
                store_sorted(_emit_sorted_positions(ib, rank_at, count, size))

            _emit_branch(ib, are_few, select_first, sort_all)
        return ib.get()

    inputs = [data] if valid_count is None else [data, valid_count]
    shape = replace_dim(data.shape, axis, extent)
    return te.extern_op(
        [shape] * len(outputs), inputs, emit_sort, [d for _, d in outputs], name=name
    )


def _emit_branch(
    ib: IRBuilder, condition: PrimExpr, then_body: Callable[[], None], else_body: Callable[[], None]
) -> None:
    if isinstance(condition, IntImm):
        (then_body if condition.value else else_body)()
        return
    with ib.if_scope(condition):
        then_body()
    with ib.else_scope():
        else_body()


PositionMap = Callable[[PrimExpr], PrimExpr]


def _emit_sorted_positions(
    ib: IRBuilder, ranked: PositionMap, count: PrimExpr, size: PrimExpr
) -> PositionMap:
    """Emit the sort of `count` of the `size` elements of a row; return the map from k to the
    position of the k-th.
    """
    first = ranked(const(0))
    ranks = ib.allocate(first.dtype, size * 2, "ranks")
    order = ib.allocate(position_dtype(size), size * 2, "order")
    with ib.for_range(0, size, "i") as i:
        ranks[i] = ranked(i)
        order[i] = i
    begin = emit_merge_sort(ib, ranks, order, count, size)
    # Positions from `count` on were never moved: they are still in the first half.
    return lambda k: order[k + Select(k < count, begin, const(0), "int64")]


def _emit_selected_positions(
    ib: IRBuilder, ranked: PositionMap, count: PrimExpr, size: PrimExpr, dtype: str
) -> PositionMap:
    """Emit the selection of the `count` first elements of a row; return the map from k to the
    position of the k-th.
    """
    index = position_dtype(size)
    selection = RowSelection(ib, count, dtype, index)
    ranks = ib.allocate(dtype, count * 2, "ranks")
    order = ib.allocate(index, count * 2, "order")
    with ib.for_range(0, count, "i") as i:
        ranks[i] = ranked(i)
        order[i] = i
    selection.emit_initial_selection(
        ranks, order, emit_merge_sort(ib, ranks, order, count, count), count
    )
    selection.emit_scan(count, size, ranked)
    return selection.position


def sort(data: Tensor, axis: int = -1, is_ascend: bool | int = 1) -> Tensor:
    """Return the elements in order along an axis."""
    axis_index = normalize_axis(axis, data.ndim, "sort")
    return sorted_rows(
        data, axis_index, bool(is_ascend), data.shape[axis_index], [("values", data.dtype)]
    )[0]


def argsort(
    data: Tensor,
    valid_count: Tensor | None = None,
    axis: int = -1,
    is_ascend: bool | int = 1,
    dtype: str = "float32",
) -> Tensor:
    """Return the positions of the elements in order along an axis (stable). `valid_count` (the
    shape without the axis, or its leading part) says how many elements of each row are sorted;
    the positions of the others follow unchanged.
    """
    axis_index = normalize_axis(axis, data.ndim, "argsort")
    outputs = [("indices", dtype)]
    return sorted_rows(
        data, axis_index, bool(is_ascend), data.shape[axis_index], outputs, valid_count, "argsort"
    )[0]


def topk(
    data: Tensor,
    k: Dim = 1,
    axis: int = -1,
    ret_type: str = "both",
    is_ascend: bool = False,
    dtype: str = "int64",
) -> Tensor | list[Tensor]:
    """Return the k largest (or smallest) elements along an axis, in order; all of them for k < 1.
    ret_type: "values", "indices" or "both" (a list). Ties are in order of position. Raises
    ValueError for another `ret_type`, and for a k above the extent of the axis.
    """
    what = {"values": ("values",), "indices": ("indices",), "both": ("values", "indices")}
    if ret_type not in what:
        raise ValueError(f"topk: ret_type must be one of {', '.join(what)}, got {ret_type!r}")
    axis_index = normalize_axis(axis, data.ndim, "topk")
    number, size = known_int(k), data.shape[axis_index]
    extent = size if number is not None and number < 1 else as_dim(k)
    longest = known_int(size)
    if number is not None and longest is not None and number > longest:
        raise ValueError(f"topk: k must be at most the extent of the axis, {longest}, got {number}")
    if number is None or longest is None:
        # With unknown sizes the condition is recorded instead: a larger k would read behind the
        # row.
        assume_condition(lambda: extent <= size, (extent, size))
    outputs = [(w, data.dtype if w == "values" else dtype) for w in what[ret_type]]
    results = sorted_rows(data, axis_index, is_ascend, extent, outputs, name="topk")
    return list(results) if ret_type == "both" else results[0]


def searchsorted(
    sorted_sequence: Tensor, values: Tensor, right: bool = False, out_dtype: str = "int64"
) -> Tensor:
    """Return where values would be inserted to keep rows sorted, before equal elements or (`right`)
    after. The sequence is one vector for all values, or has a row for each of theirs. Raises
    ValueError for a sequence of another rank.
    """
    shared = sorted_sequence.ndim == 1
    if not shared and sorted_sequence.ndim != values.ndim:
        raise ValueError(
            f"searchsorted: expected a vector or {values.ndim} axes, got {sorted_sequence.ndim}"
        )
    if not shared:
        rows_of = (*values.shape[:-1], None)
        require_shape("searchsorted", "sorted_sequence", sorted_sequence.shape, rows_of)
    size = sorted_sequence.shape[-1]

    def emit_binary_search(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a binary search for each value; MAX_MERGE_PASSES steps are enough for any extent."""
        ib = IRBuilder()
        rows, value_buffer, out = (
            ib.buffer_ptr(ins[0]),
            ib.buffer_ptr(ins[1]),
            ib.buffer_ptr(outs[0]),
        )
        with ib.for_range(0, product_of_dims(values.shape), "n", kind="parallel") as n:
            value_index = unravel(n, values.shape)
            prefix = () if shared else tuple(value_index[:-1])
            bounds = ib.allocate("int64", 2, "bounds", "local")
            bounds[0], bounds[1] = const(0), size
            value = ib.let("value", value_buffer[value_index])
            with ib.for_range(0, MAX_MERGE_PASSES, "step"), ib.if_scope(bounds[0] < bounds[1]):
                middle = ib.let("middle", (bounds[0] + bounds[1]) // 2)
                element = rows[(*prefix, middle)]
                after = Not(precedes(value, element)) if right else precedes(element, value)
                with ib.if_scope(after):
                    bounds[0] = middle + 1
                with ib.else_scope():
                    bounds[1] = middle
            out[value_index] = bounds[0]
        return ib.get()

    return te.extern_op(
        [values.shape],
        [sorted_sequence, values],
        emit_binary_search,
        [out_dtype],
        name="searchsorted",
    )[0]


def unique(data: Tensor, is_sorted: bool = True, return_counts: bool = False) -> list[Tensor]:
    """Return the distinct elements of a vector: [unique, indices, inverse_indices, num_unique,
    counts] (ONNX Unique). The arrays are zero-padded to the length of `data`; num_unique has one
    element. indices: first occurrences. inverse_indices: the group of each element. Groups are
    sorted, or in order of occurrence. counts are optional. All integers are int32.
    """
    (size,) = data.shape
    (order,) = sorted_rows(data, 0, True, size, [("indices", "int32")], name="unique_order")

    def emit_unique(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the grouping of equal elements by their sorted positions, numbered in the requested
        order.
        """
        ib = IRBuilder()
        values, sorted_at = ib.buffer_ptr(ins[0]), ib.buffer_ptr(ins[1])
        unique_out, first, inverse, number = (ib.buffer_ptr(b) for b in outs[:4])
        counts = ib.buffer_ptr(outs[4]) if return_counts else None
        with ib.for_range(0, size, "i") as i:
            unique_out[i] = 0
            first[i] = 0
            # Below 0: this leader's group has no number yet.
            inverse[i] = -1
            if counts is not None:
                counts[i] = 0
        number[0] = 0
        group = ib.allocate("int32", size, "group")  # the first position with an element's value
        _emit_group_leaders(ib, values, sorted_at, group, size)
        with ib.for_range(0, size, "i") as i:
            position = sorted_at[i] if is_sorted else cast(i, "int32")
            leader = ib.let("leader", cast(group[position], "int64"))
            with ib.if_scope(inverse[leader] < 0):
                slot = ib.let("slot", cast(number[0], "int64"))
                unique_out[slot] = values[leader]
                first[slot] = leader
                inverse[leader] = slot
                number[0] = slot + 1
            inverse[position] = inverse[leader]
            if counts is not None:
                ib.increase(counts, inverse[leader])
        return ib.get()

    length = [size]
    shapes = [length, length, length, [as_dim(1)], *([length] if return_counts else [])]
    dtypes = [data.dtype, *["int32"] * (len(shapes) - 1)]
    return list(te.extern_op(shapes, [data, order], emit_unique, dtypes, name="unique"))


def _emit_group_leaders(
    ib: IRBuilder, values: BufferVar, sorted_at: BufferVar, group: BufferVar, size: PrimExpr
) -> None:
    """Emit group[p] = the first position whose value equals that of p; the sort is stable."""
    with ib.for_range(0, size, "i") as i:
        position = ib.let("here", sorted_at[i])
        with ib.if_scope(i > 0):
            previous = ib.let("previous", sorted_at[i - 1])
            # Sorted neighbours differ iff the former precedes; by that order two NaN are equal.
            differs = precedes(values[previous], values[position])
            group[position] = Select(differs, position, group[previous], "int32")
        with ib.else_scope():
            group[position] = position


def argwhere(condition: Tensor) -> tuple[Tensor, Tensor]:
    """Return the coordinates of the elements that are not 0: [size, rank] int32 zero-padded, and
    their number (one int32). (TVM reads the output's shape from a tensor; here it is the upper
    bound.)
    """
    size = product_of_dims(condition.shape)

    def emit_argwhere(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a serial loop: each coordinate row's index is the number of rows before it."""
        ib = IRBuilder()
        flags, coordinates, number = ib.buffer_ptr(ins[0]), *map(ib.buffer_ptr, outs)
        rank = condition.ndim
        with ib.for_range(0, size, "n") as n:
            for d in range(rank):
                coordinates[n, d] = 0
        number[0] = 0
        with ib.for_range(0, size, "n") as n:
            position = unravel(n, condition.shape)
            with ib.if_scope(as_bool(flags[position])):
                row = ib.let("row", cast(number[0], "int64"))
                for d in range(rank):
                    coordinates[row, d] = position[d]
                number[0] = row + 1
        return ib.get()

    shapes = [[size, as_dim(condition.ndim)], [as_dim(1)]]
    outputs = te.extern_op(shapes, [condition], emit_argwhere, ["int32", "int32"], name="argwhere")
    return outputs[0], outputs[1]


def row_ranks(data: Tensor) -> Tensor:
    """Return how many rows of [n, m] precede each one in lexicographic order: int64 [n], the same
    for equal rows, by comparing all pairs. Raises ValueError for other ranks.
    """
    if data.ndim != 2:
        raise ValueError(f"row_ranks: expected a matrix, got {data.shape}")
    rows, width = data.shape

    def emit_row_ranks(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the comparison of each pair of rows up to their first difference."""
        ib = IRBuilder()
        source, ranks = ib.buffer_ptr(ins[0]), ib.buffer_ptr(outs[0])
        with ib.for_range(0, rows, "i", kind="parallel") as i:
            ranks[i] = 0
            with ib.for_range(0, rows, "j") as j:
                side = ib.allocate("int64", 1, "side", "local")  # below 0: row j is before row i
                side[0] = 0
                with ib.for_range(0, width, "k") as k, ib.if_scope(side[0].equal(0)):
                    key, compared = ib.let("mine", source[i, k]), ib.let("other", source[j, k])
                    later = Select(precedes(key, compared), const(1), const(0), "int64")
                    side[0] = Select(precedes(compared, key), const(-1), later, "int64")
                with ib.if_scope(side[0] < 0):
                    ranks[i] = ranks[i] + 1
        return ib.get()

    return te.extern_op([(rows,)], [data], emit_row_ranks, ["int64"], name="row_ranks")[0]


__all__ = ["argsort", "argwhere", "row_ranks", "searchsorted", "sort", "topk", "unique"]
