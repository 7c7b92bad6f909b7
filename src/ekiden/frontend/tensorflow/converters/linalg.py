"""tf.linalg: decompositions, linear solves, inverses, determinants, diagonals."""

from __future__ import annotations

from ekiden.frontend.common import linalg
from ekiden.frontend.common.linalg import LuFactors, transpose_matrix
from ekiden.frontend.tensorflow.node import TensorflowNode, TensorflowRow
from ekiden.ir.prim import minimum
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.topi.dimensions import Shape, are_equal_dims, simplify_dim, to_attr_dims


def _matrix_input(node: TensorflowNode) -> tuple[Expr, Shape, str]:
    kind = node.value(0).type
    return node.expr(0), kind.shape, kind.dtype


def _system_inputs(node: TensorflowNode) -> tuple[Expr, Expr, Shape]:
    """Return a matrix, right-hand sides of the same batch, and the shape of the solution."""
    matrix_shape, sides_shape = node.shape(0), node.shape(1)
    node.scope.require_equal_dims(matrix_shape[:-2], sides_shape[:-2])
    shape = (*matrix_shape[:-2], *sides_shape[-2:])
    sides = node.expr(1)
    if not all(map(are_equal_dims, matrix_shape[:-2], sides_shape[:-2])):
        sides = op.reshape(sides, to_attr_dims(shape), allowzero=True)
    return node.expr(0), sides, shape


def _factor_nonsingular(node: TensorflowNode, matrix: Expr) -> LuFactors:
    return LuFactors.factorize(matrix).require_nonsingular(f"{node.op}: pivot")


def _inverse(node: TensorflowNode) -> Expr:
    matrix, shape, dtype = _matrix_input(node)
    if node.bool_attribute("adjoint"):
        matrix = transpose_matrix(matrix, len(shape))
    return _factor_nonsingular(node, matrix).solve(linalg.identity_matrix(shape, dtype), shape)


def _solve(node: TensorflowNode) -> Expr:
    matrix, right, shape = _system_inputs(node)
    factors = _factor_nonsingular(node, matrix)
    return (factors.solve_transposed if node.bool_attribute("adjoint") else factors.solve)(
        right, shape
    )


def _triangular_solve(node: TensorflowNode) -> Expr:
    matrix, right, shape = _system_inputs(node)
    # The attribute's default is true.
    lower = node.bool_attribute("lower") or not node.has_attribute("lower")
    if node.bool_attribute("adjoint"):
        matrix, lower = transpose_matrix(matrix, len(shape)), not lower
    return op.linalg.solve_triangular(matrix, right, lower)


def _cholesky(node: TensorflowNode) -> Expr:
    decomposition = op.linalg.cholesky(node.expr(0))
    # TensorFlow raises for a matrix that is not positive definite; LAPACK's info tells the minor.
    factor, info = TupleGetItem(decomposition, 0), TupleGetItem(decomposition, 1)
    subject = "Cholesky: the leading minor of order"
    return op.linalg.checked(factor, info, subject, linalg.NOT_POSITIVE_DEFINITE_MESSAGE)


def _qr(node: TensorflowNode) -> list[Expr]:
    matrix, shape, _ = _matrix_input(node)
    return list(linalg.qr_decomposition(matrix, shape, node.bool_attribute("full_matrices")))


def _svd(node: TensorflowNode) -> list[Expr]:
    """Convert Svd: singular values, U, and V, which TensorFlow returns untransposed."""
    matrix, shape, _ = _matrix_input(node)
    decomposition = op.linalg.svd(matrix, node.bool_attribute("full_matrices"))
    u, values, v_transposed = (TupleGetItem(decomposition, position) for position in range(3))
    # The kernel returns V', TensorFlow's operator V.
    return [values, u, transpose_matrix(v_transposed, len(shape))]


