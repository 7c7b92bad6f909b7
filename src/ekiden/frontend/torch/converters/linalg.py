"""torch.linalg: decompositions, solutions, inverses, determinants."""

from __future__ import annotations

import torch

from ekiden.frontend.common import matrices
from ekiden.frontend.common.matrices import Factors, transposed
from ekiden.frontend.common.value import Value
from ekiden.frontend.torch.converters.linear import batched
from ekiden.frontend.torch.effects import CHECK
from ekiden.frontend.torch.node import Node, Row, target_name
from ekiden.ir.prim import maximum
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import Shape, as_attr, broadcast_shape, equal, tidy


def _failing(node: Node, at: int) -> str:
    """Return the name of the function that should fail on output `at` of a node, "linalg.inv"; ""
    if none.

    It is found from the check that reads the output, or is the node itself (`check_errors`).
    """
    if node.fx.kwargs.get("check_errors"):
        return target_name(node.fx.target).split(".")[1].strip("_").replace("_", ".", 1)
    picks = [u for u in node.fx.users if u.args[1:] == (at,)]
    for user in (user for pick in picks for user in pick.users):
        if any(CHECK in str(arg) for arg in (user.target, *user.args)):
            return next(str(a) for a in user.args if isinstance(a, str))
    return ""


def _factors(node: Node, matrix: Expr, info: int | None = None) -> Factors:
    """Return the LU factors; if the program checks output `info`, singular matrices raise."""
    factors = Factors.of(matrix)
    name = "" if info is None else _failing(node, info)
    return factors.checked(f"{name}: pivot") if name else factors


def _kind(x: Value) -> tuple[Shape, str, int]:
    """Return the shape, dtype and rank."""
    return x.type.shape, x.type.dtype, len(x.type.shape)


def _batched(node: Node, a: Value, b: Value) -> tuple[Expr, Expr, Shape]:
    """Return two stacks of matrices broadcast to one batch, and the batch's shape."""
    left_shape, right_shape = a.type.shape, b.type.shape
    node.scope.broadcasts(left_shape[:-2], right_shape[:-2])
    batch = broadcast_shape(left_shape[:-2], right_shape[:-2])
    if batch is None:
        node.unsupported(f"batches {left_shape[:-2]!r} and {right_shape[:-2]!r} do not broadcast")
    first, second = (
        node.of(v)
        if v.type.shape[:-2] == batch
        else op.broadcast_to(node.of(v), as_attr((*batch, *v.type.shape[-2:])))
        for v in (a, b)
    )
    return first, second, batch


def _fitting(node: Node, a: Value, b: Value, axis: int) -> Value:
    """Return the right-hand side with the extent of an axis declared to be the rows of the
    matrices.
    """
    rows, shape = a.type.shape[-1], list(b.type.shape)
    if equal(rows, shape[axis]):
        return b
    # The symbols differ in the program but must have the same value at run time: recorded as a
    # constraint.
    node.scope.same([rows], [shape[axis]])
    shape[axis] = rows
    return node.value_of(node.scope.spanned(op.reshape(node.of(b), tuple(shape), allowzero=True)))


def _inv_ex(node: Node, x: Value, *, check_errors: bool = False) -> list[Expr]:
    shape, dtype, _ = _kind(x)
    factors = _factors(node, node.of(x), 1)
    return [factors.solve(matrices.identity(shape, dtype), shape), factors.info]


def _solve_ex(
    node: Node, a: Value, b: Value, *, left: bool = True, check_errors: bool = False
) -> list[Expr]:
    """Solve a x = b, or x a = b as a' x' = b' (`left` is false)."""
    outer, inner = a.type.shape[:-1], b.type.shape
    is_vector = len(inner) == 1 or (len(inner) == len(outer) and all(map(equal, inner, outer)))
    if is_vector:
        b = node.value_of(node.scope.spanned(op.expand_dims(node.of(b), -1)))
    first, second, batch = _batched(node, a, _fitting(node, a, b, -2 if left else -1))
    factors = _factors(node, first, 3)
    rows, columns = b.type.shape[-2:]
    if left:
        result = factors.solve(second, (*batch, rows, columns))
    else:
        rank = len(batch) + 2
        turned = factors.solve_transposed(transposed(second, rank), (*batch, columns, rows))
        result = transposed(turned, rank)
    if is_vector:
        result = op.squeeze(result, axis=[-1])
    return [result, factors.packed, _from_one(factors.pivots), factors.info]


