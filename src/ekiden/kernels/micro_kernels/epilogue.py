"""What is computed from a tile while it is still in registers: the elementwise operators fused
behind an anchor.

    nn.relu(add(nn.dense(%x, %w), %b))       store max(acc + b, 0) in the place of acc

It saves a pass over the result in memory. Cheap endings are computed on each vector of sums; what
is long (exp, erf) in a row block after the tile, as its temporaries would push the sums out of
their registers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden import te
from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import (
    Add,
    BinaryExpr,
    Cast,
    FloatImm,
    IntImm,
    Intrinsic,
    Mul,
    Not,
    PrimExpr,
    Select,
    Sub,
    Var,
    binary,
    const,
    is_const,
)
from ekiden.ir.prim_visitor import post_order
from ekiden.te.inline import Inliner, is_injective, post_order_tensors
from ekiden.tir.expr import Buffer, BufferLoad, Ramp, broadcast, ramp
from ekiden.tir.stmt import BufferStore, Stmt

Env = Mapping[PrimExpr, PrimExpr]
LIGHT = 3
"""Most operations of an epilogue that is repeated at every accumulator: bias, residual and relu."""


class Epilogue:
    """Writes `output` (the anchor itself, or injective on it and on other inputs) a vector at a
    time."""

    def __init__(
        self, anchor: te.Tensor, output: te.Tensor, buffers: Mapping[te.Tensor, Buffer]
    ) -> None:
        self.anchor, self.output, self.buffers = anchor, output, buffers
        self.target = buffers[output]
        op = output.op
        assert isinstance(op, te.ComputeOp)
        self.axis = [a.var for a in op.axis]
        self.body: PrimExpr = anchor[tuple(self.axis)]
        if output is not anchor:
            chosen = {
                t for t in post_order_tensors([output]) if t is not anchor and is_injective(t)
            }
            self.body = Inliner(chosen).expr(op.body[output.value_index])

    @property
    def is_light(self) -> bool:
        """Whether it is a few instructions per vector: then it is done in registers, at every
        accumulator."""
        work = (
            e
            for e in post_order(self.body)
            if not isinstance(e, (te.ProducerLoad, Var, IntImm, FloatImm))
        )
        return sum(dt.is_float(e.dtype) for e in work) <= LIGHT

    def store(
        self,
        indices: Sequence[PrimExpr],
        flat: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
        axis: int = -1,
    ) -> Stmt:
        """`output[indices] = f(value)`; the index of `axis` is the first of `lanes` neighbours,
        `flat` its element offset (of axes after that one, none has more than one element)."""
        return self.put(flat, indices[-1], self.finished(indices, value, mask, axis), mask)

    def finished(
        self,
        indices: Sequence[PrimExpr],
        value: PrimExpr,
        mask: PrimExpr | None,
        axis: int = -1,
    ) -> PrimExpr:
        """`f(value)`, as in `store`."""
        lanes = dt.lanes(value.dtype)
        env: dict[PrimExpr, PrimExpr] = dict(zip(self.axis, indices, strict=True))
        first = indices[axis]
        env[self.axis[axis]] = ramp(first, 1, lanes)
        return broadcast(self._vectorize(env, value, mask), lanes)

    def put(self, flat: PrimExpr, last: PrimExpr, value: PrimExpr, mask: PrimExpr | None) -> Stmt:
        """Store a vector from element `flat` on, whose last index is `last`; in longer rows where
        the output is a part of a larger tensor.
        """
        place = self._place(flat, last, dt.lanes(value.dtype))
        return BufferStore(self.target, value, (place,), mask)

    def kept(self, flat: PrimExpr, last: PrimExpr, lanes: int, mask: PrimExpr) -> PrimExpr:
        """What `put` has stored; zeros where the mask is off."""
        dtype = dt.with_lanes(self.target.dtype, lanes)
        load = BufferLoad(self.target, (self._place(flat, last, lanes),), dtype)
        return if_then_else(mask, load, broadcast(const(0, self.target.dtype), lanes))

    def _place(self, flat: PrimExpr, last: PrimExpr, lanes: int) -> PrimExpr:
        row, whole = self.output.shape[-1], self.target.shape[-1]
        if whole is not row and not is_const(simplify(whole - row), 0):
            flat = simplify((flat - last) // row) * whole + last
        return ramp(flat, 1, lanes)

    def _vectorize(self, env: Env, value: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
        """The body with the last axis a vector, the anchor's element the given value; loads are
        guarded by mask."""
        new: dict[PrimExpr, PrimExpr] = dict(env)
        for expr in post_order(self.body):
            if expr not in new:
                new[expr] = self._rebuild(expr, new, value, mask)
        return new[self.body]

    def _rebuild(
        self, expr: PrimExpr, new: Env, value: PrimExpr, mask: PrimExpr | None
    ) -> PrimExpr:
        match expr:
            case te.ProducerLoad(producer=producer, indices=indices):
                return (
                    value
                    if producer is self.anchor
                    else self._load(producer, [new[i] for i in indices], mask)
                )
            case Var():
                return expr
            case BinaryExpr(a=a, b=b):
                return vector_binary(type(expr), new[a], new[b], expr.dtype)
            case Cast(value=inner):
                return Cast(new[inner], dt.with_lanes(expr.dtype, dt.lanes(new[inner].dtype)))
            case Not(a=a):
                return Not(new[a], dt.with_lanes("bool", dt.lanes(new[a].dtype)))
            case Select(condition=condition, true_value=yes, false_value=no):
                test, one, other = _widen([new[condition], new[yes], new[no]])
                return Select(test, one, other, dt.with_lanes(expr.dtype, dt.lanes(test.dtype)))
            case Intrinsic(op=name, args=args):
                parts = _widen([new[a] for a in args])
                return Intrinsic(
                    name, tuple(parts), dt.with_lanes(expr.dtype, dt.lanes(parts[0].dtype))
                )
            case _:
                return expr

    def _load(
        self, producer: te.Tensor, indices: Sequence[PrimExpr], mask: PrimExpr | None
    ) -> PrimExpr:
        lanes = max((dt.lanes(i.dtype) for i in indices), default=1)
        flat: PrimExpr = const(0)
        for extent, index in zip(producer.shape, indices, strict=True):
            flat = vector_binary(Add, vector_binary(Mul, flat, extent, "int64"), index, "int64")
        load = BufferLoad(self.buffers[producer], (flat,), dt.with_lanes(producer.dtype, lanes))
        if mask is None or lanes == 1:
            return load
        return if_then_else(mask, load, broadcast(const(0, producer.dtype), lanes))


def vector_binary(kind: type[BinaryExpr], a: PrimExpr, b: PrimExpr, dtype: str) -> PrimExpr:
    """kind(a, b) where either may be a vector; ramps stay ramps under + - and * by scalars."""
    if isinstance(a, Ramp) and dt.lanes(b.dtype) == 1 and kind in (Add, Sub):
        return Ramp(a.base + b if kind is Add else a.base - b, a.stride, a.lanes, a.dtype)
    if isinstance(b, Ramp) and dt.lanes(a.dtype) == 1 and kind is Add:
        return Ramp(a + b.base, b.stride, b.lanes, b.dtype)
    if isinstance(a, Ramp) and dt.lanes(b.dtype) == 1 and kind is Mul:
        return Ramp(a.base * b, a.stride * b, a.lanes, a.dtype)
    if dt.lanes(a.dtype) == dt.lanes(b.dtype) == 1:
        return binary(kind, a, b)
    left, right = _widen([a, b])
    return kind(left, right, dt.with_lanes(dtype, dt.lanes(left.dtype)))


def _widen(parts: Sequence[PrimExpr]) -> list[PrimExpr]:
    lanes = max(dt.lanes(p.dtype) for p in parts)
    return [broadcast(p, lanes) for p in parts]


def find_anchor(outputs: Sequence[te.Tensor], tag: str) -> te.Tensor:
    """The tensor among what the outputs are made of whose operation has the tag."""
    return next(t for t in post_order_tensors(outputs) if t.op.tag == tag)


def operands_of(anchor: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """The data (or left side) and the weight (or right side) of an anchor, from its attributes."""
    operands = anchor.op.attrs["inputs"]
    assert isinstance(operands, tuple)
    data, weight = operands
    assert isinstance(data, te.Tensor)
    assert isinstance(weight, te.Tensor)
    return data, weight
