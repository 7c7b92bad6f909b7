"""tf.linalg: decompositions, solutions, inverses, determinants."""

from __future__ import annotations

from ekiden.frontend.common import matrices
from ekiden.frontend.common.matrices import Factors, transposed
from ekiden.frontend.tensorflow.node import Node, Row
from ekiden.ir.prim import minimum
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import Shape, as_attr, equal, tidy


def _matrix(node: Node) -> tuple[Expr, Shape, str]:
    kind = node.value(0).type
    return node.expr(0), kind.shape, kind.dtype


def _sides(node: Node) -> tuple[Expr, Expr, Shape]:
    """Return a matrix, right-hand sides whose batch must equal the matrix's, and their shape."""
    matrix_shape, sides_shape = node.shape(0), node.shape(1)
    node.scope.same(matrix_shape[:-2], sides_shape[:-2])
    shape = (*matrix_shape[:-2], *sides_shape[-2:])
    sides = node.expr(1)
    if not all(map(equal, matrix_shape[:-2], sides_shape[:-2])):
        sides = op.reshape(sides, as_attr(shape), allowzero=True)
    return node.expr(0), sides, shape


def _checked(node: Node, matrix: Expr) -> Factors:
    return Factors.of(matrix).checked(f"{node.op}: pivot")


def _inverse(node: Node) -> Expr:
    matrix, shape, dtype = _matrix(node)
    if node.flag("adjoint"):
        matrix = transposed(matrix, len(shape))
    return _checked(node, matrix).solve(matrices.identity(shape, dtype), shape)


def _solve(node: Node) -> Expr:
    matrix, right, shape = _sides(node)
    factors = _checked(node, matrix)
    return (factors.solve_transposed if node.flag("adjoint") else factors.solve)(right, shape)


def _triangular_solve(node: Node) -> Expr:
    matrix, right, shape = _sides(node)
    lower = node.flag("lower") or not node.has("lower")
    if node.flag("adjoint"):
        matrix, lower = transposed(matrix, len(shape)), not lower
    return op.linalg.solve_triangular(matrix, right, lower)


def _cholesky(node: Node) -> Expr:
    decomposition = op.linalg.cholesky(node.expr(0))
    # TensorFlow raises for a matrix that is not positive definite; LAPACK's info tells the minor.
    factor, info = TupleGetItem(decomposition, 0), TupleGetItem(decomposition, 1)
    subject = "Cholesky: the leading minor of order"
    return op.linalg.checked(factor, info, subject, matrices.NOT_POSITIVE)


def _qr(node: Node) -> list[Expr]:
    matrix, shape, _ = _matrix(node)
    return list(matrices.qr(matrix, shape, node.flag("full_matrices")))


def _svd(node: Node) -> list[Expr]:
    """Convert Svd: singular values, U, and V, which TensorFlow does not transpose."""
    matrix, shape, _ = _matrix(node)
    decomposition = op.linalg.svd(matrix, node.flag("full_matrices"))
    u, values, v_transposed = (TupleGetItem(decomposition, at) for at in range(3))
    # The kernel returns V', TensorFlow's operator V.
    return [values, u, transposed(v_transposed, len(shape))]


def _eigh(node: Node) -> list[Expr]:
    decomposition = op.linalg.eigh(node.expr(0))
    return [TupleGetItem(decomposition, 0), TupleGetItem(decomposition, 1)]


def _determinant(node: Node) -> Expr:
    matrix, shape, dtype = _matrix(node)
    return matrices.determinant(Factors.of(matrix), shape, dtype)


def _log_determinant(node: Node) -> list[Expr]:
    matrix, shape, dtype = _matrix(node)
    return list(matrices.sign_and_log(Factors.of(matrix), shape, dtype))


def _one_diagonal(node: Node) -> int:
    diagonals = set(node.axes(1, "k"))
    if len(diagonals) != 1:
        node.unsupported(f"one diagonal is supported, not the band {sorted(diagonals)}")
    return diagonals.pop()


def _diag(node: Node) -> Expr:
    """Return matrices of padding with diagonal k: square, or of the given size.

    An extent that is not given is as small as the diagonal allows.
    """
    k = _one_diagonal(node) if len(node.inputs) > 1 else 0
    *batch, size = node.shape(0)
    minimal_extents = tidy(size + max(-k, 0)), tidy(size + max(k, 0))
    given_extents = [node.axes(at, "size")[0] if len(node.inputs) > at else -1 for at in (2, 3)]
    square = tidy(size + abs(k))
    extents = [d if n == -1 else n for d, n in zip(minimal_extents, given_extents, strict=True)]
    extents = [square, square] if given_extents == [-1, -1] else extents
    padding = node.expr(4) if len(node.inputs) > 4 else const(0, node.dtype(0))
    empty = op.full(padding, as_attr((*batch, *extents)), node.dtype(0))
    return op.matrix_set_diag(empty, node.expr(0), k)


def _set_diag(node: Node) -> Expr:
    k = set(node.axes(2, "k")) if len(node.inputs) > 2 else {0}
    if len(k) != 1:
        node.unsupported(f"one diagonal is supported, not the band {sorted(k)}")
    return op.matrix_set_diag(node.expr(0), node.expr(1), k.pop())


def _diag_part(node: Node) -> Expr:
    """Return the main diagonal; of a non-square matrix, that of its leading square block."""
    if len(node.inputs) > 1 and _one_diagonal(node) != 0:
        node.unsupported("the main diagonal is supported, no other")
    shape, data = node.shape(0), node.expr(0)
    smaller = tidy(minimum(*shape[-2:]))
    if not equal(*shape[-2:]):
        data = op.strided_slice(data, [0, 0], as_attr((smaller, smaller)), axes=[-2, -1])
    return matrices.diagonal(data, (*shape[:-2], smaller, smaller), node.dtype(0))


# fmt: off
ROWS: tuple[Row, ...] = (
    Row("MatrixInverse",         _inverse),
    Row("MatrixSolve",           _solve),
    Row("MatrixTriangularSolve", _triangular_solve),
    Row("Cholesky",              _cholesky),
    Row("Qr",                    _qr),
    Row("Svd",                   _svd),
    Row("SelfAdjointEigV2",      _eigh),
    Row("MatrixDeterminant",     _determinant),
    Row("LogMatrixDeterminant",  _log_determinant),
    *(Row(f"MatrixDiag{v}",      _diag) for v in ("", "V2", "V3")),
    *(Row(f"MatrixSetDiag{v}",   _set_diag) for v in ("", "V2", "V3")),
    *(Row(f"MatrixDiagPart{v}",  _diag_part) for v in ("", "V2", "V3")),
)
# fmt: on
