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
from ekiden.topi.shape import Shape, as_attr, broadcast_shape, equal, tidy


def _failing(node: Node, at: int) -> str:
    """The function that the program wants to fail by output `at` of a node, "linalg.inv", or the
    node itself, which was told to; "" where none does."""
    if node.fx.kwargs.get("check_errors"):
        return target_name(node.fx.target).split(".")[1].strip("_").replace("_", ".", 1)
    picks = [u for u in node.fx.users if u.args[1:] == (at,)]
    for user in (user for pick in picks for user in pick.users):
        if any(CHECK in str(arg) for arg in (user.target, *user.args)):
            return next(str(a) for a in user.args if isinstance(a, str))
    return ""


def _factors(node: Node, matrix: Expr, info: int | None = None) -> Factors:
    """LU, which fails for singular matrices where the program checks that output."""
    found = Factors.of(matrix)
    name = "" if info is None else _failing(node, info)
    return found.checked(f"{name}: pivot") if name else found


def _kind(x: Value) -> tuple[Shape, str, int]:
    """Shape, dtype and rank."""
    return x.type.shape, x.type.dtype, len(x.type.shape)


def _batched(node: Node, a: Value, b: Value) -> tuple[Expr, Expr, Shape]:
    """Two stacks of matrices of one batch, which is the third."""
    left, right = a.type.shape, b.type.shape
    node.scope.broadcasts(left[:-2], right[:-2])
    batch = broadcast_shape(left[:-2], right[:-2])
    if batch is None:
        node.unsupported(f"batches {left[:-2]!r} and {right[:-2]!r} do not broadcast")
    first, second = (
        node.of(v)
        if v.type.shape[:-2] == batch
        else op.broadcast_to(node.of(v), as_attr((*batch, *v.type.shape[-2:])))
        for v in (a, b)
    )
    return first, second, batch


def _fitting(node: Node, a: Value, b: Value, axis: int) -> Value:
    """Sides whose axis has the rows of the matrices, where only PyTorch knows that it has."""
    rows, shape = a.type.shape[-1], list(b.type.shape)
    if equal(rows, shape[axis]):
        return b
    node.scope.same([rows], [shape[axis]])
    shape[axis] = rows
    return node.value_of(node.scope.spanned(op.reshape(node.of(b), tuple(shape), allowzero=True)))


def _inv_ex(node: Node, x: Value, *, check_errors: bool = False) -> list[Expr]:
    shape, dtype, _ = _kind(x)
    found = _factors(node, node.of(x), 1)
    return [found.solve(matrices.identity(shape, dtype), shape), found.info]


def _solve_ex(
    node: Node, a: Value, b: Value, *, left: bool = True, check_errors: bool = False
) -> list[Expr]:
    """a x = b, or x a = b, which is a' x' = b'."""
    outer, inner = a.type.shape[:-1], b.type.shape
    is_vector = len(inner) == 1 or (len(inner) == len(outer) and all(map(equal, inner, outer)))
    if is_vector:
        b = node.value_of(node.scope.spanned(op.expand_dims(node.of(b), -1)))
    first, second, batch = _batched(node, a, _fitting(node, a, b, -2 if left else -1))
    found = _factors(node, first, 3)
    rows, columns = b.type.shape[-2:]
    if left:
        result = found.solve(second, (*batch, rows, columns))
    else:
        rank = len(batch) + 2
        turned = found.solve_transposed(transposed(second, rank), (*batch, columns, rows))
        result = transposed(turned, rank)
    if is_vector:
        result = op.squeeze(result, axis=[-1])
    return [result, found.packed, _from_one(found.pivots), found.info]


def _from_one(pivots: Expr) -> Expr:
    """As LAPACK counts."""
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
    found = _factors_as_stored(node, x)
    return [matrices.determinant(found, shape, dtype), found.packed, _from_one(found.pivots)]


def _slogdet(node: Node, x: Value) -> list[Expr]:
    shape, dtype, _ = _kind(x)
    found = _factors_as_stored(node, x)
    signs, logs = matrices.sign_and_log(found, shape, dtype)
    return [signs, logs, found.packed, _from_one(found.pivots)]


def _lu_factor_ex(
    node: Node, x: Value, *, pivot: bool = True, check_errors: bool = False
) -> list[Expr]:
    if not pivot:
        node.unsupported("LU without pivots")
    found = _factors(node, node.of(x), 2)
    return [found.packed, _from_one(found.pivots), found.info]


def _lu(node: Node, x: Value, *, pivot: bool = True) -> list[Expr]:
    if not pivot:
        node.unsupported("LU without pivots")
    shape, dtype = x.type.shape, x.type.dtype
    found = Factors.of(node.of(x))
    lower, upper = matrices.lower_and_upper(found, shape, dtype)
    return [matrices.permutation(found, shape, dtype), lower, upper]


