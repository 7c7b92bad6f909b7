"""torch.linalg: decompositions, linear solves, inverses, determinants."""

from __future__ import annotations

import torch

from ekiden.frontend.common import linalg
from ekiden.frontend.common.linalg import LuFactors, transpose_matrix
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.converters.linear import batched_product
from ekiden.frontend.torch.effects import LINALG_CHECK
from ekiden.frontend.torch.node import ConverterRow, FxNode, target_name
from ekiden.ir.prim import maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import (
    Shape,
    are_equal_dims,
    broadcast_shape,
    simplify_dim,
    to_attr_dims,
)


def _error_check_function(node: FxNode, at: int) -> str:
    """Return the function, such as "linalg.inv", that must fail where output `at` of a node reports
    an error; "" if none.

    It is found from the check that reads the output, or is the node itself (`check_errors`).
    """
    if node.fx.kwargs.get("check_errors"):
        return target_name(node.fx.target).split(".")[1].strip("_").replace("_", ".", 1)
    picks = [u for u in node.fx.users if u.args[1:] == (at,)]
    for user in (user for pick in picks for user in pick.users):
        if any(LINALG_CHECK in str(arg) for arg in (user.target, *user.args)):
            return next(str(a) for a in user.args if isinstance(a, str))
    return ""


def _lu_factors(node: FxNode, matrix: Expr, info: int | None = None) -> LuFactors:
    """Return the LU factors; singular matrices raise if the program checks output `info`."""
    factors = LuFactors.factorize(matrix)
    name = "" if info is None else _error_check_function(node, info)
    return factors.require_nonsingular(f"{name}: pivot") if name else factors


def _shape_dtype_rank(x: Value) -> tuple[Shape, str, int]:
    """Return the shape, dtype and rank."""
    return x.type.shape, x.type.dtype, len(x.type.shape)


def _broadcast_batches(node: FxNode, a: Value, b: Value) -> tuple[Expr, Expr, Shape]:
    """Broadcast two stacks of matrices to one batch; return its shape too."""
    left_shape, right_shape = a.type.shape, b.type.shape
    node.scope.require_broadcastable(left_shape[:-2], right_shape[:-2])
    batch = broadcast_shape(left_shape[:-2], right_shape[:-2])
    if batch is None:
        node.reject(f"batches {left_shape[:-2]!r} and {right_shape[:-2]!r} do not broadcast")
    first, second = (
        node.to_expr(v)
        if v.type.shape[:-2] == batch
        else op.broadcast_to(node.to_expr(v), to_attr_dims((*batch, *v.type.shape[-2:])))
        for v in (a, b)
    )
    return first, second, batch


def _require_rows(node: FxNode, a: Value, b: Value, axis: int) -> Value:
    """Require an axis of the right-hand side to have as many elements as the matrices have rows."""
    rows, shape = a.type.shape[-1], list(b.type.shape)
    if are_equal_dims(rows, shape[axis]):
        return b
    # The symbols differ in the program but must have the same value at run time: recorded as a
    # constraint.
    node.scope.require_equal_dims([rows], [shape[axis]])
    shape[axis] = rows
    return node.as_value(
        node.scope.attach_span(op.reshape(node.to_expr(b), tuple(shape), allowzero=True))
    )


def _inv_ex(node: FxNode, x: Value, *, check_errors: bool = False) -> list[Expr]:
    shape, dtype, _ = _shape_dtype_rank(x)
    factors = _lu_factors(node, node.to_expr(x), 1)
    return [factors.solve(linalg.identity_matrix(shape, dtype), shape), factors.info]


def _solve_ex(
    node: FxNode, a: Value, b: Value, *, left: bool = True, check_errors: bool = False
) -> list[Expr]:
    """Convert _linalg_solve_ex: a x = b, or x a = b as a' x' = b' where `left` is false."""
    outer, inner = a.type.shape[:-1], b.type.shape
    is_vector = len(inner) == 1 or (
        len(inner) == len(outer) and all(map(are_equal_dims, inner, outer))
    )
    if is_vector:
        b = node.as_value(node.scope.attach_span(op.expand_dims(node.to_expr(b), -1)))
    first, second, batch = _broadcast_batches(
        node, a, _require_rows(node, a, b, -2 if left else -1)
    )
    factors = _lu_factors(node, first, 3)
    rows, columns = b.type.shape[-2:]
    if left:
        result = factors.solve(second, (*batch, rows, columns))
    else:
        rank = len(batch) + 2
        # X A = B is A^T X^T = B^T, which the same factors solve.
        turned = factors.solve_transposed(transpose_matrix(second, rank), (*batch, columns, rows))
        result = transpose_matrix(turned, rank)
    if is_vector:
        result = op.squeeze(result, axis=[-1])
    return [result, factors.packed, _to_one_based_pivots(factors.pivots), factors.info]


