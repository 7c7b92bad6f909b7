"""Scatter operators: writes at data-dependent positions; the last write to a position wins.

Positions out of range are refused before anything is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir.prim import (
    EQ,
    NE,
    ExprLike,
    Or,
    PrimExpr,
    Select,
    Var,
    cast,
    const,
    convert,
    fold_binary,
    logical_and,
    minimum,
)  # fmt: skip
from ekiden.kernels.cpu.loops import LoopAxis, estimated_product, parallel_outer_loops, serial_loops
from ekiden.kernels.cpu.scatter import (
    SCATTER_REDUCTIONS,
    CombineFn,
    SliceScatter,
    axes_of_shape,
    axis_vars,
    emit_copy,
)
from ekiden.kernels.in_place import UPDATES_ATTR_KEY
from ekiden.te import Tensor
from ekiden.te.range_checks import (
    RANGE_CHECKS_ATTR_KEY,
    RangeCheck,
    extent_checks,
    index_check,
    normalize_negative_index,
)
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, LetStmt, Stmt, seq
from ekiden.topi.dimensions import (
    Dim,
    as_dim,
    as_shape,
    known_int,
    normalize_axis,
    require_rank,
    require_shape,
)  # fmt: skip
from ekiden.topi.index import coordinate_checks

SCATTER_INPUT_NAMES = ("indices", "updates")
SCATTER_COLUMNS_PER_CHUNK = 32
"""Contiguous elements that one task scatters along another axis."""


def _scatter_reduction(name: str, kind: str) -> CombineFn:
    if kind not in SCATTER_REDUCTIONS:
        raise ValueError(f"{name}: expected one of {', '.join(SCATTER_REDUCTIONS)}, got {kind!r}")
    return SCATTER_REDUCTIONS[kind]


def scatter_elements(
    data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0, reduction: str = "update"
) -> Tensor:
    """Return `data` with data[i, ..., indices[i, ..., k], ..., k] combined with updates[i, ..., k]
    by a reduction (ONNX ScatterElements). Negative positions count from the end. Rows along the
    axis run in parallel; for an axis other than the last, SCATTER_COLUMNS_PER_CHUNK together, so
    that memory is read contiguously.
    """
    axis_index = normalize_axis(axis, data.ndim, "scatter_elements")
    require_rank("scatter_elements: 'indices'", indices.shape, data.ndim)
    require_rank("scatter_elements: 'updates'", updates.shape, data.ndim)
    combine = _scatter_reduction("scatter_elements", reduction)

    def emit_scatter(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit rows in parallel and the updates of a row in order."""
        axes = axes_of_shape(indices.shape)
        indices_of_update = axis_vars(axes)
        target_index = normalize_negative_index(ins[1][indices_of_update], data.shape[axis_index])
        position = (
            *indices_of_update[:axis_index],
            target_index,
            *indices_of_update[axis_index + 1 :],
        )
        value = combine(outs[0][position], ins[2][indices_of_update])
        step: Stmt = BufferStore(outs[0], value, position)
        rows, work = [a for n, a in enumerate(axes) if n != axis_index], [axes[axis_index].extent]
        # Neighbours along the last axis share cache lines: a chunk of them stays with one thread.
        if axis_index < len(axes) - 1:
            last, chunk = rows.pop(), Var("chunk")
            begin = chunk * SCATTER_COLUMNS_PER_CHUNK
            count = minimum(const(SCATTER_COLUMNS_PER_CHUNK), last.extent - begin)
            step = For(last.var, begin, simplify(count), ForKind.SERIAL, step)
            rows.append(
                LoopAxis(
                    chunk,
                    simplify(
                        (last.extent + (SCATTER_COLUMNS_PER_CHUNK - 1)) // SCATTER_COLUMNS_PER_CHUNK
                    ),
                )
            )
            work.append(const(SCATTER_COLUMNS_PER_CHUNK))
        body = parallel_outer_loops(
            rows, estimated_product(work), serial_loops([axes[axis_index]], step)
        )
        return seq(emit_copy(ins[0], outs[0]), body)

    extents = extent_checks("scatter_elements", indices.shape, data.shape, axis_index)
    update_checks = extent_checks(
        "scatter_elements", indices.shape, updates.shape, what=SCATTER_INPUT_NAMES
    )
    checks = (
        *extents,
        *update_checks,
        index_check("scatter_elements", indices, data.shape[axis_index], axis_index),
    )
    attrs = {RANGE_CHECKS_ATTR_KEY: checks, UPDATES_ATTR_KEY: 0}
    return te.extern_op(
        [data.shape],
        [data, indices, updates],
        emit_scatter,
        [data.dtype],
        name="scatter_elements",
        attrs=attrs,
    )[0]


