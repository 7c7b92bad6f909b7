"""Linear solves, inverses and determinants by LU and QR decomposition.

Matrices are the last two axes; their shapes are given beside them, as importers know them.
"""

from __future__ import annotations

from ekiden.ir.prim import maximum, minimum
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem, const
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Shape, simplify_dim, to_attr_dims

SINGULAR_MESSAGE = "is 0: the matrix is singular"
NOT_POSITIVE_DEFINITE_MESSAGE = "is not positive: the matrix is not positive definite"


@dataclass(frozen=True, slots=True)
class LuFactors:
    """LU factorisation as `linalg.lu_factor` returns it."""

    packed: Expr
    pivots: Expr
    order: Expr
    info: Expr

    @classmethod
    def factorize(cls, matrix: Expr) -> LuFactors:
        """Factorise matrices [.., n, n]."""
        outputs = op.linalg.lu_factor(matrix)
        return cls(*(TupleGetItem(outputs, position) for position in range(4)))

    def require_nonsingular(self, subject: str) -> LuFactors:
        """Return the factors with a run-time check that raises LinAlgError where a matrix is
        singular.

        `subject` begins the message: "linalg.inv: pivot".
        """
        packed = op.linalg.checked(self.packed, self.info, subject, SINGULAR_MESSAGE)
        return LuFactors(packed, self.pivots, self.order, self.info)

    def solve(self, right: Expr, shape: Shape) -> Expr:
        """Solve a x = right for right [..., n, k] of that shape."""
        rows = _gather_rows(right, self.order, shape)
        half = op.linalg.solve_triangular(self.packed, rows, lower=True, unit_diagonal=True)
        return op.linalg.solve_triangular(self.packed, half, lower=False)

    def solve_transposed(self, right: Expr, shape: Shape) -> Expr:
        """Solve a' x = right for right [..., n, k]."""
        turned = transpose_matrix(self.packed, len(shape))
        # a = P L U gives a' = U' L' P': solve with U', then with L', then undo the permutation.
        half = op.linalg.solve_triangular(turned, right, lower=True)
        rows = op.linalg.solve_triangular(turned, half, lower=False, unit_diagonal=True)
        return _gather_rows(rows, op.argsort(self.order, axis=-1, dtype="int32"), shape)


def _gather_rows(data: Expr, rows: Expr, shape: Shape) -> Expr:
    """Gather rows of [.., n, k]: row i of the result is row rows[.., i]."""
    if len(shape) == 2:
        return op.take(data, rows, axis=0)
    indices = op.broadcast_to(op.expand_dims(rows, -1), to_attr_dims(shape))
    return op.gather(data, len(shape) - 2, indices)


def transpose_matrix(matrix: Expr, rank: int) -> Expr:
    """Swap the last two axes."""
    return op.transpose(matrix, [*range(rank - 2), rank - 1, rank - 2])


def identity_matrix(shape: Shape, dtype: str) -> Expr:
    """Emit identity matrices of that shape."""
    rows, columns = (op.arange(0, d, 1, "int64") for d in shape[-2:])
    eye = op.cast(op.equal(op.expand_dims(rows, 1), columns), dtype)
    return eye if len(shape) == 2 else op.broadcast_to(eye, to_attr_dims(shape))


def matrix_diagonal(matrix: Expr, shape: Shape, dtype: str) -> Expr:
    """Return the diagonals [.., n] of square matrices [.., n, n]."""
    ones = identity_matrix(shape[-2:], "bool")
    return op.sum(op.where(ones, matrix, const(0, dtype)), axis=[-1], keepdims=False)


def lu_slogdet(factors: LuFactors, shape: Shape, dtype: str) -> tuple[Expr, Expr]:
    """Return the sign of the determinants [..] and the logarithm of their absolute value
    (slogdet).
    """
    pivots = matrix_diagonal(factors.packed, shape, dtype)
    signs = op.prod(op.sign(pivots), axis=[-1], keepdims=False)
    logs = op.sum(op.log(op.abs(pivots)), axis=[-1], keepdims=False)
    return op.multiply(signs, _parity(factors, shape, dtype)), logs


def lu_determinant(factors: LuFactors, shape: Shape, dtype: str) -> Expr:
    """Return the determinants [..]: the product of U's diagonal times the permutation's parity."""
    pivot_product = op.prod(
        matrix_diagonal(factors.packed, shape, dtype), axis=[-1], keepdims=False
    )
    return op.multiply(pivot_product, _parity(factors, shape, dtype))


def _parity(factors: LuFactors, shape: Shape, dtype: str) -> Expr:
    """Emit the parity of the row permutation: -1 for an odd number of exchanges, else 1."""
    # LAPACK's pivots name the row exchanged with row i: each i with another pivot is one
    # transposition.
    has_moved = op.not_equal(factors.pivots, op.arange(0, shape[-1], 1, "int32"))
    steps = op.where(has_moved, const(-1, dtype), const(1, dtype))
    return op.prod(steps, axis=[-1], keepdims=False)


def unpack_lu(factors: LuFactors, shape: Shape, dtype: str) -> tuple[Expr, Expr]:
    """Return L [.., m, min(m, n)] and U [.., min(m, n), n] from the packed factors."""
    rows, columns = shape[-2:]
    rank_bound = simplify_dim(minimum(rows, columns))
    lower_part = op.strided_slice(factors.packed, [0], to_attr_dims([rank_bound]), axes=[-1])
    below = op.trilu(lower_part, const(-1, "int64"), upper=False)
    ones = identity_matrix((*shape[:-2], rows, rank_bound), dtype)
    right = op.strided_slice(factors.packed, [0], to_attr_dims([rank_bound]), axes=[-2])
    return op.add(below, ones), op.trilu(right, const(0, "int64"), upper=True)


def permutation_matrix(factors: LuFactors, shape: Shape, dtype: str) -> Expr:
    """Return the permutation matrix P [.., m, m] of P L U."""
    rows = op.expand_dims(factors.order, -2)
    columns = op.expand_dims(op.arange(0, shape[-2], 1, "int32"), 1)
    return op.cast(op.equal(rows, columns), dtype)


def qr_decomposition(matrix: Expr, shape: Shape, complete: bool = False) -> tuple[Expr, Expr]:
    """Return Q [.., m, k] and R [.., k, n] with k = min(m, n), or m where `complete`."""
    rows, columns = shape[-2:]
    rank_bound = simplify_dim(minimum(rows, columns))
    outputs = op.linalg.geqrf(matrix)
    packed, tau = TupleGetItem(outputs, 0), TupleGetItem(outputs, 1)
    right = op.trilu(packed, const(0, "int64"), upper=True)
    if complete:
        # Householder vectors beyond those of geqrf are zero: Q is completed to m columns by
        # padding.
        missing = simplify_dim(maximum(rows - columns, 0))
        widths = [(0, 0)] * (len(shape) - 1) + [(0, missing)]
        wide = op.nn.pad(packed, [to_attr_dims(w) for w in widths])
        reflectors = op.strided_slice(wide, [0], to_attr_dims([rows]), axes=[-1])
        return op.linalg.householder_product(reflectors, tau), right
    reflectors = op.strided_slice(packed, [0], to_attr_dims([rank_bound]), axes=[-1])
    right = op.strided_slice(right, [0], to_attr_dims([rank_bound]), axes=[-2])
    return op.linalg.householder_product(reflectors, tau), right