def _to_one_based_pivots(pivots: Expr) -> Expr:
    """Emit pivots counted from 1, as LAPACK and PyTorch do."""
    return op.add(pivots, const(1, "int32"))


def _lu_in_memory_order(node: FxNode, x: Value) -> LuFactors:
    """Return the LU of the transpose for row-contiguous matrices, as PyTorch computes determinants:
    det(A') = det(A). The gradient, which PyTorch traces, solves with these factors.
    """
    source = node.fx.args[0]
    meta = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    # ATen hands row-major memory to LAPACK as the transpose, which pivots by other rows.
    is_stored_by_rows = isinstance(meta, torch.Tensor) and meta.is_contiguous()
    data = node.to_expr(x)
    return LuFactors.factorize(
        transpose_matrix(data, len(x.type.shape)) if is_stored_by_rows else data
    )


def _det(node: FxNode, x: Value) -> list[Expr]:
    shape, dtype, _ = _shape_dtype_rank(x)
    factors = _lu_in_memory_order(node, x)
    return [
        linalg.lu_determinant(factors, shape, dtype),
        factors.packed,
        _to_one_based_pivots(factors.pivots),
    ]


def _slogdet(node: FxNode, x: Value) -> list[Expr]:
    shape, dtype, _ = _shape_dtype_rank(x)
    factors = _lu_in_memory_order(node, x)
    signs, logs = linalg.lu_slogdet(factors, shape, dtype)
    return [signs, logs, factors.packed, _to_one_based_pivots(factors.pivots)]


def _lu_factor_ex(
    node: FxNode, x: Value, *, pivot: bool = True, check_errors: bool = False
) -> list[Expr]:
    if not pivot:
        # Without pivoting LU is not backward stable, and PyTorch has it on GPUs only.
        node.reject("LU without pivots")
    factors = _lu_factors(node, node.to_expr(x), 2)
    return [factors.packed, _to_one_based_pivots(factors.pivots), factors.info]


def _lu(node: FxNode, x: Value, *, pivot: bool = True) -> list[Expr]:
    if not pivot:
        node.reject("LU without pivots")
    shape, dtype = x.type.shape, x.type.dtype
    factors = LuFactors.factorize(node.to_expr(x))
    lower, upper = linalg.unpack_lu(factors, shape, dtype)
    return [linalg.permutation_matrix(factors, shape, dtype), lower, upper]


def _cholesky_ex(
    node: FxNode, x: Value, *, upper: bool = False, check_errors: bool = False
) -> list[Expr]:
    rank, data = len(x.type.shape), node.to_expr(x)
    decomposition = op.linalg.cholesky(transpose_matrix(data, rank) if upper else data)
    info = TupleGetItem(decomposition, 1)
    factor: Expr = TupleGetItem(decomposition, 0)
    if name := _error_check_function(node, 1):
        # LAPACK's potrf: info > 0 is the order of the leading minor that is not positive definite.
        subject = f"{name}: the leading minor of order"
        factor = op.linalg.checked(factor, info, subject, linalg.NOT_POSITIVE_DEFINITE_MESSAGE)
    return [transpose_matrix(factor, rank) if upper else factor, info]


def _cholesky_solve(node: FxNode, b: Value, factor: Value, upper: bool = False) -> Expr:
    lhs, rhs, batch = _broadcast_batches(node, factor, _require_rows(node, factor, b, -2))
    rank = len(batch) + 2
    lower, higher = (
        (transpose_matrix(lhs, rank), lhs) if upper else (lhs, transpose_matrix(lhs, rank))
    )
    half = op.linalg.solve_triangular(lower, rhs, lower=True)
    return op.linalg.solve_triangular(higher, half, lower=False)


def _cholesky_inverse(node: FxNode, factor: Value, upper: bool = False) -> Expr:
    shape, dtype, _ = _shape_dtype_rank(factor)
    ones = node.as_value(node.scope.attach_span(linalg.identity_matrix(shape, dtype)))
    return _cholesky_solve(node, ones, factor, upper)


