"""Products with sparse matrices in compressed rows (CSR) or block rows (BSR).

A matrix is (data, indices, indptr): row i has data[indptr[i]:indptr[i + 1]] at the columns
indices[...]. Also the shapes and empty rows of tensors given by coordinates.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const
from ekiden.te import Tensor
from ekiden.te.range_checks import (
    RANGE_CHECKS_ATTR_KEY,
    RangeCheck,
    extent_checks,
    index_check,
    normalize_negative_index,
    range_check,
)
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import (
    Dim,
    as_dim,
    as_shape,
    known_int,
    product_of_dims,
    require_shape,
    simplify_dim,
)
from ekiden.topi.layout import permute_values
from ekiden.topi.reduce import accumulator_dtype


def _sparse_checks(
    name: str, sparse: tuple[Tensor, Tensor, Tensor], columns: PrimExpr
) -> dict[str, object]:
    """Return the checks of a sparse matrix: columns in range, and row starts that are in range and
    monotonic.
    """
    data, indices, indptr = sparse
    count = data.shape[0]
    rows = te.compute(
        (simplify_dim(te.max(indptr.shape[0] - 1, 0)),),
        lambda i: cast(indptr[i + 1], "int64") - cast(indptr[i], "int64"),
        name="rows",
        tag="injective",
    )
    checks: tuple[RangeCheck, ...] = (
        *extent_checks(name, (count,), indices.shape, what=("data", "indices")),
        range_check(f"{name}: start of a row", indptr, 0, count + 1),
        range_check(f"{name}: length of a row", rows, 0, count + 1),
        index_check(name, indices, columns, 1, "column"),
    )
    return {RANGE_CHECKS_ATTR_KEY: checks}


def _row_products(
    sparse: tuple[Tensor, Tensor, Tensor],
    dense: Tensor,
    extra: Tensor | None,
    shape: Sequence[PrimExpr],
    name: str,
    transposed: bool,
) -> Tensor:
    """Return out[row, column] = sum of data * dense[index, column] over a sparse row (+ extra)."""
    data, indices, indptr = sparse
    rows, columns = (1, 0) if transposed else (0, 1)
    wide = accumulator_dtype(data.dtype)

    def emit_row_products(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit rows in parallel. Column indices are clamped to the dense matrix."""
        ib = IRBuilder()
        values, column_indices, starts, factor = map(ib.buffer_ptr, ins[:4])
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, shape[rows], "row", kind="parallel") as row:
            begin, end = (ib.let("k", cast(starts[row + n], "int64")) for n in (0, 1))
            with ib.for_range(0, shape[columns], "column") as column:
                position = (column, row) if transposed else (row, column)
                total = ib.allocate(wide, 1, "total", "local")
                first = (
                    const(0, wide) if extra is None else cast(ib.buffer_ptr(ins[4])[position], wide)
                )
                total[0] = first
                with ib.for_range(begin, end, "k") as k:
                    where = normalize_negative_index(
                        column_indices[k], dense.shape[1 if transposed else 0]
                    )
                    load = factor[(column, where) if transposed else (where, column)]
                    ib.increase(total, 0, cast(values[k], wide) * cast(load, wide))
                out[position] = cast(total[0], data.dtype)
        return ib.get()

    inputs = [data, indices, indptr, dense, *([] if extra is None else [extra])]
    attrs = _sparse_checks(name, sparse, dense.shape[1 if transposed else 0])
    return te.extern_op([shape], inputs, emit_row_products, [data.dtype], name=name, attrs=attrs)[0]


def csrmm(a: tuple[Tensor, Tensor, Tensor], b: Tensor, c: Tensor | None = None) -> Tensor:
    """Multiply a sparse matrix by a dense one [k, n], plus c [m, n]."""
    rows = simplify_dim(a[2].shape[0] - 1)
    return _row_products(a, b, c, (rows, b.shape[1]), "csrmm", False)


def csrmv(a: tuple[Tensor, Tensor, Tensor], x: Tensor, y: Tensor | None = None) -> Tensor:
    """Multiply a sparse matrix by a column [k, 1], plus y [m, 1]."""
    return csrmm(a, x, y)


