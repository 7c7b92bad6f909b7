"""Linear algebra operators: factorisations, triangular solves, eigen- and singular value
decompositions.

Matrices are the last two axes, the axes before a batch. What a decomposition could not do it says
in a result of its own, `info`, as LAPACK does; `checked` makes a run fail by it.
"""

from __future__ import annotations

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpPattern
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, check_info
from ekiden.relay.op._declare_topi import declare_topi_op


@node("relay.attrs.CheckedAttrs")
class CheckedAttrs(Attrs):
    """Attributes of linalg.checked: the error message's parts before and after the index."""

    subject: str = ""
    problem: str = ""


@node("relay.attrs.SolveTriangularAttrs")
class SolveTriangularAttrs(Attrs):
    """Attributes of solve_triangular: whether the matrix is lower triangular and unit-diagonal."""

    lower: bool = True
    unit_diagonal: bool = False


@node("relay.attrs.EighAttrs")
class EighAttrs(Attrs):
    """Attributes of eigh: which triangle is read."""

    lower: bool = True


@node("relay.attrs.SvdAttrs")
class SvdAttrs(Attrs):
    """Attributes of svd: whether to return full square U and V'."""

    full_matrices: bool = True


def _check_info_reference(attrs: CheckedAttrs, data: Array, info: Array) -> Array:
    check_info(attrs.subject, info, attrs.problem)
    return data


declare_topi_op("linalg.checked", ("data", "info"),
        lambda attrs, data, info: topi.linalg.checked(data, info, attrs.subject, attrs.problem),
        "the type of data", CheckedAttrs, OpPattern.INJECTIVE, _check_info_reference,
        takes={"info": "integer"}, refuses=True)  # fmt: skip
declare_topi_op("linalg.lu_factor", ("data",), lambda attrs, data: topi.linalg.lu_factor(data),
        "a tuple: factors, data's type; int32 pivots [.., min(m, n)], order [.., m], info [..]",
        fields=4)  # fmt: skip
declare_topi_op("linalg.cholesky", ("data",), lambda attrs, data: topi.linalg.cholesky(data),
        "a tuple: the factor, the type of data; int32 info [..]", fields=2)  # fmt: skip
declare_topi_op(
    "linalg.solve_triangular",
    ("a", "b"),
    lambda attrs, a, b: topi.linalg.solve_triangular(a, b, attrs.lower, attrs.unit_diagonal),
    "the type of b",
    SolveTriangularAttrs,
)
declare_topi_op("linalg.geqrf", ("data",), lambda attrs, data: topi.linalg.geqrf(data),
        "a tuple: what is packed, the type of data; tau [.., min(m, n)]", fields=2)  # fmt: skip
declare_topi_op("linalg.householder_product", ("packed", "tau"),
        lambda attrs, packed, tau: topi.linalg.householder_product(packed, tau),
        "the type of packed")  # fmt: skip
declare_topi_op("linalg.eigh", ("data",), lambda attrs, data: topi.linalg.eigh(data, attrs.lower),
        "a tuple: eigenvalues [.., n], eigenvectors [.., n, n]", EighAttrs, fields=2)  # fmt: skip
declare_topi_op(
    "linalg.svd",
    ("data",),
    lambda attrs, data: topi.linalg.svd(data, attrs.full_matrices),
    "a tuple: U, singular values [.., min(m, n)], V'",
    SvdAttrs,
    fields=3,
)
declare_topi_op("linalg.matrix_exp", ("data",), lambda attrs, data: topi.linalg.matrix_exp(data),
        "the type of data")  # fmt: skip


def checked(data: Expr, info: Expr, subject: str, problem: str) -> Call:
    """Return `data` after a run-time check of the LAPACK status `info`.

    A run fails with LinAlgError, "SUBJECT number at position PROBLEM", if an element of `info` is
    not 0.
    """
    return call_op("linalg.checked", data, info, attrs=CheckedAttrs(subject, problem))


def lu_factor(data: Expr) -> Call:
    """Return the LU factorisation with partial pivoting, packed in one matrix.

    Further results are the row that each row was exchanged with, the final order of rows, both from
    0, and the number of the first pivot that is 0, from 1, or 0. LAPACK's getrf.
    """
    return call_op("linalg.lu_factor", data)


def cholesky(data: Expr) -> Call:
    """Return the Cholesky factor L (L L' = A) of symmetric matrices, and a status.

    Only the lower triangle is read. The status is the order of the first leading minor that is not
    positive, or 0; L has not-a-numbers from that order on. LAPACK's potrf.
    """
    return call_op("linalg.cholesky", data)


def solve_triangular(a: Expr, b: Expr, lower: bool = True, unit_diagonal: bool = False) -> Call:
    """Solve a x = b for triangular a [.., n, n] and b [.., n, k]."""
    return call_op(
        "linalg.solve_triangular", a, b, attrs=SolveTriangularAttrs(lower, unit_diagonal)
    )


def geqrf(data: Expr) -> Call:
    """Return the QR factorisation in Householder form: R with the reflectors below its diagonal,
    and their factors.

    LAPACK's geqrf.
    """
    return call_op("linalg.geqrf", data)


def householder_product(packed: Expr, tau: Expr) -> Call:
    """Return the leading columns of the product of Householder reflectors.

    LAPACK's orgqr.
    """
    return call_op("linalg.householder_product", packed, tau)


def eigh(data: Expr, lower: bool = True) -> Call:
    """Return the eigenvalues of symmetric matrices in ascending order, and the eigenvectors.

    Eigenvectors are orthonormal columns, of either sign.
    """
    return call_op("linalg.eigh", data, attrs=EighAttrs(lower))


def svd(data: Expr, full_matrices: bool = True) -> Call:
    """Return the singular value decomposition U, S (descending), V'."""
    return call_op("linalg.svd", data, attrs=SvdAttrs(full_matrices))


def matrix_exp(data: Expr) -> Call:
    """Return the matrix exponentials of square matrices."""
    return call_op("linalg.matrix_exp", data)


__all__ = [
    "checked", "cholesky", "eigh", "geqrf", "householder_product", "lu_factor", "matrix_exp",
    "solve_triangular", "svd",
]  # fmt: skip
