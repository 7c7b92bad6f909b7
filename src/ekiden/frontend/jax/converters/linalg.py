"""Linear algebra: operations of StableHLO, and the functions of LAPACK that JAX calls.

What LAPACK says in `info` JAX turns into not-a-numbers itself.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from ekiden.frontend.common.complex import divided
from ekiden.frontend.common.matrices import transposed
from ekiden.frontend.jax.node import Converter, Node, Pair, Row, own
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, TupleGetItem, const
from ekiden.topi.shape import as_attr, as_dim, tidy


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
    """Of StableHLO: the lower factor, or the upper one."""
    data, rank = _wide(node, 0), _rank(node)
    if node.flag("lower"):
        return TupleGetItem(op.linalg.cholesky(data), 0)
    return transposed(TupleGetItem(op.linalg.cholesky(transposed(data, rank)), 0), rank)


def _wide(node: Node, index: int) -> Expr:
    """Return an input of floats in a dtype that is decomposed in."""
    is_half = node.dtype(index) in ("float16", "bfloat16")
    return op.cast(node.expr(index), "float32") if is_half else node.expr(index)


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
    a, b, rank = _wide(node, 0), _wide(node, 1), _rank(node)
    if turn == left:
        a, lower = transposed(a, rank), not lower
    if left:
        return op.linalg.solve_triangular(a, b, lower, unit)
    return transposed(op.linalg.solve_triangular(a, transposed(b, rank), lower, unit), rank)


def _complex_triangular_solve(node: Node) -> Pair:
    """The same of complex numbers, as a real system of twice the size: its rows are divided by the
    diagonal, so that that of 2 x 2 blocks (re, -im; im, re) has ones, and is triangular too.
    """
    kind = node.word("transpose_a")
    left, lower, unit = map(node.flag, ("left_side", "lower", "unit_diagonal"))
    rank = _rank(node)
    a, b = list(node.parts(0)), list(node.parts(1))
    if kind == "ADJOINT":
        a[1] = op.negative(a[1])
    if (kind != "NO_TRANSPOSE") == left:
        a, lower = [transposed(part, rank) for part in a], not lower
    if not left:
        b = [transposed(part, rank) for part in b]
    extent = node.shape(0)[-1]
    count = op.arange(0, extent, 1, dtype="int64")
    row, column = op.expand_dims(count, axis=1), op.expand_dims(count, axis=0)
    eye = op.cast(op.equal(row, column), node.dtype(0))
    if not unit:
        diagonal = [op.sum(op.multiply(p, eye), axis=[-1], keepdims=True) for p in a]
        whole = (node.shared(diagonal[0]), node.shared(diagonal[1]))
        a, b = list(divided((a[0], a[1]), whole)), list(divided((b[0], b[1]), whole))
    others = op.subtract(op.ones_like(eye), eye)
    a, b = [node.shared(op.multiply(p, others)) for p in a], [node.shared(p) for p in b]
    top = op.stack([a[0], op.negative(a[1])], axis=rank)
    bottom = op.stack([a[1], a[0]], axis=rank)
    batch, twice = node.shape(0)[:-2], tidy(as_dim(extent) * 2)
    columns = node.scope.typed(b[0]).shape[-1]
    blocks = op.stack([top, bottom], axis=rank - 1)
    system = op.reshape(blocks, as_attr((*batch, twice, twice)), allowzero=True)
    sides = op.reshape(
        op.stack(b, axis=rank - 1), as_attr((*batch, twice, columns)), allowzero=True
    )
    found = op.linalg.solve_triangular(system, sides, lower, True)
    apart = node.shared(op.reshape(found, as_attr((*batch, extent, 2, columns)), allowzero=True))
    real, imaginary = (op.take(apart, const(i, "int64"), axis=rank - 1) for i in (0, 1))
    if left:
        return real, imaginary
    return transposed(real, rank), transposed(imaginary, rank)


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
    Row(
        "stablehlo.triangular_solve",
        _triangular_solve,
        on_complex=own(_complex_triangular_solve),
    ),
    *(Row(f"custom_call:lapack_{t}{name}_ffi", row) for name, row in LAPACK.items() for t in "sd"),
)