def sparse_dense(
    dense_data: Tensor, sparse_data: Tensor, sparse_indices: Tensor, sparse_indptr: Tensor,
    sparse_lhs: bool = False,
) -> Tensor:  # fmt: skip
    """Multiply dense [m, k] by the transpose of a sparse weight [n, k], in compressed rows (CSR) or
    block rows (BSR, data of rank 3, [blocks, r, c]).

    sparse_lhs: the sparse matrix [m, k] times the transpose of a dense [n, k]. Raises ValueError
    for blocks with `sparse_lhs`.
    """
    if sparse_data.ndim == 3:
        if sparse_lhs:
            raise ValueError("sparse_dense: blocks are for a sparse weight, not for sparse_lhs")
        return _bsr_dense(dense_data, sparse_data, sparse_indices, sparse_indptr)
    sparse = (sparse_data, sparse_indices, sparse_indptr)
    rows = simplify_dim(sparse_indptr.shape[0] - 1)
    if sparse_lhs:
        turned = te.compute(
            dense_data.shape[::-1], lambda i, j: dense_data[j, i], name="turned", tag="injective"
        )
        return _row_products(
            sparse, turned, None, (rows, dense_data.shape[0]), "sparse_dense", False
        )
    return _row_products(
        sparse, dense_data, None, (dense_data.shape[0], rows), "sparse_dense", True
    )