def scatter_nd(data: Tensor, indices: Tensor, updates: Tensor, mode: str = "update") -> Tensor:
    """Return `data` with the slices at coordinates (first axis of `indices`) combined in order with
    those of `updates`, by a reduction. Negative coordinates count from the end. ONNX ScatterND has
    the coordinates last: transpose them. Raises ValueError for an unknown number of coordinates, or
    more than `data` has axes.
    """
    _scatter_reduction("scatter_nd", mode)
    count = known_int(indices.shape[0]) if indices.ndim else 0
    if count is None:
        raise ValueError("scatter_nd: the number of coordinates must be known")
    if not 1 <= count <= data.ndim:
        raise ValueError(f"scatter_nd: 1 to {data.ndim} coordinates expected, got {count}")
    rank = indices.ndim - 1
    require_rank("scatter_nd: 'updates'", updates.shape, rank + data.ndim - count)

    slices, update_shape = SliceScatter(count, mode), (*indices.shape[1:], *data.shape[count:])
    extents = extent_checks("scatter_nd", updates.shape, update_shape, what=("updates", "slices"))
    checks = (*extents, *coordinate_checks("scatter_nd", indices, data.shape[:count]))
    attrs = {RANGE_CHECKS_ATTR_KEY: checks, UPDATES_ATTR_KEY: 0, "slices": slices}
    return te.extern_op(
        [data.shape],
        [data, indices, updates],
        lambda ins, outs: slices.emit_scatter(ins, outs[0]),
        [data.dtype],
        name="scatter_nd",
        tag="scatter",
        attrs=attrs,
    )[0]


def scatter(data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0) -> Tensor:
    """Return `scatter_elements` with the reduction "update"."""
    return scatter_elements(data, indices, updates, axis)


def scatter_add(data: Tensor, indices: Tensor, updates: Tensor, axis: int = 0) -> Tensor:
    """Return `scatter_elements` with the reduction "add"."""
    return scatter_elements(data, indices, updates, axis, "add")


