"""QR decomposition by Householder reflections, packed as LAPACK's geqrf."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, cast, const, maximum
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.dimensions import simplify_dim
from ekiden.topi.linalg.row_matrix import (
    RowMatrix,
    batched_shapes,
    iter_batch,
    matrix_dims,
    working_dtype,
)


def geqrf(data: Tensor) -> tuple[Tensor, ...]:
    """Return the QR factorisation of matrices [.., m, n], packed as LAPACK's geqrf: R on and above
    the diagonal, below it the vectors of min(m, n) reflections 1 - tau v v' with first element
    1; and tau [.., min(m, n)]. Raises ValueError for other ranks.
    """
    batch, rows, columns = matrix_dims("geqrf", data)
    count, dtype = simplify_dim(te.min(rows, columns)), working_dtype(data)

    def emit_geqrf(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit one matrix per iteration, column by column: each reflection is applied to all later
        columns.
        """
        ib = IRBuilder()
        source, (packed, taus) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with iter_batch(ib, batch) as position:
            work = RowMatrix(ib, dtype, rows, columns)
            work.emit_fill(lambda i, j: source[(*position, i, j)])
            v = ib.allocate(dtype, rows, "v")
            with ib.for_range(0, count, "k") as k:
                tau = _emit_reflection(ib, work, k, v)
                taus[(*position, k)] = tau
                work.emit_reflection(v, tau, k, k + 1)
            with ib.for_range(0, rows, "i") as i, ib.for_range(0, columns, "j") as j:
                packed[(*position, i, j)] = work[i, j]
        return ib.get()

    shapes = batched_shapes(batch, (rows, columns), (count,))
    return te.extern_op(shapes, [data], emit_geqrf, [data.dtype] * 2, name="geqrf")


def _emit_reflection(ib: IRBuilder, work: RowMatrix, k: PrimExpr, v: BufferVar) -> PrimExpr:
    """Emit the reflection that zeroes column k below its diagonal; write v, pack column k and
    return tau.
    """
    dtype = work.dtype
    # Squares of the ratios to the largest element neither overflow nor vanish (LAPACK's nrm2).
    largest = ib.allocate(dtype, 1, "largest", "local")
    largest[0] = _magnitude(work[k, k])
    with ib.for_range(k + 1, work.count, "i") as i:
        largest[0] = maximum(largest[0], _magnitude(work[i, k]))
    unit = ib.let("unit", Select(largest[0] > 0.0, largest[0], const(1, dtype), dtype))
    square = ib.allocate(dtype, 1, "square", "local")
    square[0] = const(0, dtype)
    with ib.for_range(k + 1, work.count, "i") as i:
        ratio = ib.let("ratio", work[i, k] / unit)
        square[0] = square[0] + ratio * ratio
    alpha = ib.let("alpha", work[k, k])
    share = ib.let("share", alpha / unit)
    length = unit * call_intrin("sqrt", share * share + square[0])
    # The sign opposite to alpha's avoids cancellation in beta - alpha (Golub and Van Loan, 5.1).
    beta = ib.let("beta", Select(alpha > 0.0, -length, length, dtype))
    is_zero = ib.let("is_zero", square[0].equal(0.0))
    one, none = const(1, dtype), const(0, dtype)
    tau = ib.let("tau", Select(is_zero, none, (beta - alpha) / beta, dtype))
    scale = ib.let("scale", Select(is_zero, none, one / (alpha - beta), dtype))
    # LAPACK's convention: the leading 1 of v is implicit, so the rest fits below the diagonal.
    v[k] = one
    work[k, k] = Select(is_zero, alpha, beta, dtype)
    with ib.for_range(k + 1, work.count, "i") as i:
        v[i] = work[i, k] * scale
        work[i, k] = v[i]
    return tau


def _magnitude(value: PrimExpr) -> PrimExpr:
    return Select(value < 0.0, -value, value, value.dtype)


def householder_product(packed: Tensor, taus: Tensor) -> Tensor:
    """Return the first n columns [.., m, n] of the product of the reflections that `geqrf` has
    packed, from [.., m, n] and tau [.., k] with n <= m (LAPACK's orgqr). Raises ValueError if
    the shapes do not match.
    """
    batch, rows, columns = matrix_dims("householder_product", packed)
    if taus.ndim != packed.ndim - 1:
        raise ValueError(f"householder_product: {packed.shape} and taus {taus.shape} do not fit")
    count, dtype = taus.shape[-1], working_dtype(packed)

    def emit_householder_product(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the reflections applied to the first columns of the identity, last to first, each
        from its own column on, since earlier columns are unaffected.
        """
        ib = IRBuilder()
        source, tau, out = (ib.buffer_ptr(buffer) for buffer in (*ins, *outs))
        with iter_batch(ib, batch) as position:
            work = RowMatrix(ib, dtype, rows, columns)
            work.emit_fill(lambda i, j: Select(i.equal(j), const(1, dtype), const(0, dtype), dtype))
            v = ib.allocate(dtype, rows, "v")
            with ib.for_range(0, count, "step") as step:
                k = ib.let("k", count - 1 - step)
                v[k] = const(1, dtype)
                with ib.for_range(k + 1, rows, "i") as i:
                    v[i] = source[(*position, i, k)]
                work.emit_reflection(v, ib.let("tau", cast(tau[(*position, k)], dtype)), k, k)
            with ib.for_range(0, rows, "i") as i, ib.for_range(0, columns, "j") as j:
                out[(*position, i, j)] = work[i, j]
        return ib.get()

    outputs = [packed.shape]
    return te.extern_op(
        outputs, [packed, taus], emit_householder_product, [packed.dtype], name="orgqr"
    )[0]
