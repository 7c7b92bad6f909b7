"""Linear algebra: StableHLO operations, and the LAPACK custom calls that JAX emits on CPU.

JAX itself turns failures reported in LAPACK's `info` into NaN.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from ekiden.frontend.common.complex_arithmetic import complex_divide
from ekiden.frontend.common.linalg import transpose_matrix
from ekiden.frontend.jax.node import (
    ComplexPair,
    Converter,
    StablehloNode,
    StablehloRow,
    custom_complex_rule,
)
from ekiden.relay import op
from ekiden.relay.expr import Call, Expr, TupleGetItem, const
from ekiden.topi.dimensions import as_dim, simplify_dim, to_attr_dims


def _lapack_option(node: StablehloNode, name: str) -> str:
    """Return a LAPACK option letter, such as "U" or "N", from the call's backend config."""
    config = ir.DictAttr(node.attribute("mhlo.backend_config"))
    return chr(ir.IntegerAttr(config[name]).value & 0xFF)


def _rank(node: StablehloNode) -> int:
    return len(node.value(0).type.shape)


def _tuple_fields(outputs: Call, count: int) -> list[Expr]:
    return [TupleGetItem(outputs, position) for position in range(count)]


def _getrf(node: StablehloNode) -> list[Expr]:
    factors, pivots, _, info = _tuple_fields(op.linalg.lu_factor(node.expr(0)), 4)
    # LAPACK's pivots count from 1.
    return [factors, op.add(pivots, const(1, "int32")), info]


def _potrf(node: StablehloNode) -> list[Expr]:
    is_lower = _lapack_option(node, "uplo") == "L"
    # The operator reads lower triangles: the upper one of a matrix is that of its transpose.
    data = node.expr(0) if is_lower else transpose_matrix(node.expr(0), _rank(node))
    factor, info = _tuple_fields(op.linalg.cholesky(data), 2)
    return [factor if is_lower else transpose_matrix(factor, _rank(node)), info]


def _cholesky(node: StablehloNode) -> Expr:
    """Convert stablehlo.cholesky: the lower or the upper factor."""
    data, rank = _promote_half(node, 0), _rank(node)
    if node.bool_attribute("lower"):
        return TupleGetItem(op.linalg.cholesky(data), 0)
    return transpose_matrix(TupleGetItem(op.linalg.cholesky(transpose_matrix(data, rank)), 0), rank)


def _promote_half(node: StablehloNode, index: int) -> Expr:
    """Cast a half-precision input to float32, the narrowest dtype of decompositions."""
    is_half = node.dtype(index) in ("float16", "bfloat16")
    return op.cast(node.expr(index), "float32") if is_half else node.expr(index)


def _trsm(node: StablehloNode) -> Expr:
    sides = {"side": "L", "trans_x": "N", "uplo": "L", "diag": "N"}
    side, transpose_option, uplo, diagonal = (_lapack_option(node, name) for name in sides)
    return _solve_triangular(
        node, side == "L", uplo == "L", transpose_option != "N", diagonal == "U"
    )


def _triangular_solve(node: StablehloNode) -> Expr:
    """Convert stablehlo.triangular_solve: op(a) x = b or x op(a) = b."""
    is_transposed = node.enum_keyword("transpose_a") != "NO_TRANSPOSE"
    left_side, lower, unit = map(node.bool_attribute, ("left_side", "lower", "unit_diagonal"))
    return _solve_triangular(node, left_side, lower, is_transposed, unit)


def _solve_triangular(
    node: StablehloNode, left_side: bool, lower: bool, is_transposed: bool, unit: bool
) -> Expr:
    """Solve op(a) x = b; x op(a) = b is solved by transposing both sides."""
    a, b, rank = _promote_half(node, 0), _promote_half(node, 1), _rank(node)
    # x op(a) = b is solved as op(a)' x' = b', which transposes a once more.
    if is_transposed == left_side:
        a, lower = transpose_matrix(a, rank), not lower
    if left_side:
        return op.linalg.solve_triangular(a, b, lower, unit)
    return transpose_matrix(
        op.linalg.solve_triangular(a, transpose_matrix(b, rank), lower, unit), rank
    )


