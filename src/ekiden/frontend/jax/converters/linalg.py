"""Linear algebra: operations of StableHLO, and the functions of LAPACK that JAX calls.

What LAPACK says in `info` JAX turns into not-a-numbers itself.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from ekiden.frontend.common.matrices import transposed
from ekiden.frontend.jax.node import Converter, Node, Row
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, TupleGetItem, const


def _char(node: Node, name: str) -> str:
    """An argument of LAPACK, which is a letter: "U", "N"."""
    config = ir.DictAttr(node.attribute("mhlo.backend_config"))
    return chr(ir.IntegerAttr(config[name]).value & 0xFF)


def _rank(node: Node) -> int:
    return len(node.value(0).type.shape)


def _fields(found: Call, count: int) -> list[Expr]:
    return [TupleGetItem(found, at) for at in range(count)]


def _getrf(node: Node) -> list[Expr]:
    factors, pivots, _, info = _fields(op.linalg.lu_factor(node.expr(0)), 4)
    return [factors, op.add(pivots, const(1, "int32")), info]


def _potrf(node: Node) -> list[Expr]:
    is_lower = _char(node, "uplo") == "L"
    data = node.expr(0) if is_lower else transposed(node.expr(0), _rank(node))
    factor, info = _fields(op.linalg.cholesky(data), 2)
    return [factor if is_lower else transposed(factor, _rank(node)), info]


def _cholesky(node: Node) -> Expr:
    return TupleGetItem(op.linalg.cholesky(node.expr(0)), 0)


def _trsm(node: Node) -> Expr:
    sides = {"side": "L", "trans_x": "N", "uplo": "L", "diag": "N"}
    side, turn, uplo, diagonal = (_char(node, name) for name in sides)
    return _solved(node, side == "L", uplo == "L", turn != "N", diagonal == "U")


def _triangular_solve(node: Node) -> Expr:
    """Of StableHLO: op(a) x = b or x op(a) = b."""
    turn = node.word("transpose_a") != "NO_TRANSPOSE"
    left, lower, unit = map(node.flag, ("left_side", "lower", "unit_diagonal"))
    return _solved(node, left, lower, turn, unit)


def _solved(node: Node, left: bool, lower: bool, turn: bool, unit: bool) -> Expr:
    """op(a) x = b; of x op(a) = b both sides are transposed."""
    a, b, rank = node.expr(0), node.expr(1), _rank(node)
    if turn == left:
        a, lower = transposed(a, rank), not lower
    if left:
        return op.linalg.solve_triangular(a, b, lower, unit)
    return transposed(op.linalg.solve_triangular(a, transposed(b, rank), lower, unit), rank)


def _geqrf(node: Node) -> list[Expr]:
    return _fields(op.linalg.geqrf(node.expr(0)), 2)


def _orgqr(node: Node) -> Expr:
    return op.linalg.householder_product(node.expr(0), node.expr(1))


def _no_info(node: Node) -> Expr:
    """0 for each matrix: Jacobi's rotations always come to an end."""
    batch = node.value(0).type.shape[:-2]
    return op.zeros(batch, "int32")


def _syevd(node: Node) -> list[Expr]:
    values, vectors = _fields(op.linalg.eigh(node.expr(0), _char(node, "uplo") == "L"), 2)
    return [vectors, values, _no_info(node)]


def _gesdd(node: Node) -> list[Expr]:
    left, values, right = _fields(op.linalg.svd(node.expr(0), _char(node, "mode") == "A"), 3)
    return [node.expr(0), values, left, right, _no_info(node)]


LAPACK: dict[str, Converter] = {
    "getrf": _getrf,
    "potrf": _potrf,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "syevd": _syevd,
    "gesdd": _gesdd,
}
"""Of matrices of real numbers, by the name without its letter for the dtype."""
ROWS: tuple[Row, ...] = (
    Row("stablehlo.cholesky", _cholesky),
    Row("stablehlo.triangular_solve", _triangular_solve),
    *(Row(f"custom_call:lapack_{t}{name}_ffi", row) for name, row in LAPACK.items() for t in "sd"),
)
