"""QR by Householder's reflections: the factors as LAPACK packs them, and Q of them."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, cast, const
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.ir_builder import BufferVar, IRBuilder
from ekiden.tir.stmt import Stmt
from ekiden.topi.linalg.rows import Rows, each_matrix, matrices, shapes_of, wide_dtype
from ekiden.topi.shape import tidy


def geqrf(data: Tensor) -> tuple[Tensor, ...]:
    """Of matrices [.., m, n]: R on and above the diagonal, below it the vectors of min(m, n)
    reflections 1 - tau v v', whose first element is 1; their tau [.., min(m, n)].

    Signs and packing are those of LAPACK's geqrf. Raises ValueError for no matrices.
    """
    batch, rows, columns = matrices("geqrf", data)
    least, dtype = tidy(te.min(rows, columns)), wide_dtype(data)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """A matrix at a time, a column after the other: its reflection is applied to all columns
        behind it.
        """
        ib = IRBuilder()
        source, (packed, taus) = ib.buffer_ptr(ins[0]), map(ib.buffer_ptr, outs)
        with each_matrix(ib, batch) as at:
            work = Rows(ib, dtype, rows, columns)
            work.fill(lambda i, j: source[(*at, i, j)])
            v = ib.allocate(dtype, rows, "v")
            with ib.for_range(0, least, "k") as k:
                tau = _reflection(ib, work, k, v)
                taus[(*at, k)] = tau
                work.reflect(v, tau, k, k + 1)
            with ib.for_range(0, rows, "i") as i, ib.for_range(0, columns, "j") as j:
                packed[(*at, i, j)] = work[i, j]
        return ib.get()

    shapes = shapes_of(batch, (rows, columns), (least,))
    return te.extern_op(shapes, [data], build, [data.dtype] * 2, name="geqrf")


def _reflection(ib: IRBuilder, work: Rows, k: PrimExpr, v: BufferVar) -> PrimExpr:
    """What makes column k zero below its diagonal: tau; v is written, column k packed."""
    dtype = work.dtype
    square = ib.allocate(dtype, 1, "square", "local")
    square[0] = const(0, dtype)
    with ib.for_range(k + 1, work.count, "i") as i:
        square[0] = square[0] + work[i, k] * work[i, k]
    alpha = ib.let("alpha", work[k, k])
    length = call_intrin("sqrt", alpha * alpha + square[0])
    beta = ib.let("beta", Select(alpha > 0.0, -length, length, dtype))
    is_zero = ib.let("is_zero", square[0].equal(0.0))
    one, none = const(1, dtype), const(0, dtype)
    tau = ib.let("tau", Select(is_zero, none, (beta - alpha) / beta, dtype))
    scale = ib.let("scale", Select(is_zero, none, one / (alpha - beta), dtype))
    v[k] = one
    work[k, k] = Select(is_zero, alpha, beta, dtype)
    with ib.for_range(k + 1, work.count, "i") as i:
        v[i] = work[i, k] * scale
        work[i, k] = v[i]
    return tau


def householder_product(packed: Tensor, taus: Tensor) -> Tensor:
    """The first n columns of the product of reflections that `geqrf` packed: of [.., m, n] and
    [.., k] the orthogonal columns [.., m, n]; n <= m. LAPACK's orgqr.

    Raises ValueError where shapes do not fit.
    """
    batch, rows, columns = matrices("householder_product", packed)
    if taus.ndim != packed.ndim - 1:
        raise ValueError(f"householder_product: {packed.shape} and taus {taus.shape} do not fit")
    count, dtype = taus.shape[-1], wide_dtype(packed)

    def build(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """The reflections applied to the first columns of the identity, from the last to the first,
        each only to the columns from its own on: those before are still the identity's there.
        """
        ib = IRBuilder()
        source, tau, out = (ib.buffer_ptr(each) for each in (*ins, *outs))
        with each_matrix(ib, batch) as at:
            work = Rows(ib, dtype, rows, columns)
            work.fill(lambda i, j: Select(i.equal(j), const(1, dtype), const(0, dtype), dtype))
            v = ib.allocate(dtype, rows, "v")
            with ib.for_range(0, count, "step") as step:
                k = ib.let("k", count - 1 - step)
                v[k] = const(1, dtype)
                with ib.for_range(k + 1, rows, "i") as i:
                    v[i] = source[(*at, i, k)]
                work.reflect(v, ib.let("tau", cast(tau[(*at, k)], dtype)), k, k)
            with ib.for_range(0, rows, "i") as i, ib.for_range(0, columns, "j") as j:
                out[(*at, i, j)] = work[i, j]
        return ib.get()

    outputs = [packed.shape]
    return te.extern_op(outputs, [packed, taus], build, [packed.dtype], name="orgqr")[0]