def _complex_triangular_solve(node: StablehloNode) -> ComplexPair:
    """Solve a complex triangular system as a real one of twice the size.

    Its rows are divided by the diagonal, so that the 2 x 2 blocks (re, -im; im, re) of the diagonal
    are the identity and the real system is triangular, too.
    """
    kind = node.enum_keyword("transpose_a")
    left_side, lower, unit = map(node.bool_attribute, ("left_side", "lower", "unit_diagonal"))
    rank = _rank(node)
    a, b = list(node.parts(0)), list(node.parts(1))
    # The adjoint is the transpose of the conjugate.
    if kind == "ADJOINT":
        a[1] = op.negative(a[1])
    if (kind != "NO_TRANSPOSE") == left_side:
        a, lower = [transpose_matrix(component, rank) for component in a], not lower
    if not left_side:
        b = [transpose_matrix(component, rank) for component in b]
    extent = node.shape(0)[-1]
    count = op.arange(0, extent, 1, dtype="int64")
    row, column = op.expand_dims(count, axis=1), op.expand_dims(count, axis=0)
    eye = op.cast(op.equal(row, column), node.dtype(0))
    if not unit:
        # Dividing the rows by the diagonal first makes the real blocks on it identities: a unit
        # triangular system.
        diagonal = [op.sum(op.multiply(p, eye), axis=[-1], keepdims=True) for p in a]
        diagonal_pair = (node.emit_once(diagonal[0]), node.emit_once(diagonal[1]))
        a, b = (
            list(complex_divide((a[0], a[1]), diagonal_pair)),
            list(complex_divide((b[0], b[1]), diagonal_pair)),
        )
    off_diagonal = op.subtract(op.ones_like(eye), eye)
    a, b = [node.emit_once(op.multiply(p, off_diagonal)) for p in a], [node.emit_once(p) for p in b]
    # Each entry a + ib becomes the block [[a, -b], [b, a]], which keeps the matrix triangular by 2
    # x 2 blocks.
    top = op.stack([a[0], op.negative(a[1])], axis=rank)
    bottom = op.stack([a[1], a[0]], axis=rank)
    batch, twice = node.shape(0)[:-2], simplify_dim(as_dim(extent) * 2)
    columns = node.scope.tensor_type_of(b[0]).shape[-1]
    blocks = op.stack([top, bottom], axis=rank - 1)
    system = op.reshape(blocks, to_attr_dims((*batch, twice, twice)), allowzero=True)
    sides = op.reshape(
        op.stack(b, axis=rank - 1), to_attr_dims((*batch, twice, columns)), allowzero=True
    )
    solution = op.linalg.solve_triangular(system, sides, lower, True)
    apart = node.emit_once(
        op.reshape(solution, to_attr_dims((*batch, extent, 2, columns)), allowzero=True)
    )
    real, imaginary = (op.take(apart, const(i, "int64"), axis=rank - 1) for i in (0, 1))
    if left_side:
        return real, imaginary
    return transpose_matrix(real, rank), transpose_matrix(imaginary, rank)


def _geqrf(node: StablehloNode) -> list[Expr]:
    return _tuple_fields(op.linalg.geqrf(node.expr(0)), 2)


def _orgqr(node: StablehloNode) -> Expr:
    return op.linalg.householder_product(node.expr(0), node.expr(1))


def _zero_info(node: StablehloNode) -> Expr:
    """Emit info = 0 for each matrix: Jacobi iterations always converge."""
    batch = node.value(0).type.shape[:-2]
    return op.zeros(batch, "int32")


def _syevd(node: StablehloNode) -> list[Expr]:
    values, vectors = _tuple_fields(
        op.linalg.eigh(node.expr(0), _lapack_option(node, "uplo") == "L"), 2
    )
    return [vectors, values, _zero_info(node)]


def _gesdd(node: StablehloNode) -> list[Expr]:
    left_vectors, values, right_vectors = _tuple_fields(
        op.linalg.svd(node.expr(0), _lapack_option(node, "mode") == "A"), 3
    )
    # LAPACK's first output is its overwritten input, which JAX ignores.
    return [node.expr(0), values, left_vectors, right_vectors, _zero_info(node)]


LAPACK_CONVERTERS: dict[str, Converter] = {
    "getrf": _getrf,
    "potrf": _potrf,
    "trsm": _trsm,
    "geqrf": _geqrf,
    "orgqr": _orgqr,
    "syevd": _syevd,
    "gesdd": _gesdd,
}
"""Of matrices of real numbers, by the name without its letter for the dtype."""
ROWS: tuple[StablehloRow, ...] = (
    StablehloRow("stablehlo.cholesky", _cholesky),
    StablehloRow(
        "stablehlo.triangular_solve",
        _triangular_solve,
        make_complex_rule=custom_complex_rule(_complex_triangular_solve),
    ),
    *(
        StablehloRow(f"custom_call:lapack_{t}{name}_ffi", row)
        for name, row in LAPACK_CONVERTERS.items()
        for t in "sd"
    ),
)
