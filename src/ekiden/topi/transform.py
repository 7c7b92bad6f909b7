"""Data movement operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import (
    ExprLike,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    convert,
    is_const,
    logical_and,
    maximum,
    minimum,
)
from ekiden.te import Tensor
from ekiden.te.range_checks import (
    RANGE_CHECKS_ATTR_KEY,
    extent_checks,
    index_bound_text,
    range_check,
)
from ekiden.tir.data_layout import parse_layout
from ekiden.topi.dimensions import (
    Dim,
    Shape,
    as_dim,
    as_shape,
    infer_reshape,
    known_int,
    normalize_axes,
    normalize_axis,
    replace_dim,
    require_min_extent,
    require_shape,
    simplify_dim,
)
from ekiden.topi.layout import transform_shape


def _compute_injective(
    shape: Shape, x: Tensor, name: str, index: Callable[..., Sequence[PrimExpr]]
) -> Tensor:
    return te.compute(shape, lambda *i: x[index(*i)], name=name, tag="injective")


def reshape(a: Tensor, newshape: Sequence[Dim]) -> Tensor:
    """Return the elements of `a` in order in another shape. A 0 copies an axis, one -1 is inferred.
    Raises ValueError if the numbers of elements are known to differ.
    """
    shape = infer_reshape(a.shape, newshape)
    return _compute_injective(shape, a, "reshape", lambda *i: unravel(ravel(i, shape), a.shape))


def ravel(indices: Sequence[PrimExpr], shape: Shape) -> PrimExpr:
    """Return the flat position of an element."""
    flat: PrimExpr = as_dim(0)
    for index, dim in zip(indices, shape, strict=True):
        flat = flat * dim + index
    return flat


def unravel(flat: PrimExpr, shape: Shape) -> list[PrimExpr]:
    """Return the indices of the element at a flat position."""
    indices: list[PrimExpr] = []
    for position, dim in reversed(list(enumerate(shape))):
        if is_const(dim, 1):
            indices.append(as_dim(0))
        else:
            # The first index needs no remainder, as the position is inside the shape.
            indices.append(flat % dim if position else flat)
            flat = flat // dim
    return indices[::-1]


def transpose(a: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Permute axes: result axis n is axis axes[n] of `a`; reversed by default.

    Raises ValueError when the axes are no permutation.
    """
    rank = a.ndim
    order = range(rank)[::-1] if axes is None else axes
    order = [normalize_axis(n, rank, "transpose") for n in order]
    if sorted(order) != list(range(rank)):
        raise ValueError(f"transpose: expected a permutation of {rank} axes, got {axes}")
    position = {axis: n for n, axis in enumerate(order)}
    shape = tuple(a.shape[n] for n in order)
    return _compute_injective(
        shape, a, "transpose", lambda *i: [i[position[n]] for n in range(rank)]
    )


MAX_GUARD_CHAIN = 16
"""Maximum length of a chain of guards; longer ones become a binary tree of selects."""


def _select_by_range(
    position: PrimExpr, edges: Sequence[PrimExpr], values: Sequence[PrimExpr]
) -> PrimExpr:
    """Return the value whose range contains a position: value k covers edges[k - 1] to edges[k]."""
    if len(values) > MAX_GUARD_CHAIN:
        half = len(values) // 2
        low = _select_by_range(position, edges[:half], values[:half])
        return if_then_else(
            position < edges[half - 1], low, _select_by_range(position, edges[half:], values[half:])
        )
    chosen = values[-1]
    for end, value in zip(edges[-2::-1], values[-2::-1], strict=True):
        chosen = if_then_else(position < end, value, chosen)
    return chosen


