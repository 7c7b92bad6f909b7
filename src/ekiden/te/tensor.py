"""Tensor expressions: what each element of a tensor is, as a function of its indices.

Operation = PlaceholderOp | ComputeOp | ExternOp PrimExpr gains ProducerLoad (an element of a
tensor), ReduceAxis (a variable with a range) and Reduce (only as a whole body)
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence

from ekiden.ir import dtype as dt
from ekiden.ir.node import Node, node
from ekiden.ir.prim import ExprLike, IntImm, PrimExpr, Var, const, convert, is_const
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import IterKind, IterVar, Stmt

REDUCERS = ("sum", "prod", "max", "min")


class Operation(Node):
    """What makes tensors."""

    __slots__ = ()
    name: str
    tag: str
    attrs: Mapping[str, object]


@node("te.PlaceholderOp")
class PlaceholderOp(Operation):
    """An input."""

    name: str
    tag: str
    attrs: Mapping[str, object]


@node("te.ComputeOp")
class ComputeOp(Operation):
    """One expression per output over the same axes; either all are plain or all are a Reduce over
    the same axes.
    """

    name: str
    tag: str
    attrs: Mapping[str, object]
    axis: tuple[IterVar, ...]
    body: tuple[PrimExpr, ...]

    @property
    def reduce_axis(self) -> tuple[ReduceAxis, ...]:
        """The axes that are reduced; empty for a plain computation."""
        first = self.body[0]
        return first.axis if isinstance(first, Reduce) else ()


@node("te.ExternOp")
class ExternOp(Operation):
    """A computation written as statements over the buffers of its inputs and outputs; never inlined
    or rescheduled.
    """

    name: str
    tag: str
    attrs: Mapping[str, object]
    inputs: tuple[Tensor, ...]
    input_buffers: tuple[Buffer, ...]
    output_buffers: tuple[Buffer, ...]
    body: Stmt


@node("te.Tensor")
class Tensor(Node):
    """An output of an operation. `t[i, j]` is an element of it; a rank 0 tensor's is `t[()]`."""

    op: Operation
    value_index: int
    shape: tuple[PrimExpr, ...]
    dtype: str

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self.op.name

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __getitem__(self, indices: ExprLike | Sequence[ExprLike]) -> ProducerLoad:
        many = (indices,) if isinstance(indices, (PrimExpr, int)) else tuple(indices)  # type: ignore[arg-type]
        if len(many) != len(self.shape):
            raise ValueError(
                f"tensor {self.name!r}: expected {len(self.shape)} indices, got {len(many)}"
            )
        return ProducerLoad(self, tuple(convert(i, "int64") for i in many), self.dtype)

    def __call__(self, *indices: ExprLike) -> ProducerLoad:
        """`t(i, j)` is `t[i, j]`."""
        return self[indices]


@node("te.ProducerLoad")
class ProducerLoad(PrimExpr):
    """An element of a tensor."""

    producer: Tensor
    indices: tuple[PrimExpr, ...]
    dtype: str


@node("te.ReduceAxis")
class ReduceAxis(Var):
    """A variable that a reduction runs over [0, extent)."""

    extent: PrimExpr = IntImm(1)

    @property
    def var(self) -> ReduceAxis:
        """The axis itself, which is a variable."""
        return self


@node("te.Reduce")
class Reduce(PrimExpr):
    """The combination of `source` over all values of `axis`; kind is one of REDUCERS."""

    kind: str
    source: PrimExpr
    axis: tuple[ReduceAxis, ...]
    dtype: str


def identity(kind: str, dtype: str) -> PrimExpr:
    """The value that a reduction of nothing has, and that it starts from."""
    if kind in ("sum", "prod"):
        return const(0 if kind == "sum" else 1, dtype)
    sign = -1 if kind == "max" else 1
    if dt.is_float(dtype):
        return const(sign * math.inf, dtype)
    if dtype == "bool":
        return const(kind == "min", dtype)
    bits = dt.SCALAR_BITS[dtype]
    low, high = (
        (0, 2**bits - 1) if dt.is_unsigned(dtype) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    )
    return const(low if kind == "max" else high, dtype)


def placeholder(shape: Sequence[ExprLike], dtype: str = "float32", name: str = "x") -> Tensor:
    """An input tensor."""
    return Tensor(PlaceholderOp(name, "", {}), 0, tuple(convert(d, "int64") for d in shape), dtype)


def reduce_axis(dom: tuple[ExprLike, ExprLike], name: str = "k") -> ReduceAxis:
    """A variable over [0, extent) to reduce over; `dom` is (0, extent)."""
    if not is_const(convert(dom[0], "int64"), 0):
        raise ValueError(f"reduce_axis {name!r}: expected a range that starts at 0, got {dom!r}")
    return ReduceAxis(name, "int64", convert(dom[1], "int64"))


