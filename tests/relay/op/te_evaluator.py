"""Evaluates tensor expressions with NumPy, over whole index grids: an oracle for topi that needs no
compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ekiden import te
from ekiden.ir.dtype import to_numpy
from ekiden.ir.intrinsic import INTRINSICS
from ekiden.ir.op import Array
from ekiden.ir.prim import (
    BinaryExpr,
    Cast,
    Div,
    FloatImm,
    FloorDiv,
    FloorMod,
    IntImm,
    Intrinsic,
    Not,
    PrimExpr,
    Select,
    Var,
    const,
)
from ekiden.tir.interpreter import run_prim_func
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform import lower
from ekiden.tir.visitor import substitute

REDUCERS: dict[str, Callable[..., Array]] = {
    "sum": np.sum,
    "prod": np.prod,
    "max": np.max,
    "min": np.min,
}
BINARY: dict[str, Callable[..., Array]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.mod,
    "min": np.minimum,
    "max": np.maximum, "==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal, "and": np.logical_and, "or": np.logical_or,
}  # fmt: skip


class Evaluator:
    """Values of tensors, given those of placeholders and of symbolic dimensions."""

    def __init__(self, inputs: Mapping[te.Tensor, Array], symbols: Mapping[Var, int]) -> None:
        self.values = {(t.op, t.value_index): v for t, v in inputs.items()}
        self.symbols = dict(symbols)

    def tensor(self, tensor: te.Tensor) -> Array:
        """The value of a tensor."""
        key = (tensor.op, tensor.value_index)
        if key not in self.values:
            if isinstance(tensor.op, te.ExternOp):
                self._extern(tensor.op)
            else:
                assert isinstance(tensor.op, te.ComputeOp), tensor.op
                self.values[key] = self._compute(tensor, tensor.op)
        return self.values[key]

    def shape(self, shape: Sequence[PrimExpr]) -> tuple[int, ...]:
        """A shape in numbers."""
        return tuple(int(self.scalar(d, self.symbols)) for d in shape)

    def _compute(self, tensor: te.Tensor, op: te.ComputeOp) -> Array:
        body = op.body[tensor.value_index]
        extents = self.shape(tensor.shape)
        reduced = body.axis if isinstance(body, te.Reduce) else ()
        grid = np.indices(extents + self.shape([r.extent for r in reduced]), sparse=True)
        scope: dict[Var, object] = dict(self.symbols)
        scope.update(zip([a.var for a in op.axis] + list(reduced), grid, strict=True))
        full = extents + self.shape([r.extent for r in reduced])
        source = body.source if isinstance(body, te.Reduce) else body
        value = np.broadcast_to(np.asarray(self.scalar(source, scope)), full)
        if isinstance(body, te.Reduce):
            axes = tuple(range(len(extents), value.ndim))
            start = te.identity(body.kind, body.dtype)
            assert isinstance(start, (IntImm, FloatImm))
            value = REDUCERS[body.kind](
                value, axis=axes, initial=to_numpy(body.dtype).type(start.value)
            )
        return np.array(value).astype(to_numpy(tensor.dtype))

    def scalar(self, expr: PrimExpr, scope: Mapping[Var, object]) -> Array:
        """The value of an expression where variables are grids."""
        with np.errstate(all="ignore"):
            return np.asarray(self._scalar(expr, scope)).astype(to_numpy(expr.dtype), copy=False)

    def _scalar(self, expr: PrimExpr, scope: Mapping[Var, object]) -> object:
        match expr:
            case IntImm(value=value) | FloatImm(value=value):
                return value
            case Var():
                return scope[expr]
            case te.ProducerLoad(producer=producer, indices=indices):
                return _load(self.tensor(producer), [self.scalar(i, scope) for i in indices])
            case Div(a=a, b=b):
                left, right = self.scalar(a, scope), self.scalar(b, scope)
                return np.trunc(left / right) if left.dtype.kind in "iu" else left / right
            case BinaryExpr(a=a, b=b):
                left, right = self.scalar(a, scope), self.scalar(b, scope)
                assert left.dtype == right.dtype, expr
                if isinstance(expr, (FloorDiv, FloorMod)):
                    assert np.all(right != 0), expr
                return BINARY[expr.symbol](left, right)
            case Not(a=a):
                return ~self.scalar(a, scope)
            case Cast(value=value):
                return self.scalar(value, scope)
            case Select(condition=c, true_value=t, false_value=f):
                return np.where(self.scalar(c, scope), self.scalar(t, scope), self.scalar(f, scope))
            case Intrinsic(op="reinterpret", args=(bits,), dtype=dtype):
                return np.asarray(self.scalar(bits, scope)).view(to_numpy(dtype))
            case Intrinsic(op=op, args=args):
                return INTRINSICS[op].reference(*(self.scalar(a, scope) for a in args))
        raise AssertionError(f"no rule for {expr!r}")

    def _extern(self, op: te.ExternOp) -> None:
        arrays = [np.ascontiguousarray(self.tensor(t)) for t in op.inputs]
        results = [np.zeros(self.shape(b.shape), to_numpy(b.dtype)) for b in op.output_buffers]
        body = substitute(op.body, {s: const(n) for s, n in self.symbols.items()})
        run_prim_func(
            lower(PrimFunc((*op.input_buffers, *op.output_buffers), body)), *arrays, *results
        )
        self.values.update({(op, n): result for n, result in enumerate(results)})


def _load(array: Array, indices: Sequence[Array]) -> Array:
    """Elements; an index out of range (which a guard must hide) reads a value that spoils the
    result."""
    shape = np.broadcast_shapes(*(i.shape for i in indices))
    poison = np.asarray(np.nan if array.dtype.kind == "f" else 77).astype(array.dtype)
    if array.size == 0 and indices:
        return np.full(shape, poison)
    inside = np.ones(shape, bool)
    for index, extent in zip(indices, array.shape, strict=True):
        inside &= (index >= 0) & (index < extent)
    at = tuple(np.clip(i, 0, d - 1) for i, d in zip(indices, array.shape, strict=True))
    return np.where(inside, array[at], poison)