def strided_set(
    a: Tensor,
    v: Tensor,
    begin: Tensor | Sequence[Dim],
    end: Tensor | Sequence[Dim],
    strides: Tensor | Sequence[Dim] | None = None,
) -> Tensor:
    """Return `a` with the slice begin:end:stride of its leading axes replaced by `v`; bounds may be
    data. Missing bounds are the ends of their axes, missing strides 1. It updates in place where
    the result aliases `a`: only the slice is written. Raises ValueError for more bounds than
    axes.
    """
    counts = {what: _num_bounds(what, bound_list) for what, bound_list in
              (("begin", begin), ("end", end), ("strides", strides))}  # fmt: skip
    count = max(counts.values())
    if count > len(a.shape):
        raise ValueError(f"strided_set: 'data' has {len(a.shape)} axes, got {count} bounds")
    require_shape("strided_set", "v", v.shape, (*[None] * count, *a.shape[count:]))
    bound_tensors = [x for x in (begin, end, strides) if isinstance(x, Tensor)]

    def emit_strided_set(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the copy, then the slice's elements that are inside the tensor; with a stride of 0
        only the first.
        """
        bounds = dict(zip(map(id, bound_tensors), ins[2:], strict=True))
        axes = axes_of_shape(v.shape)
        target_index: list[PrimExpr] = list(axis_vars(axes))
        inside: PrimExpr = const(True)
        lets: list[tuple[Var, PrimExpr]] = []

        def load_bound(values: Tensor | Sequence[Dim], n: int) -> PrimExpr:
            """Return a bound of axis `n` as int64: an element, or a number."""
            source = bounds[id(values)] if isinstance(values, Tensor) else values
            return cast(as_dim(source[n]), "int64")

        def bind_bound(name: str, n: int, value: PrimExpr) -> Var:
            """Bind a bound to a variable, so that it is computed once."""
            lets.append((Var(f"{name}{n}", "int64"), value))
            return lets[-1][0]

        for n in range(count):
            size, k = a.shape[n], axes[n].var
            stepped = strides if strides is not None and n < counts["strides"] else None
            step = const(1) if stepped is None else bind_bound("step", n, load_bound(stepped, n))
            back = step < 0
            first: PrimExpr = Select(back, size - 1, const(0), "int64")
            last: PrimExpr = Select(back, const(-1), size, "int64")
            if n < counts["begin"]:
                start = _normalize_negative(load_bound(begin, n), size)
                first = te.max(te.min(start, Select(back, size - 1, size, "int64")), 0)
            if n < counts["end"]:
                stop = _normalize_negative(load_bound(end, n), size)
                last = Select(back, te.max(stop, -1), te.min(stop, size), "int64")
            first, last = bind_bound("first", n, first), bind_bound("last", n, last)
            target_index[n] = first + k * step
            within = Select(back, target_index[n] > last, target_index[n] < last, "bool")
            once = Or(fold_binary(NE, step, const(0)), fold_binary(EQ, k, const(0)))
            # Bounds are data: malformed ones must not store outside either.
            for condition in (within, once, target_index[n] >= 0, target_index[n] < size):
                inside = logical_and(inside, condition)
        store = BufferStore(outs[0], cast(ins[1][axis_vars(axes)], a.dtype), tuple(target_index))
        work = estimated_product(v.shape[-1:])
        body = parallel_outer_loops(
            axes[:-1], work, serial_loops(axes[-1:], IfThenElse(inside, store))
        )
        for var, value in reversed(lets):
            body = LetStmt(var, value, body)
        return seq(emit_copy(ins[0], outs[0]), body)

    return te.extern_op(
        [a.shape],
        [a, v, *bound_tensors],
        emit_strided_set,
        [a.dtype],
        name="strided_set",
        attrs={UPDATES_ATTR_KEY: 0},
    )[0]


def _num_bounds(what: str, bounds: Tensor | Sequence[Dim] | None) -> int:
    """Return the number of bounds. Raises ValueError where it is unknown."""
    if bounds is None:
        return 0
    if not isinstance(bounds, Tensor):
        return len(bounds)
    count = known_int(bounds.shape[0]) if len(bounds.shape) == 1 else None
    if count is None:
        raise ValueError(f"strided_set: {what!r} must be a vector of known length")
    return count


def _normalize_negative(index: PrimExpr, size: PrimExpr) -> PrimExpr:
    return Select(index < 0, index + size, index, "int64")


def sparse_to_dense(
    sparse_indices: Tensor,
    output_shape: Sequence[Dim],
    sparse_values: Tensor,
    default_value: ExprLike | Tensor = 0,
) -> Tensor:
    """Return a tensor of `output_shape` with values at positions and a default elsewhere.

    Args:
        sparse_indices: of rank 0 (one position of a vector), 1 (positions of a vector) or 2 (a row
            of coordinates each).
        output_shape: the result's shape.
        sparse_values: one value for each position, or one for all.
        default_value: value of the other elements.

    Returns:
        The tensor.

    Raises:
        ValueError: for another number of coordinates than axes, and several values for one
            position.
    """
    shape = as_shape(output_shape)
    dtype = sparse_values.dtype
    require_rank("sparse_to_dense: 'sparse_indices'", sparse_indices.shape, 0, 1, 2)
    require_rank("sparse_to_dense: 'sparse_values'", sparse_values.shape, 0, 1)
    if isinstance(default_value, Tensor):
        require_rank("sparse_to_dense: 'default_value'", default_value.shape, 0)
    width = known_int(sparse_indices.shape[1]) if sparse_indices.ndim == 2 else 1
    if width != len(shape):
        raise ValueError(
            f"sparse_to_dense: 'sparse_indices' has positions of {width} numbers, the result has"
            f" {len(shape)} dimensions"
        )
    if sparse_values.ndim > sparse_indices.ndim:
        raise ValueError("sparse_to_dense: one position cannot take several values")

    def emit_sparse_to_dense(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the fill in parallel, then the stores in order: the last of equal positions wins."""
        axes = axes_of_shape(shape)
        fill = ins[2][()] if isinstance(default_value, Tensor) else convert(default_value, dtype)
        filled = parallel_outer_loops(
            axes, 1, BufferStore(outs[0], cast(fill, dtype), axis_vars(axes))
        )
        count = sparse_indices.shape[0] if sparse_indices.ndim else const(1)
        row = LoopAxis(Var("row"), count)
        if sparse_indices.ndim == 2:
            indices = [ins[0][row.var, n] for n in range(len(shape))]
        else:
            indices = [ins[0][(row.var,) if sparse_indices.ndim else ()]]
        target_index = tuple(
            normalize_negative_index(p, d) for p, d in zip(indices, shape, strict=True)
        )
        value = ins[1][(row.var,) if sparse_values.ndim else ()]
        return seq(filled, serial_loops([row], BufferStore(outs[0], value, target_index)))

    inputs = [sparse_indices, sparse_values]
    if isinstance(default_value, Tensor):
        inputs.append(default_value)
    count, value_shape = sparse_indices.shape[:1], sparse_values.shape
    extents = extent_checks(
        "sparse_to_dense", count, value_shape, what=("sparse_indices", "values")
    )
    attrs = {RANGE_CHECKS_ATTR_KEY: (*extents, *_coordinate_checks(sparse_indices, shape))}
    return te.extern_op(
        [shape], inputs, emit_sparse_to_dense, [dtype], name="sparse_to_dense", attrs=attrs
    )[0]


def _coordinate_checks(indices: Tensor, shape: Sequence[PrimExpr]) -> tuple[RangeCheck, ...]:
    """Return the checks of coordinates in rows, or of positions in a vector."""
    if indices.ndim < 2:
        return (index_check("sparse_to_dense", indices, shape[0], 0),)
    columns = [
        te.compute(indices.shape[:1], lambda i, n=n: indices[i, n], name="at", tag="injective")
        for n in range(len(shape))
    ]
    pairs = enumerate(zip(columns, shape, strict=True))
    return tuple(index_check("sparse_to_dense", c, size, n) for n, (c, size) in pairs)


__all__ = [
    "scatter", "scatter_add", "scatter_elements", "scatter_nd", "sparse_to_dense", "strided_set",
]  # fmt: skip