def _bsr_dense(x: Tensor, data: Tensor, indices: Tensor, indptr: Tensor) -> Tensor:
    _, high, width = data.shape
    wide = accumulator_dtype(data.dtype)
    blocks = simplify_dim(indptr.shape[0] - 1)
    shape, count = (x.shape[0], simplify_dim(blocks * high)), simplify_dim(x.shape[1] // width)

    def emit_block_rows(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit block rows in parallel."""
        ib = IRBuilder()
        factor, values, column_indices, starts = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        with ib.for_range(0, blocks, "block", kind="parallel") as block:
            begin, end = (ib.let("k", cast(starts[block + n], "int64")) for n in (0, 1))
            with ib.for_range(0, shape[0], "row") as row, ib.for_range(0, high, "r") as r:
                total = ib.allocate(wide, 1, "total", "local")
                total[0] = const(0, wide)
                with ib.for_range(begin, end, "k") as k:
                    first = ib.let(
                        "first", normalize_negative_index(column_indices[k], count) * width
                    )
                    with ib.for_range(0, width, "c") as c:
                        term = cast(values[k, r, c], wide) * cast(factor[row, first + c], wide)
                        ib.increase(total, 0, term)
                out[row, block * high + r] = cast(total[0], data.dtype)
        return ib.get()

    attrs = _sparse_checks("sparse_dense", (data, indices, indptr), count)
    inputs = [x, data, indices, indptr]
    return te.extern_op(
        [shape], inputs, emit_block_rows, [data.dtype], name="bsr_dense", attrs=attrs
    )[0]


SPARSE_CONV_WINDOW_EXTENTS = range(1, 2**10, 2)
"""Supported window extents of sparse convolutions."""


def sparse_conv2d(
    data: Tensor, sparse_data: Tensor, sparse_indices: Tensor, sparse_indptr: Tensor,
    layout: str = "NHWC", kernel_size: int | Sequence[int] = 1,
) -> Tensor:  # fmt: skip
    """Return the stride-1 convolution with a sparse weight [channels, columns], as in sparse_dense;
    blocks of one column may leave that axis out. The window is square and odd, with zero padding
    around the data; columns are in the layout's order: (row, column, channel) for NHWC,
    (channel, row, column) for NCHW. Raises ValueError for another layout or window.
    """
    sizes = {kernel_size} if isinstance(kernel_size, int) else set(kernel_size)
    if (
        layout not in ("NHWC", "NCHW")
        or len(sizes) != 1
        or min(sizes) not in SPARSE_CONV_WINDOW_EXTENTS
    ):
        raise ValueError(
            "sparse_conv2d: expected the layout NHWC or NCHW and a square window of an odd extent,"
            f" got {layout} and {kernel_size}"
        )
    size = min(sizes)
    n, c, h, w = permute_values(data.shape, layout, "NCHW")
    taps, border = size * size, size // 2

    def im2col_element(row: Var, column: Var) -> PrimExpr:
        """Return the data element under a tap, 0 in the border: the rows of a matrix product
        (im2col).
        """
        tap, channel = (column // c, column % c)
        if layout == "NCHW":
            tap, channel = column % taps, column // taps
        y, x = row // w % h + tap // size - border, row % w + tap % size - border
        indices = permute_values((row // (h * w), channel, y, x), "NCHW", layout)
        inside = te.all(y >= 0, y < h, x >= 0, x < w)
        return (
            data[indices]
            if size == 1
            else te.if_then_else(inside, data[indices], const(0, data.dtype))
        )

    rows = te.compute(
        (simplify_dim(n * h * w), simplify_dim(c * taps)),
        im2col_element,
        name="patches",
        tag="injective",
    )
    blocks = sparse_data
    if sparse_data.ndim == 2:
        blocks = te.compute(
            (*sparse_data.shape, as_dim(1)), lambda k, r, _: sparse_data[k, r], name="blocks",
            tag="injective",
        )  # fmt: skip
    product_rows = sparse_dense(rows, blocks, sparse_indices, sparse_indptr)

    def sum_taps(*i: Var) -> PrimExpr:
        """Load the product of a pixel's taps, in the layout of the result."""
        b, o, y, x = permute_values(i, layout, "NCHW")
        return product_rows[(b * h + y) * w + x, o]

    shape = permute_values((n, product_rows.shape[1], h, w), "NCHW", layout)
    return te.compute(shape, sum_taps, name="sparse_conv2d", tag="injective")


def sparse_transpose(
    sparse_data: Tensor, sparse_indices: Tensor, sparse_indptr: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (data, indices, indptr) of the transpose of a square CSR matrix. Elements that are in
    no row become trailing zeros.
    """
    size = simplify_dim(sparse_indptr.shape[0] - 1)

    def emit_transpose(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit a counting sort by column (Gustavson 1978): count the elements of each column, sum
        the counts to column starts, then store each element behind its column's last.
        """
        ib = IRBuilder()
        data, column_indices, starts = map(ib.buffer_ptr, ins)
        out, rows, ends = map(ib.buffer_ptr, outs)
        with ib.for_range(0, size + 1, "n") as n:
            ends[n] = 0
        with ib.for_range(0, sparse_data.shape[0], "k") as k:
            out[k] = const(0, sparse_data.dtype)
            rows[k] = 0
        first, last = (cast(starts[n], "int64") for n in (const(0), size))
        with ib.for_range(first, last, "k") as k:
            # Counted one place further on: the running sum then gives starts, not ends.
            ib.increase(ends, normalize_negative_index(column_indices[k], size) + 1)
        with ib.for_range(0, size, "n") as n:
            ends[n + 1] = ends[n] + ends[n + 1]
        cursor = ib.allocate("int64", size, "cursor")
        with ib.for_range(0, size, "n") as n:
            cursor[n] = ends[n]
        with ib.for_range(0, size, "row") as row:
            begin, end = (cast(starts[row + n], "int64") for n in (0, 1))
            with ib.for_range(begin, end, "k") as k:
                column = ib.let("column", normalize_negative_index(column_indices[k], size))
                slot = ib.let("slot", cursor[column])
                out[slot] = data[k]
                rows[slot] = row
                cursor[column] = slot + 1
        return ib.get()

    outputs = te.extern_op(
        [t.shape for t in (sparse_data, sparse_indices, sparse_indptr)],
        [sparse_data, sparse_indices, sparse_indptr],
        emit_transpose,
        [t.dtype for t in (sparse_data, sparse_indices, sparse_indptr)],
        name="sparse_transpose",
        attrs=_sparse_checks(
            "sparse_transpose", (sparse_data, sparse_indices, sparse_indptr), size
        ),
    )
    return outputs[0], outputs[1], outputs[2]


def sparse_add(
    dense_data: Tensor, sparse_data: Tensor, sparse_indices: Tensor, sparse_indptr: Tensor
) -> Tensor:
    """Add a sparse CSR matrix to a dense one."""
    require_shape(
        "sparse_add", "sparse_indptr", sparse_indptr.shape, (simplify_dim(dense_data.shape[0] + 1),)
    )

    def emit_sparse_add(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit rows in parallel: no two write to the same row."""
        ib = IRBuilder()
        dense, values, column_indices, starts = map(ib.buffer_ptr, ins)
        out = ib.buffer_ptr(outs[0])
        rows, columns = dense_data.shape
        with ib.for_range(0, rows, "row", kind="parallel") as row:
            with ib.for_range(0, columns, "column") as column:
                out[row, column] = dense[row, column]
            begin, end = (cast(starts[row + n], "int64") for n in (0, 1))
            with ib.for_range(begin, end, "k") as k:
                ib.increase(
                    out, (row, normalize_negative_index(column_indices[k], columns)), values[k]
                )
        return ib.get()

    inputs = [dense_data, sparse_data, sparse_indices, sparse_indptr]
    attrs = _sparse_checks(
        "sparse_add", (sparse_data, sparse_indices, sparse_indptr), dense_data.shape[1]
    )
    return te.extern_op(
        [dense_data.shape],
        inputs,
        emit_sparse_add,
        [dense_data.dtype],
        name="sparse_add",
        attrs=attrs,
    )[0]


def sparse_reshape(
    sparse_indices: Tensor,
    prev_shape: Tensor | Sequence[Dim],
    new_shape: Sequence[Dim],
) -> tuple[Tensor, Tensor]:
    """Return the coordinates [n, rank] of elements after a reshape, and the new shape with -1
    resolved. prev_shape: numbers, or a vector of known length. Raises ValueError for a shape of
    unknown rank.
    """
    if isinstance(prev_shape, Tensor):
        rank = known_int(prev_shape.shape[0])
        if rank is None:
            raise ValueError("sparse_reshape: the rank of the previous shape must be known")
        old: tuple[PrimExpr, ...] = tuple(cast(prev_shape[n], "int64") for n in range(rank))
    else:
        old = as_shape(prev_shape)
    target_shape = as_shape(new_shape)
    total = product_of_dims(old)
    known_product = product_of_dims([d for d in target_shape if known_int(d) != -1])
    new = [total // te.max(known_product, 1) if known_int(d) == -1 else d for d in target_shape]

    def select_by_index(values: Sequence[PrimExpr], index: PrimExpr) -> PrimExpr:
        """Return values[index] for an index that is data: a choice among all."""
        chosen = values[-1]
        for n in range(len(values) - 2, -1, -1):
            chosen = Select(index.equal(n), values[n], chosen, "int64")
        return chosen

    def new_coordinate(i: Var, axis: Var) -> PrimExpr:
        """Return the coordinate on `axis` of an element's flat position in the new shape."""
        flat: PrimExpr = as_dim(0)
        for n, extent in enumerate(old):
            flat = flat * extent + cast(sparse_indices[i, n], "int64")
        strides = [product_of_dims(new[n + 1 :]) for n in range(len(new))]
        # At least 1: an empty axis must not divide by 0.
        along = [flat // te.max(s, 1) % te.max(d, 1) for s, d in zip(strides, new, strict=True)]
        return cast(select_by_index(along, axis), sparse_indices.dtype)

    count = len(new)
    coordinates = te.compute(
        (sparse_indices.shape[0], count), new_coordinate, name="sparse_reshape", tag="injective"
    )
    dtype = sparse_indices.dtype
    shape = te.compute(
        (count,), lambda n: cast(select_by_index(new, n), dtype), name="new_shape", tag="injective"
    )
    return coordinates, shape


def sparse_fill_empty_rows(
    sparse_indices: Tensor, sparse_values: Tensor, dense_shape: Sequence[Dim], default_value: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return coordinates with an element in every row: (indices, values, which rows were empty, the
    number of elements), the first two padded to elements + rows with -1 and 0. sparse_indices
    [n, rank] are in row order. An empty row gets the default value in its first column. Raises
    ValueError for coordinates of unknown rank.
    """
    count, rank = sparse_indices.shape
    rows = as_dim(dense_shape[0])
    axes = known_int(rank)
    if axes is None:
        raise ValueError("sparse_fill_empty_rows: the rank of the coordinates must be known")
    size = simplify_dim(count + rows)

    def emit_fill_empty_rows(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit rows in order: each output position depends on all before."""
        ib = IRBuilder()
        coordinates, values, fill = map(ib.buffer_ptr, ins)
        new_places, new_values, empty, number = map(ib.buffer_ptr, outs)
        with ib.for_range(0, size, "n") as n:
            new_values[n] = 0
            for d in range(axes):
                new_places[n, d] = -1
        state = ib.allocate("int64", 2, "state", "local")  # next input, next output
        state[0] = 0
        state[1] = 0
        with ib.for_range(0, rows, "row") as row:
            start, k = ib.let("start", state[1]), state[0]
            # Guarded: behind the last coordinate nothing may be read.
            is_here = if_then_else(k < count, cast(coordinates[k, 0], "int64") <= row, const(False))
            with ib.while_loop(is_here):
                for d in range(axes):
                    new_places[state[1], d] = coordinates[k, d]
                new_values[state[1]] = values[k]
                ib.increase(state, 1)
                ib.increase(state, 0)
            with ib.if_scope(start.equal(state[1])):
                new_places[start, 0] = row
                for d in range(1, axes):
                    new_places[start, d] = 0
                new_values[start] = fill[()]
                empty[row] = const(True)
                state[1] = start + 1
            with ib.else_scope():
                empty[row] = const(False)
        number[0] = state[1]
        return ib.get()

    shapes = [[size, rank], [size], [rows], [as_dim(1)]]
    dtypes = [sparse_indices.dtype, sparse_values.dtype, "bool", "int32"]
    inputs = [sparse_indices, sparse_values, default_value]
    outputs = te.extern_op(
        shapes, inputs, emit_fill_empty_rows, dtypes, name="sparse_fill_empty_rows"
    )
    return outputs[0], outputs[1], outputs[2], outputs[3]


__all__ = [
    "csrmm", "csrmv", "sparse_add", "sparse_conv2d", "sparse_dense", "sparse_fill_empty_rows",
    "sparse_reshape", "sparse_transpose",
]  # fmt: skip
