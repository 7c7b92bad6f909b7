"""Linear algebra: matrix decompositions and solvers (LU, Cholesky, QR, eigenvectors, singular
values).

Matrices of a batch run in parallel. What is worked on lies by rows, each padded to whole vectors,
so that nearly all of it is sums of rows and products of two. G. H. Golub, C. F. Van Loan: Matrix
Computations, 4th edition (2013), sections 3.4 (LU with partial pivoting), 4.2 (Cholesky), 5.2 (QR
by reflections), 8.5 and 8.6.3 (Jacobi's rotations).
"""

from __future__ import annotations

from ekiden.topi.linalg.jacobi import eigh, svd
from ekiden.topi.linalg.lapack_status import checked
from ekiden.topi.linalg.matrix_exponential import matrix_exp
from ekiden.topi.linalg.qr import geqrf, householder_product
from ekiden.topi.linalg.triangular import cholesky, det, lu_factor, solve_triangular

__all__ = [
    "checked", "cholesky", "det", "eigh", "geqrf", "householder_product", "lu_factor", "matrix_exp",
    "solve_triangular", "svd",
]  # fmt: skip