def concatenate(a_tuple: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors along an axis. Loop partitioning splits the chain of guards."""
    axis_index = normalize_axis(axis, a_tuple[0].ndim, "concatenate")
    edges: list[PrimExpr] = [as_dim(0)]
    for tensor in a_tuple:
        edges.append(simplify_dim(edges[-1] + tensor.shape[axis_index]))
    shape = replace_dim(a_tuple[0].shape, axis_index, edges[-1])

    def load_part(*i: Var) -> PrimExpr:
        """Return the element of the tensor whose range contains the position, guarded first to
        last.
        """
        begins = zip(a_tuple, edges, strict=False)
        loads = [
            source[replace_dim(i, axis_index, i[axis_index] - begin)] for source, begin in begins
        ]
        return _select_by_range(i[axis_index], edges[1:], loads)

    return te.compute(
        shape, load_part, name="concatenate", tag="concatenate", attrs={"axis": axis_index}
    )


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis."""
    axis_index = normalize_axis(axis, tensors[0].ndim + 1, "stack")
    shape = (*tensors[0].shape[:axis_index], as_dim(len(tensors)), *tensors[0].shape[axis_index:])

    def load_tensor(*i: Var) -> PrimExpr:
        """Return the element of the tensor that the position on the new axis selects."""
        inner_indices = (*i[:axis_index], *i[axis_index + 1 :])
        ends = [as_dim(n + 1) for n in range(len(tensors))]
        return _select_by_range(i[axis_index], ends, [tensor[inner_indices] for tensor in tensors])

    return te.compute(shape, load_tensor, name="stack", tag="injective")


def tile(a: Tensor, reps: Sequence[Dim]) -> Tensor:
    """Repeat `a` as a whole along each axis; axes and repetitions are aligned at the last."""
    times = as_shape(reps)
    rank = max(a.ndim, len(times))
    one = as_dim(1)
    dims = (one,) * (rank - a.ndim) + a.shape
    counts = (one,) * (rank - len(times)) + times
    shape = tuple(simplify_dim(d * c) for d, c in zip(dims, counts, strict=True))
    start = rank - a.ndim

    def source_index(*i: Var) -> list[PrimExpr]:
        """Return the index within `a`; an axis that is not repeated needs no remainder."""
        return [
            # A remainder per element would keep the loops of an axis from being vectorised.
            n if is_const(c, 1) else n % d
            for n, d, c in zip(i[start:], a.shape, counts[start:], strict=True)
        ]

    return _compute_injective(shape, a, "tile", source_index)


def repeat(a: Tensor, repeats: int, axis: int) -> Tensor:
    """Repeat each element along an axis."""
    axis_index = normalize_axis(axis, a.ndim, "repeat")
    shape = replace_dim(a.shape, axis_index, simplify_dim(a.shape[axis_index] * repeats))
    return _compute_injective(
        shape, a, "repeat", lambda *i: replace_dim(i, axis_index, i[axis_index] // max(repeats, 1))
    )


def flip(a: Tensor, axis: int | Sequence[int] | None = 0) -> Tensor:
    """Reverse `a` along axes (None: all)."""
    axes = normalize_axes(axis, a.ndim, "flip")
    return _compute_injective(
        a.shape,
        a,
        "reverse",
        lambda *i: [a.shape[d] - 1 - n if d in axes else n for d, n in enumerate(i)],
    )


def reverse_sequence(
    a: Tensor, seq_lengths: Tensor, seq_axis: int = 1, batch_axis: int = 0
) -> Tensor:
    """Reverse the first seq_lengths[b] elements of each batch b along `seq_axis` and keep the rest.
    Lengths out of range are errors at run time.
    """
    along = normalize_axis(seq_axis, a.ndim, "reverse_sequence")
    batch = normalize_axis(batch_axis, a.ndim, "reverse_sequence")
    if along == batch:
        raise ValueError(f"reverse_sequence: axis {along} is both of the sequence and the batch")

    def mirrored_index(*i: Var) -> tuple[PrimExpr, ...]:
        """Return the mirrored position within the sequence, the position itself after it."""
        length = cast(seq_lengths[i[batch]], "int64")
        position = Select(i[along] < length, length - 1 - i[along], i[along], "int64")
        return replace_dim(i, along, position)

    size, batches = a.shape[along], (a.shape[batch],)
    if known_int(batches[0]) is not None and all(
        known_int(d) is not None for d in seq_lengths.shape
    ):
        require_shape("reverse_sequence", "seq_lengths", seq_lengths.shape, batches)
    extents = extent_checks(
        "reverse_sequence", batches, seq_lengths.shape, what=("batch", "seq_lengths")
    )
    bound = index_bound_text(along)
    length = range_check("reverse_sequence: length", seq_lengths, 0, size + 1, bound, (size,))
    attrs = {RANGE_CHECKS_ATTR_KEY: (*extents, length)}
    return te.compute(
        a.shape, lambda *i: a[mirrored_index(*i)], "reverse_sequence", "injective", attrs
    )


def expand_dims(a: Tensor, axis: int, num_newaxis: int = 1) -> Tensor:
    """Insert axes of extent 1 at `axis`."""
    axis_index = normalize_axis(axis, a.ndim + 1, "expand_dims")
    shape = (*a.shape[:axis_index], *[as_dim(1)] * num_newaxis, *a.shape[axis_index:])
    return _compute_injective(
        shape, a, "expand_dims", lambda *i: (*i[:axis_index], *i[axis_index + num_newaxis :])
    )


def squeeze(a: Tensor, axis: int | Sequence[int] | None = None) -> Tensor:
    """Remove axes of extent 1 (None: all that are known to be 1). Raises ValueError if one is known
    to be larger.
    """
    if axis is None:
        axes = tuple(n for n, d in enumerate(a.shape) if is_const(d, 1))
    else:
        axes = normalize_axes(axis, a.ndim, "squeeze")
    wrong = [n for n in axes if known_int(a.shape[n]) not in (None, 1)]
    if wrong:
        raise ValueError(
            f"squeeze: axis {wrong[0]} has extent {known_int(a.shape[wrong[0]])}, not 1"
        )
    shape = tuple(d for n, d in enumerate(a.shape) if n not in axes)

    def source_index(*i: Var) -> list[PrimExpr]:
        """Return the indices of the data: 0 at squeezed axes."""
        remaining = iter(i)
        return [as_dim(0) if n in axes else next(remaining) for n in range(a.ndim)]

    return _compute_injective(shape, a, "squeeze", source_index)


def expand_like(a: Tensor, shape_like: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert axes at `axis`, and broadcast `a` along them to another tensor's extents. Raises
    ValueError if that does not give the other tensor's rank.
    """
    axes = normalize_axes(axis, shape_like.ndim, "expand_like")
    if len(axes) + a.ndim != shape_like.ndim:
        raise ValueError(
            f"expand_like: {a.ndim} axes and {len(axes)} new ones do not make {shape_like.ndim}"
        )
    return _compute_injective(
        shape_like.shape,
        a,
        "expand_like",
        lambda *i: [n for index, n in enumerate(i) if index not in axes],
    )


MAX_UNRAVEL_ELEMENTS = 2**62
"""Exclusive bound of the number of elements."""


def unravel_index(indices: Tensor, shape: Tensor | Sequence[Dim]) -> Tensor:
    """Convert flat positions to coordinates along a new first axis; `shape` may be data. Raises
    ValueError for a shape of unknown rank.
    """
    if isinstance(shape, Tensor):
        count = known_int(shape.shape[0])
        if count is None:
            raise ValueError("unravel_index: the rank of the shape must be known")
        dims: Shape = tuple(cast(shape[n], "int64") for n in range(count))
    else:
        dims = as_shape(shape)

    element_count: PrimExpr = as_dim(1)
    for extent in dims:  # no number of elements is larger than this, nor does a product overflow
        fits = element_count <= MAX_UNRAVEL_ELEMENTS // maximum(extent, 1)
        element_count = Select(fits, element_count * extent, as_dim(MAX_UNRAVEL_ELEMENTS), "int64")
    element_count = simplify_dim(element_count)
    checks = [
        range_check(
            "unravel_index: position", indices, 0, element_count, "{} elements", (element_count,)
        )
    ]
    if isinstance(shape, Tensor):
        checks.insert(0, range_check("unravel_index: extent", shape, 0, 2**31))
    attrs = {RANGE_CHECKS_ATTR_KEY: tuple(checks)}

    def select_coordinate(*i: Var) -> PrimExpr:
        """Return the coordinate that the first index selects: a choice among all."""
        coordinates = unravel(cast(indices[i[1:]], "int64"), dims)
        value = coordinates[-1]
        for n in range(len(coordinates) - 2, -1, -1):
            value = Select(i[0].equal(n), coordinates[n], value, "int64")
        return cast(value, indices.dtype)

    result = (as_dim(len(dims)), *indices.shape)
    return te.compute(result, select_coordinate, name="unravel_index", tag="injective", attrs=attrs)


def invert_permutation(data: Tensor) -> Tensor:
    """Return the positions of 0, 1, 2, ... in a vector that permutes them."""
    extent = data.shape[0]
    k = te.reduce_axis((0, extent), "k")
    return te.compute(
        (extent,),
        lambda i: te.max(
            Select(
                cast(data[k], "int64").equal(i),
                cast(k, data.dtype),
                const(0, data.dtype),
                data.dtype,
            ),
            k,
        ),
        name="invert_permutation",
        tag="reduce",
        attrs={
            RANGE_CHECKS_ATTR_KEY: (range_check("invert_permutation: position", data, 0, extent),)
        },
    )


def trilu(data: Tensor, k: Tensor | ExprLike, upper: bool) -> Tensor:
    """Return the part above (or below) the k-th diagonal of matrices, inclusive; 0 elsewhere."""
    offset = cast(k[()] if isinstance(k, Tensor) else convert(k), "int64")

    def keep_triangle(*i: Var) -> PrimExpr:
        """Return the element inside the triangle, else 0."""
        distance = i[-1] - i[-2]
        is_kept = distance >= offset if upper else distance <= offset
        return Select(is_kept, data[i], const(0, data.dtype), data.dtype)

    return te.compute(data.shape, keep_triangle, name="trilu", tag="injective")


def matrix_set_diag(
    data: Tensor, diagonal: Tensor, k: int | Sequence[int] = 0, align: str = "RIGHT_LEFT"
) -> Tensor:
    """Replace the diagonals k (or k[0] to k[1]; the first axis of `diagonal` is from the upper to
    the lower) of matrices, as TensorFlow's matrix_set_diag. `align` says whether shorter
    diagonals above and below the main one are stored right or left. Raises ValueError for
    diagonals of a rank that does not match the matrices'.
    """
    low, high = (k, k) if isinstance(k, int) else (k[0], k[-1])
    several = diagonal.ndim == data.ndim
    above, below = align.split("_")
    rows, columns = data.shape[-2:]
    longest = diagonal.shape[-1]
    count = high - low + 1
    if count < 1 or (count > 1 and not several):
        raise ValueError(
            f"matrix_set_diag: {count} diagonals of a tensor of rank {data.ndim} need as many rows"
            f" of {data.ndim - several} axes, got {diagonal.ndim}"
        )
    outer = data.shape[:-2]
    expected_shape = (*outer, count, None) if several else (*outer, None)
    require_shape("matrix_set_diag", "diagonal", diagonal.shape, expected_shape)
    lengths = [minimum(rows + min(d, 0), columns - max(d, 0)) for d in range(low, high + 1)]
    for length in lengths:
        require_min_extent("matrix_set_diag", "diagonal", (longest,), (length,))

    def replace_diagonal(*i: Var) -> PrimExpr:
        """Return the diagonal's element where the position is on a replaced diagonal, aligned per
        side.
        """
        offset = i[-1] - i[-2]
        inside = logical_and(offset >= low, offset <= high)
        position = minimum(i[-1], i[-2])
        length = minimum(minimum(rows + minimum(offset, 0), columns - maximum(offset, 0)), longest)
        right = Select(offset >= 0, const(above == "RIGHT"), const(below == "RIGHT"), "bool")
        location = position + Select(right, longest - length, as_dim(0), "int64")
        row = (*i[:-2], as_dim(high) - offset, location) if several else (*i[:-2], location)
        return if_then_else(inside, diagonal[row], data[i])

    return te.compute(data.shape, replace_diagonal, name="matrix_set_diag", tag="injective")


def layout_transform(
    array: Tensor, src_layout: str, dst_layout: str, schedule_rule: str = "None"
) -> Tensor:
    """Convert `array` from one layout to another. (`schedule_rule` is TVM's; rules find the stage
    by its tag.)
    """
    source, target = src_layout, dst_layout
    sizes = {letter: size for letter, size in parse_layout(target) if size}
    inner = {letter: size for letter, size in parse_layout(source) if size}

    def source_index(*i: Var) -> list[PrimExpr]:
        """Return the source index: whole axes from blocks and inner positions, blocks from whole
        axes.
        """
        indices = dict(zip([letter for letter, _ in parse_layout(target)], i, strict=True))
        full_index: dict[str, PrimExpr] = {
            letter: indices[letter] * sizes[letter.lower()] + indices[letter.lower()]
            if letter.lower() in sizes
            else indices[letter]
            for letter in indices
            if letter.isupper()
        }
        return [
            full_index[letter.upper()] % size
            if size
            else full_index[letter] // inner.get(letter.lower(), 1)
            for letter, size in parse_layout(source)
        ]

    return _compute_injective(
        transform_shape(array.shape, source, target), array, "layout_transform", source_index
    )


__all__ = [
    "concatenate", "expand_dims", "expand_like", "flip", "invert_permutation", "layout_transform",
    "matrix_set_diag", "repeat", "reshape", "reverse_sequence", "squeeze", "stack", "tile",
    "transpose", "trilu", "unravel_index",
]  # fmt: skip