def _cholesky_ex(
    node: Node, x: Value, *, upper: bool = False, check_errors: bool = False
) -> list[Expr]:
    rank, data = len(x.type.shape), node.of(x)
    found = op.linalg.cholesky(transposed(data, rank) if upper else data)
    info = TupleGetItem(found, 1)
    factor: Expr = TupleGetItem(found, 0)
    if name := _failing(node, 1):
        subject = f"{name}: the leading minor of order"
        factor = op.linalg.checked(factor, info, subject, matrices.NOT_POSITIVE)
    return [transposed(factor, rank) if upper else factor, info]


def _cholesky_solve(node: Node, b: Value, factor: Value, upper: bool = False) -> Expr:
    left, right, batch = _batched(node, factor, _fitting(node, factor, b, -2))
    rank = len(batch) + 2
    lower, higher = (transposed(left, rank), left) if upper else (left, transposed(left, rank))
    half = op.linalg.solve_triangular(lower, right, lower=True)
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
    left, right = matrices.qr(node.of(x), x.type.shape, mode == "complete")
    if mode == "r":
        return [op.zeros((0,), x.type.dtype), right]
    return [left, right]


def _householder_product(node: Node, x: Value, tau: Value) -> Expr:
    return op.linalg.householder_product(node.of(x), node.of(tau))


def _eigh(node: Node, x: Value, uplo: str = "L", compute_v: bool = True) -> list[Expr]:
    found = op.linalg.eigh(node.of(x), lower=uplo.upper() == "L")
    return [TupleGetItem(found, 0), TupleGetItem(found, 1)]


def _svd(
    node: Node,
    x: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> list[Expr]:
    found = op.linalg.svd(node.of(x), full_matrices and compute_uv)
    return [TupleGetItem(found, at) for at in range(3)]


def _matrix_exp(node: Node, x: Value) -> Expr:
    return op.linalg.matrix_exp(node.of(x))


def _pinv(
    node: Node, x: Value, *, atol: Value | None = None, rtol: Value | None = None,
    hermitian: bool = False,
) -> Expr:  # fmt: skip
    """V S^-1 U', of the singular values above both tolerances, which are of each matrix; of one
    that is said to be `hermitian` the lower triangle alone counts."""
    _, dtype, rank = _kind(x)
    data = node.of(x)
    if hermitian:
        lower = op.trilu(data, -1, upper=False)
        data = op.add(op.trilu(data, 0, upper=False), transposed(lower, rank))
    found = op.linalg.svd(data, full_matrices=False)
    left, values, right = (TupleGetItem(found, at) for at in range(3))
    limit = _least(node, x, op.max(values, axis=[-1], keepdims=True), atol, rtol)
    inverse = op.where(op.greater(values, limit), op.divide(const(1, dtype), values),
                       const(0, dtype))  # fmt: skip
    scaled = op.multiply(transposed(right, rank), op.expand_dims(inverse, -2))
    first, second = (node.scope.spanned(e) for e in (scaled, transposed(left, rank)))
    return batched(node, node.value_of(first), node.value_of(second))


def _least(node: Node, x: Value, largest: Expr, atol: Value | None, rtol: Value | None) -> Expr:
    """What singular values count above. Without `rtol` it is by the size of a matrix, and 0 where
    an `atol` above 0 is given, as PyTorch documents."""
    shape, dtype, _ = _kind(x)

    def each(value: Value) -> Expr:
        """A tolerance for each matrix, beside its singular values."""
        return (
            op.expand_dims(node.of(value, dtype), -1) if value.type.shape else node.of(value, dtype)
        )

    if rtol is not None:
        relative = each(rtol)
    else:
        epsilon = torch.finfo(torch.float64 if dtype == "float64" else torch.float32).eps
        size = op.cast(node.scope.scalar(tidy(maximum(*shape[-2:]))), dtype)
        relative = op.multiply(size, const(epsilon, dtype))
        if atol is not None:
            is_given = op.greater(each(atol), const(0, dtype))
            relative = op.where(is_given, const(0, dtype), relative)
    limit = op.multiply(largest, relative)
    return limit if atol is None else op.maximum(limit, each(atol))


def _no_result(node: Node, *args: object, **kwargs: object) -> None:
    """What fails has been told to the decomposition that it looks at."""


def _with_effects(node: Node, token: None, *args: object, **kwargs: object) -> None:
    """A check, which gives nothing but a token: the order that tokens stand for is that of the
    decompositions, each of which fails by itself."""
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