def _solve_triangular(
    node: FxNode, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Expr:
    first, second, batch = _broadcast_batches(
        node, a, _require_rows(node, a, b, -2 if left else -1)
    )
    if left:
        return op.linalg.solve_triangular(first, second, not upper, unitriangular)
    rank = len(batch) + 2
    turned = transpose_matrix(first, rank), transpose_matrix(second, rank)
    return transpose_matrix(op.linalg.solve_triangular(*turned, upper, unitriangular), rank)


def _qr(node: FxNode, x: Value, mode: str = "reduced") -> list[Expr | None]:
    """Convert linalg_qr: (Q, R), Q empty in mode "r"."""
    q, r = linalg.qr_decomposition(node.to_expr(x), x.type.shape, mode == "complete")
    # PyTorch returns an empty Q in this mode.
    if mode == "r":
        return [op.zeros((0,), x.type.dtype), r]
    return [q, r]


def _householder_product(node: FxNode, x: Value, tau: Value) -> Expr:
    return op.linalg.householder_product(node.to_expr(x), node.to_expr(tau))


def _eigh(node: FxNode, x: Value, uplo: str = "L", compute_v: bool = True) -> list[Expr]:
    decomposition = op.linalg.eigh(node.to_expr(x), lower=uplo.upper() == "L")
    return [TupleGetItem(decomposition, 0), TupleGetItem(decomposition, 1)]


def _svd(
    node: FxNode,
    x: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> list[Expr]:
    decomposition = op.linalg.svd(node.to_expr(x), full_matrices and compute_uv)
    return [TupleGetItem(decomposition, position) for position in range(3)]


def _matrix_exp(node: FxNode, x: Value) -> Expr:
    return op.linalg.matrix_exp(node.to_expr(x))


def _pinv(
    node: FxNode, x: Value, *, atol: Value | None = None, rtol: Value | None = None,
    hermitian: bool = False,
) -> Expr:  # fmt: skip
    """Convert linalg_pinv: V S^-1 U' over the singular values above both tolerances.

    Of a `hermitian` matrix only the lower triangle is read.
    """
    _, dtype, rank = _shape_dtype_rank(x)
    data = node.to_expr(x)
    if hermitian:
        # The strict lower triangle, mirrored: the upper one is never read.
        lower = op.trilu(data, -1, upper=False)
        data = op.add(op.trilu(data, 0, upper=False), transpose_matrix(lower, rank))
    decomposition = op.linalg.svd(data, full_matrices=False)
    left_vectors, values, right_vectors = (
        TupleGetItem(decomposition, position) for position in range(3)
    )
    limit = _singular_value_limit(node, x, op.max(values, axis=[-1], keepdims=True), atol, rtol)
    inverse = op.where(op.greater(values, limit), op.divide(const(1, dtype), values),
                       const(0, dtype))  # fmt: skip
    scaled = op.multiply(transpose_matrix(right_vectors, rank), op.expand_dims(inverse, -2))
    first, second = (
        node.scope.attach_span(e) for e in (scaled, transpose_matrix(left_vectors, rank))
    )
    return batched_product(node, node.as_value(first), node.as_value(second))


def _singular_value_limit(
    node: FxNode, x: Value, largest: Expr, atol: Value | None, rtol: Value | None
) -> Expr:
    """Emit the limit above which singular values count.

    Without `rtol` it is relative to the matrix size, and 0 where an `atol` above 0 is given, as
    PyTorch documents.
    """
    shape, dtype, _ = _shape_dtype_rank(x)

    def per_matrix(value: Value) -> Expr:
        """Emit a tolerance shaped to broadcast against its matrix's singular values."""
        return (
            op.expand_dims(node.to_expr(value, dtype), -1)
            if value.type.shape
            else node.to_expr(value, dtype)
        )

    if rtol is not None:
        relative = per_matrix(rtol)
    else:
        epsilon = torch.finfo(torch.float64 if dtype == "float64" else torch.float32).eps
        size = op.cast(node.scope.emit_dim(simplify_dim(maximum(*shape[-2:]))), dtype)
        relative = op.multiply(size, const(epsilon, dtype))
        if atol is not None:
            is_given = op.greater(per_matrix(atol), const(0, dtype))
            relative = op.where(is_given, const(0, dtype), relative)
    limit = op.multiply(largest, relative)
    return limit if atol is None else op.maximum(limit, per_matrix(atol))


def _ignore_check(node: FxNode, *args: object, **kwargs: object) -> None:
    """Ignore an error check: the decomposition that it reads raises by itself."""


def _with_effects(node: FxNode, token: None, *args: object, **kwargs: object) -> None:
    """Ignore an error check with effect tokens; decompositions raise by themselves."""
    # Other effects (prints, custom operators) must not be dropped silently.
    if not any(LINALG_CHECK in str(arg) for arg in node.fx.args):
        node.reject("effects other than checks of decompositions")


ROWS: tuple[ConverterRow, ...] = (
    ("linalg_inv_ex", _inv_ex),
    ("_linalg_solve_ex", _solve_ex),
    ("_linalg_det", _det),
    ("_linalg_slogdet", _slogdet),
    ("linalg_lu_factor_ex", _lu_factor_ex),
    ("linalg_lu", _lu),
    ("linalg_cholesky_ex", _cholesky_ex),
    ("cholesky_solve", _cholesky_solve),
    ("cholesky_inverse", _cholesky_inverse),
    ("linalg_solve_triangular", _solve_triangular),
    ("linalg_qr", _qr),
    ("linalg_householder_product", _householder_product),
    ("_linalg_eigh", _eigh),
    ("_linalg_svd", _svd),
    ("linalg_matrix_exp", _matrix_exp),
    ("linalg_pinv.atol_rtol_tensor", _pinv),
    (LINALG_CHECK, _ignore_check),
    ("higher_order::with_effects", _with_effects),
)