def _from_one(pivots: Expr) -> Expr:
    """Return the pivots counted from 1, as in LAPACK."""
    return op.add(pivots, const(1, "int32"))


def _factors_as_stored(node: Node, x: Value) -> Factors:
    """Return the LU of a matrix as PyTorch computes it for a determinant: of the transpose where
    rows are contiguous, det(A') = det(A). The gradient, which PyTorch traces, solves by that."""
    source = node.fx.args[0]
    meta = source.meta.get("val") if isinstance(source, torch.fx.Node) else None
    is_stored_by_rows = isinstance(meta, torch.Tensor) and meta.is_contiguous()
    data = node.of(x)
    return Factors.of(transposed(data, len(x.type.shape)) if is_stored_by_rows else data)


def _det(node: Node, x: Value) -> list[Expr]:
    shape, dtype, _ = _kind(x)
    factors = _factors_as_stored(node, x)
    return [matrices.determinant(factors, shape, dtype), factors.packed, _from_one(factors.pivots)]


def _slogdet(node: Node, x: Value) -> list[Expr]:
    shape, dtype, _ = _kind(x)
    factors = _factors_as_stored(node, x)
    signs, logs = matrices.sign_and_log(factors, shape, dtype)
    return [signs, logs, factors.packed, _from_one(factors.pivots)]


def _lu_factor_ex(
    node: Node, x: Value, *, pivot: bool = True, check_errors: bool = False
) -> list[Expr]:
    if not pivot:
        # Without pivoting LU is not backward stable, and PyTorch has it on GPUs only.
        node.unsupported("LU without pivots")
    factors = _factors(node, node.of(x), 2)
    return [factors.packed, _from_one(factors.pivots), factors.info]


def _lu(node: Node, x: Value, *, pivot: bool = True) -> list[Expr]:
    if not pivot:
        node.unsupported("LU without pivots")
    shape, dtype = x.type.shape, x.type.dtype
    factors = Factors.of(node.of(x))
    lower, upper = matrices.lower_and_upper(factors, shape, dtype)
    return [matrices.permutation(factors, shape, dtype), lower, upper]


def _cholesky_ex(
    node: Node, x: Value, *, upper: bool = False, check_errors: bool = False
) -> list[Expr]:
    rank, data = len(x.type.shape), node.of(x)
    decomposition = op.linalg.cholesky(transposed(data, rank) if upper else data)
    info = TupleGetItem(decomposition, 1)
    factor: Expr = TupleGetItem(decomposition, 0)
    if name := _failing(node, 1):
        # LAPACK's potrf: info > 0 is the order of the leading minor that is not positive definite.
        subject = f"{name}: the leading minor of order"
        factor = op.linalg.checked(factor, info, subject, matrices.NOT_POSITIVE)
    return [transposed(factor, rank) if upper else factor, info]


def _cholesky_solve(node: Node, b: Value, factor: Value, upper: bool = False) -> Expr:
    lhs, rhs, batch = _batched(node, factor, _fitting(node, factor, b, -2))
    rank = len(batch) + 2
    lower, higher = (transposed(lhs, rank), lhs) if upper else (lhs, transposed(lhs, rank))
    half = op.linalg.solve_triangular(lower, rhs, lower=True)
    return op.linalg.solve_triangular(higher, half, lower=False)


def _cholesky_inverse(node: Node, factor: Value, upper: bool = False) -> Expr:
    shape, dtype, _ = _kind(factor)
    ones = node.value_of(node.scope.spanned(matrices.identity(shape, dtype)))
    return _cholesky_solve(node, ones, factor, upper)


