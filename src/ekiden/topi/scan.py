"""Scan operators: cumulative sums, products and extrema.

Rows run in parallel; along the axis, neighbours of the inner axes go together. A scan could be made
parallel along its axis (Blelloch 1990) by twice the work; with a few threads and many rows it is
not, but on devices whose threads have warps (`kernels.gpu.scan`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden import te
from ekiden.ir import dtype as dt
from ekiden.ir.prim import ExprLike, PrimExpr, Var, cast, const, convert, minimum
from ekiden.kernels.cpu.loops import LoopAxis, estimated_product, parallel_outer_loops
from ekiden.kernels.gpu.scan import SCAN_ATTR_KEY, ScanSpec
from ekiden.te import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, Stmt, seq
from ekiden.topi.dimensions import normalize_axis, product_of_dims
from ekiden.topi.elementwise import elementwise
from ekiden.topi.reduce import accumulator_dtype
from ekiden.topi.transform import reshape

ScanOperation = Callable[[PrimExpr, PrimExpr], PrimExpr]


def scanop(
    data: Tensor,
    binop: ScanOperation,
    identity_value: ExprLike,
    op_name: str,
    axis: int | None = None,
    dtype: str | None = None,
    exclusive: bool | None = None,
) -> Tensor:
    """Return `binop` over all elements up to each one along an axis (None: of the flattened data).
    `exclusive` leaves out the element itself, so that the first result is the identity. `binop`
    must be associative.
    """
    if axis is None:
        data, axis = data if data.ndim == 1 else reshape(data, (product_of_dims(data.shape),)), 0
    axis_index, kind = normalize_axis(axis, data.ndim, op_name), dtype or data.dtype
    start = cast(convert(identity_value), kind)

    def emit_scanop(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Emit the scan over its buffers."""
        return _emit_scan(ins[0], outs[0], binop, start, axis_index, bool(exclusive))

    fixed = {SCAN_ATTR_KEY: ScanSpec(binop, start, axis_index, bool(exclusive))}
    return te.extern_op([data.shape], [data], emit_scanop, [kind], name=op_name, attrs=fixed)[0]


def _emit_scan(
    source: Buffer,
    target: Buffer,
    binop: ScanOperation,
    start: PrimExpr,
    axis: int,
    exclusive: bool,
) -> Stmt:
    """Emit target[0] = first; target[k] = target[k - 1] + source[k], or source[k - 1] if
    exclusive.
    """
    axes = [LoopAxis(Var(f"i{n}"), d) for n, d in enumerate(source.shape)]
    indices = [a.var for a in axes]
    inner = axes[axis + 1 :]

    def full_index(index: PrimExpr) -> tuple[PrimExpr, ...]:
        return (*indices[:axis], index, *indices[axis + 1 :])

    k = indices[axis]
    first = start if exclusive else cast(source[full_index(const(0))], target.dtype)
    added = cast(source[full_index(k - 1 if exclusive else k)], target.dtype)
    last = target[full_index(k - 1)]
    carried: list[Buffer] = []
    if not inner:  # in a register: store-to-load forwarding takes 8 cycles and more
        carried = [Buffer("running", (const(1),), target.dtype, "register")]
        last = carried[0][(const(0),)]

    def store_result(value: PrimExpr, index: PrimExpr) -> Stmt:
        """Store an element of the result, from which the next one is computed."""
        register_stores = [BufferStore(register, value, (const(0),)) for register in carried]
        return seq(
            *register_stores,
            BufferStore(target, last if register_stores else value, full_index(index)),
        )

    extent = source.shape[axis]
    # The first element is stored only where the axis has one.
    empty_or_one = minimum(extent, 1)
    body = seq(
        *(BufferStore(register, start, (const(0),)) for register in carried),
        For(Var("first"), const(0), empty_or_one, ForKind.SERIAL,
            _nest_inner_axes(inner, store_result(first, const(0)))),
        For(k, const(1), extent - empty_or_one, ForKind.SERIAL,
            _nest_inner_axes(inner, store_result(binop(last, added), k))),
    )  # fmt: skip
    for init_buffer in carried:
        body = Allocate(init_buffer, body)
    return parallel_outer_loops(axes[:axis], estimated_product(source.shape[axis:]), body)


def _nest_inner_axes(axes: Sequence[LoopAxis], body: Stmt) -> Stmt:
    """Wrap a body in loops over the inner axes, the last one vectorised."""
    for n, axis in enumerate(reversed(axes)):
        kind = ForKind.SERIAL if n else ForKind.VECTORIZED
        body = For(axis.var, const(0), axis.extent, kind, body, None if n else {"lanes": 16})
    return body


def cumsum(
    data: Tensor,
    axis: int | None = None,
    dtype: str | None = None,
    exclusive: bool | None = None,
) -> Tensor:
    """Return running sums along an axis (None: of the flattened data)."""
    return _scan_by_operator(data, lambda a, b: a + b, 0, "cumsum", axis, dtype, exclusive)


def cumprod(
    data: Tensor,
    axis: int | None = None,
    dtype: str | None = None,
    exclusive: bool | None = None,
) -> Tensor:
    """Return running products along an axis (None: of the flattened data)."""
    return _scan_by_operator(data, lambda a, b: a * b, 1, "cumprod", axis, dtype, exclusive)


def cummax(
    data: Tensor,
    axis: int | None = None,
    dtype: str | None = None,
    exclusive: bool | None = None,
) -> Tensor:
    """Return running maxima along an axis (None: of the flattened data); NaN from the first on."""
    kind = dtype or data.dtype
    return scanop(data, te.max, te.min_value(kind), "cummax", axis, kind, exclusive)


def cummin(
    data: Tensor,
    axis: int | None = None,
    dtype: str | None = None,
    exclusive: bool | None = None,
) -> Tensor:
    """Return running minima along an axis (None: of the flattened data); NaN from the first on."""
    kind = dtype or data.dtype
    return scanop(data, te.min, te.max_value(kind), "cummin", axis, kind, exclusive)


def _scan_by_operator(
    data: Tensor,
    binop: ScanOperation,
    start: int,
    name: str,
    axis: int | None,
    dtype: str | None,
    exclusive: bool | None,
) -> Tensor:
    kind = dtype or data.dtype
    # In half precision every step would round: floats run wide and are cast once, at the end.
    wide = accumulator_dtype(kind) if dt.is_float(kind) else kind
    scanned = scanop(data, binop, start, name, axis, wide, exclusive)
    return scanned if wide == kind else elementwise(scanned, lambda v: cast(v, kind), "cast")


__all__ = ["cummax", "cummin", "cumprod", "cumsum", "scanop"]