def _eigh(node: TensorflowNode) -> list[Expr]:
    decomposition = op.linalg.eigh(node.expr(0))
    return [TupleGetItem(decomposition, 0), TupleGetItem(decomposition, 1)]


def _determinant(node: TensorflowNode) -> Expr:
    matrix, shape, dtype = _matrix_input(node)
    return linalg.lu_determinant(LuFactors.factorize(matrix), shape, dtype)


def _log_determinant(node: TensorflowNode) -> list[Expr]:
    matrix, shape, dtype = _matrix_input(node)
    return list(linalg.lu_slogdet(LuFactors.factorize(matrix), shape, dtype))


def _single_diagonal(node: TensorflowNode) -> int:
    diagonals = set(node.constant_ints(1, "k"))
    if len(diagonals) != 1:
        node.reject(f"one diagonal is supported, not the band {sorted(diagonals)}")
    return diagonals.pop()


def _diag(node: TensorflowNode) -> Expr:
    """Convert MatrixDiag: matrices of padding with diagonal k, square or of the given size.

    An extent that is not given is as small as the diagonal allows.
    """
    k = _single_diagonal(node) if len(node.inputs) > 1 else 0
    *batch, size = node.shape(0)
    minimal_extents = simplify_dim(size + max(-k, 0)), simplify_dim(size + max(k, 0))
    given_extents = [
        node.constant_ints(position, "size")[0] if len(node.inputs) > position else -1
        for position in (2, 3)
    ]
    square = simplify_dim(size + abs(k))
    extents = [d if n == -1 else n for d, n in zip(minimal_extents, given_extents, strict=True)]
    extents = [square, square] if given_extents == [-1, -1] else extents
    padding = node.expr(4) if len(node.inputs) > 4 else const(0, node.dtype(0))
    empty = op.full(padding, to_attr_dims((*batch, *extents)), node.dtype(0))
    return op.matrix_set_diag(empty, node.expr(0), k)


def _set_diag(node: TensorflowNode) -> Expr:
    k = set(node.constant_ints(2, "k")) if len(node.inputs) > 2 else {0}
    if len(k) != 1:
        node.reject(f"one diagonal is supported, not the band {sorted(k)}")
    return op.matrix_set_diag(node.expr(0), node.expr(1), k.pop())


def _diag_part(node: TensorflowNode) -> Expr:
    """Convert MatrixDiagPart for the main diagonal; a non-square matrix is cut to its leading
    square.
    """
    if len(node.inputs) > 1 and _single_diagonal(node) != 0:
        node.reject("the main diagonal is supported, no other")
    shape, data = node.shape(0), node.expr(0)
    smaller = simplify_dim(minimum(*shape[-2:]))
    if not are_equal_dims(*shape[-2:]):
        data = op.strided_slice(data, [0, 0], to_attr_dims((smaller, smaller)), axes=[-2, -1])
    return linalg.matrix_diagonal(data, (*shape[:-2], smaller, smaller), node.dtype(0))


# fmt: off
ROWS: tuple[TensorflowRow, ...] = (
    TensorflowRow("MatrixInverse",         _inverse),
    TensorflowRow("MatrixSolve",           _solve),
    TensorflowRow("MatrixTriangularSolve", _triangular_solve),
    TensorflowRow("Cholesky",              _cholesky),
    TensorflowRow("Qr",                    _qr),
    TensorflowRow("Svd",                   _svd),
    TensorflowRow("SelfAdjointEigV2",      _eigh),
    TensorflowRow("MatrixDeterminant",     _determinant),
    TensorflowRow("LogMatrixDeterminant",  _log_determinant),
    *(TensorflowRow(f"MatrixDiag{v}",      _diag) for v in ("", "V2", "V3")),
    *(TensorflowRow(f"MatrixSetDiag{v}",   _set_diag) for v in ("", "V2", "V3")),
    *(TensorflowRow(f"MatrixDiagPart{v}",  _diag_part) for v in ("", "V2", "V3")),
)
# fmt: on