def _solve_triangular(
    node: Node, a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Expr:
    first, second, batch = _batched(node, a, _fitting(node, a, b, -2 if left else -1))
    if left:
        return op.linalg.solve_triangular(first, second, not upper, unitriangular)
    rank = len(batch) + 2
    turned = transposed(first, rank), transposed(second, rank)
    return transposed(op.linalg.solve_triangular(*turned, upper, unitriangular), rank)


def _qr(node: Node, x: Value, mode: str = "reduced") -> list[Expr | None]:
    """Convert linalg_qr: (Q, R), Q empty in mode "r"."""
    q, r = matrices.qr(node.of(x), x.type.shape, mode == "complete")
    if mode == "r":
        return [op.zeros((0,), x.type.dtype), r]
    return [q, r]


def _householder_product(node: Node, x: Value, tau: Value) -> Expr:
    return op.linalg.householder_product(node.of(x), node.of(tau))


def _eigh(node: Node, x: Value, uplo: str = "L", compute_v: bool = True) -> list[Expr]:
    decomposition = op.linalg.eigh(node.of(x), lower=uplo.upper() == "L")
    return [TupleGetItem(decomposition, 0), TupleGetItem(decomposition, 1)]


def _svd(
    node: Node,
    x: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> list[Expr]:
    decomposition = op.linalg.svd(node.of(x), full_matrices and compute_uv)
    return [TupleGetItem(decomposition, at) for at in range(3)]


def _matrix_exp(node: Node, x: Value) -> Expr:
    return op.linalg.matrix_exp(node.of(x))


def _pinv(
    node: Node, x: Value, *, atol: Value | None = None, rtol: Value | None = None,
    hermitian: bool = False,
) -> Expr:  # fmt: skip
    """Return the pseudo-inverse V S^-1 U' of the singular values above both tolerances.

    Of a `hermitian` matrix only the lower triangle is read.
    """
    _, dtype, rank = _kind(x)
    data = node.of(x)
    if hermitian:
        # The strict lower triangle, mirrored: the upper one is never read.
        lower = op.trilu(data, -1, upper=False)
        data = op.add(op.trilu(data, 0, upper=False), transposed(lower, rank))
    decomposition = op.linalg.svd(data, full_matrices=False)
    left_vectors, values, right_vectors = (TupleGetItem(decomposition, at) for at in range(3))
    limit = _least(node, x, op.max(values, axis=[-1], keepdims=True), atol, rtol)
    inverse = op.where(op.greater(values, limit), op.divide(const(1, dtype), values),
                       const(0, dtype))  # fmt: skip
    scaled = op.multiply(transposed(right_vectors, rank), op.expand_dims(inverse, -2))
    first, second = (node.scope.spanned(e) for e in (scaled, transposed(left_vectors, rank)))
    return batched(node, node.value_of(first), node.value_of(second))


def _least(node: Node, x: Value, largest: Expr, atol: Value | None, rtol: Value | None) -> Expr:
    """Return the limit above which singular values count.

    Without `rtol` it is relative to the matrix size, and 0 where an `atol` above 0 is given, as
    PyTorch documents.
    """
    shape, dtype, _ = _kind(x)

    def per_matrix(value: Value) -> Expr:
        """Return a tolerance shaped to broadcast against its matrix's singular values."""
        return (
            op.expand_dims(node.of(value, dtype), -1) if value.type.shape else node.of(value, dtype)
        )

    if rtol is not None:
        relative = per_matrix(rtol)
    else:
        epsilon = torch.finfo(torch.float64 if dtype == "float64" else torch.float32).eps
        size = op.cast(node.scope.scalar(tidy(maximum(*shape[-2:]))), dtype)
        relative = op.multiply(size, const(epsilon, dtype))
        if atol is not None:
            is_given = op.greater(per_matrix(atol), const(0, dtype))
            relative = op.where(is_given, const(0, dtype), relative)
    limit = op.multiply(largest, relative)
    return limit if atol is None else op.maximum(limit, per_matrix(atol))


def _no_result(node: Node, *args: object, **kwargs: object) -> None:
    """Ignore a check: the decomposition that it reads raises by itself."""


def _with_effects(node: Node, token: None, *args: object, **kwargs: object) -> None:
    """Ignore a check with effects; the decompositions, which raise by themselves, keep the tokens'
    order.
    """
    # Other effects (prints, custom operators) must not be dropped silently.
    if not any(CHECK in str(arg) for arg in node.fx.args):
        node.unsupported("effects other than checks of decompositions")


ROWS: tuple[Row, ...] = (
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
    (CHECK, _no_result),
    ("higher_order::with_effects", _with_effects),
)