def _axis_names(fcompute: Callable[..., object], rank: int) -> list[str]:
    parameters = [
        p for p in inspect.signature(fcompute).parameters.values() if p.default is p.empty
    ]
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return [f"i{n}" for n in range(rank)]
    if len(parameters) != rank:
        raise ValueError(
            f"compute: expected a function of {rank} indices, got one of {len(parameters)}"
        )
    return [p.name for p in parameters]


def _check_reduce(name: str, bodies: Sequence[PrimExpr]) -> None:
    reduces = [b for b in bodies if isinstance(b, Reduce)]
    if (reduces and any(b.axis != reduces[0].axis for b in reduces)) or len(reduces) not in (
        0,
        len(bodies),
    ):
        raise ValueError(
            f"compute {name!r}: the outputs of one reduction must reduce over the same axes"
        )


def compute_op(
    shape: Sequence[ExprLike],
    fcompute: Callable[..., ExprLike | Sequence[ExprLike]],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> tuple[Tensor, ...]:
    """As `compute`, for a function that gives a sequence of expressions: one tensor for each."""
    dims = tuple(convert(d, "int64") for d in shape)
    names = _axis_names(fcompute, len(dims))
    axis = tuple(IterVar(Var(n), d, IterKind.SPATIAL) for n, d in zip(names, dims, strict=True))
    result = fcompute(*(a.var for a in axis))
    many = (result,) if isinstance(result, (PrimExpr, int, float)) else tuple(result)
    bodies = tuple(convert(each) for each in many)
    _check_reduce(name, bodies)
    op = ComputeOp(name, tag, dict(attrs or {}), axis, bodies)
    return tuple(Tensor(op, n, dims, body.dtype) for n, body in enumerate(bodies))


def compute(
    shape: Sequence[ExprLike],
    fcompute: Callable[..., ExprLike],
    name: str = "compute",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> Tensor:
    """The tensor whose element at (i, j, ...) is `fcompute(i, j, ...)`.

    A reduction (`te.sum(...)`) must be the whole expression; what follows it is another compute.
    `tag` and `attrs` tell schedule rules what the computation is. Raises ValueError when the ranks
    differ.
    """
    return compute_op(shape, fcompute, name, tag, attrs)[0]


def extern(
    shapes: Sequence[Sequence[ExprLike]],
    inputs: Sequence[Tensor],
    fbuild: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt],
    dtypes: Sequence[str],
    name: str = "extern",
    tag: str = "extern",
    attrs: Mapping[str, object] | None = None,
) -> tuple[Tensor, ...]:
    """Tensors filled by statements: `fbuild(input_buffers, output_buffers)`.

    For scans, sorts and searches.
    """
    dims = [tuple(convert(d, "int64") for d in shape) for shape in shapes]
    ins = tuple(Buffer(t.name, t.shape, t.dtype) for t in inputs)
    outs = tuple(Buffer(name, d, t) for d, t in zip(dims, dtypes, strict=True))
    op = ExternOp(name, tag, dict(attrs or {}), tuple(inputs), ins, outs, fbuild(ins, outs))
    return tuple(Tensor(op, n, b.shape, b.dtype) for n, b in enumerate(outs))


def _reduce(kind: str, expr: PrimExpr, axis: ReduceAxis | Sequence[ReduceAxis]) -> PrimExpr:
    many = (axis,) if isinstance(axis, ReduceAxis) else tuple(axis)
    return Reduce(kind, expr, many, expr.dtype) if many else expr


def sum(expr: PrimExpr, axis: ReduceAxis | Sequence[ReduceAxis]) -> PrimExpr:
    """The sum over `axis`; 0 if it is empty."""
    return _reduce("sum", expr, axis)


def prod(expr: PrimExpr, axis: ReduceAxis | Sequence[ReduceAxis]) -> PrimExpr:
    """The product over `axis`; 1 if it is empty."""
    return _reduce("prod", expr, axis)


def max(expr: PrimExpr, axis: ReduceAxis | Sequence[ReduceAxis]) -> PrimExpr:
    """The largest over `axis`; the lowest value of the type (minus infinity) if it is empty."""
    return _reduce("max", expr, axis)


def min(expr: PrimExpr, axis: ReduceAxis | Sequence[ReduceAxis]) -> PrimExpr:
    """The smallest over `axis`; the highest value of the type (infinity) if it is empty."""
    return _reduce("min", expr, axis)
