"""Epilogues: elementwise operators fused behind an anchor, computed on a tile in registers.

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
    const,
    fold_binary,
    is_const,
)
from ekiden.ir.prim_visitor import post_order
from ekiden.te.inline import ProducerInliner, is_injective, post_order_tensors
from ekiden.tir.expr import Buffer, BufferLoad, Ramp, broadcast, ramp
from ekiden.tir.stmt import BufferStore, Stmt

Substitutions = Mapping[PrimExpr, PrimExpr]
MAX_LIGHT_OPERATIONS = 3
"""Maximum operations of an epilogue that is inlined at every accumulator: bias, residual and relu.
"""


class Epilogue:
    """Builder of an epilogue: `output` (the anchor itself, or elementwise on it and other inputs)
    is computed and stored a vector at a time.
    """

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
            # All elementwise operators between anchor and output become one expression of the
            # anchor's element.
            self.body = ProducerInliner(chosen).rewrite_expr(op.body[output.value_index])

    @property
    def is_cheap(self) -> bool:
        """Return whether the epilogue is so few instructions that it is inlined at every
        accumulator.
        """
        work = (
            e
            for e in post_order(self.body)
            if not isinstance(e, (te.ProducerLoad, Var, IntImm, FloatImm))
        )
        return sum(dt.is_float(e.dtype) for e in work) <= MAX_LIGHT_OPERATIONS

    def emit_store(
        self,
        indices: Sequence[PrimExpr],
        flat: PrimExpr,
        value: PrimExpr,
        mask: PrimExpr | None,
        axis: int = -1,
    ) -> Stmt:
        """Emit `output[indices] = f(value)`.

        Args:
            indices: The index of the first element; that of `axis` is the first of neighbours.
            flat: Its offset in elements; axes after `axis` have one element.
            value: A vector of the anchor.
            mask: The valid lanes, or None for all.
            axis: The axis that vectors run along.
        """
        return self.emit_raw_store(flat, indices[-1], self.apply(indices, value, mask, axis), mask)

    def apply(
        self,
        indices: Sequence[PrimExpr],
        value: PrimExpr,
        mask: PrimExpr | None,
        axis: int = -1,
    ) -> PrimExpr:
        """Return `f(value)`; the arguments are those of `emit_store`."""
        lanes = dt.lanes(value.dtype)
        env: dict[PrimExpr, PrimExpr] = dict(zip(self.axis, indices, strict=True))
        first = indices[axis]
        env[self.axis[axis]] = ramp(first, 1, lanes)
        return broadcast(self._vectorize(env, value, mask), lanes)

    def emit_raw_store(
        self, flat: PrimExpr, last: PrimExpr, value: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Emit the store of a vector without the epilogue, at flat index `flat`, into longer rows
        where the output is part of a larger tensor.
        """
        address = self._vector_index(flat, last, dt.lanes(value.dtype))
        return BufferStore(self.target, value, (address,), mask)

    def load_raw(self, flat: PrimExpr, last: PrimExpr, lanes: int, mask: PrimExpr) -> PrimExpr:
        """Load a vector that `emit_raw_store` stored; 0 where the mask is off."""
        dtype = dt.with_lanes(self.target.dtype, lanes)
        load = BufferLoad(self.target, (self._vector_index(flat, last, lanes),), dtype)
        return if_then_else(mask, load, broadcast(const(0, self.target.dtype), lanes))

    def _vector_index(self, flat: PrimExpr, last: PrimExpr, lanes: int) -> PrimExpr:
        row, target_row = self.output.shape[-1], self.target.shape[-1]
        # The output is a slice of rows of a concatenation, whose pitch is longer.
        if target_row is not row and not is_const(simplify(target_row - row), 0):
            flat = simplify((flat - last) // row) * target_row + last
        return ramp(flat, 1, lanes)

    def _vectorize(self, env: Substitutions, value: PrimExpr, mask: PrimExpr | None) -> PrimExpr:
        """Return the output expression with its last axis vectorised and `value` for the anchor's
        element; loads are masked.
        """
        new: dict[PrimExpr, PrimExpr] = dict(env)
        for expr in post_order(self.body):
            # Postorder: operands are rewritten before the expressions that use them.
            if expr not in new:
                new[expr] = self._vectorize_node(expr, new, value, mask)
        return new[self.body]

    def _vectorize_node(
        self, expr: PrimExpr, new: Substitutions, value: PrimExpr, mask: PrimExpr | None
    ) -> PrimExpr:
        match expr:
            case te.ProducerLoad(producer=producer, indices=indices):
                return (
                    value
                    if producer is self.anchor
                    else self._load_operand(producer, [new[i] for i in indices], mask)
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
                test, if_true, if_false = _broadcast_to_widest([new[condition], new[yes], new[no]])
                return Select(
                    test, if_true, if_false, dt.with_lanes(expr.dtype, dt.lanes(test.dtype))
                )
            case Intrinsic(op=name, args=args):
                operands = _broadcast_to_widest([new[a] for a in args])
                return Intrinsic(
                    name, tuple(operands), dt.with_lanes(expr.dtype, dt.lanes(operands[0].dtype))
                )
            case _:
                return expr

    def _load_operand(
        self, producer: te.Tensor, indices: Sequence[PrimExpr], mask: PrimExpr | None
    ) -> PrimExpr:
        lanes = max((dt.lanes(i.dtype) for i in indices), default=1)
        flat: PrimExpr = const(0)
        for extent, index in zip(producer.shape, indices, strict=True):
            flat = vector_binary(Add, vector_binary(Mul, flat, extent, "int64"), index, "int64")
        load = BufferLoad(self.buffers[producer], (flat,), dt.with_lanes(producer.dtype, lanes))
        # A load of one element is valid for every lane, so it needs no guard.
        if mask is None or lanes == 1:
            return load
        return if_then_else(mask, load, broadcast(const(0, producer.dtype), lanes))


def vector_binary(kind: type[BinaryExpr], a: PrimExpr, b: PrimExpr, dtype: str) -> PrimExpr:
    """Return kind(a, b), broadcasting a scalar operand; ramps stay ramps under +, - and * by
    scalars.
    """
    # A ramp index becomes one contiguous load; any other vector index would become a gather.
    if isinstance(a, Ramp) and dt.lanes(b.dtype) == 1 and kind in (Add, Sub):
        return Ramp(a.base + b if kind is Add else a.base - b, a.stride, a.lanes, a.dtype)
    if isinstance(b, Ramp) and dt.lanes(a.dtype) == 1 and kind is Add:
        return Ramp(a + b.base, b.stride, b.lanes, b.dtype)
    if isinstance(a, Ramp) and dt.lanes(b.dtype) == 1 and kind is Mul:
        return Ramp(a.base * b, a.stride * b, a.lanes, a.dtype)
    if dt.lanes(a.dtype) == dt.lanes(b.dtype) == 1:
        return fold_binary(kind, a, b)
    wide_a, wide_b = _broadcast_to_widest([a, b])
    return kind(wide_a, wide_b, dt.with_lanes(dtype, dt.lanes(wide_a.dtype)))


def _broadcast_to_widest(values: Sequence[PrimExpr]) -> list[PrimExpr]:
    lanes = max(dt.lanes(p.dtype) for p in values)
    return [broadcast(p, lanes) for p in values]


def find_anchor(outputs: Sequence[te.Tensor], tag: str) -> te.Tensor:
    """Return the producer of the outputs whose operation has the tag."""
    return next(t for t in post_order_tensors(outputs) if t.op.tag == tag)


def operands_of(anchor: te.Tensor) -> tuple[te.Tensor, te.Tensor]:
    """Return the left and right operand (data and weight) of an anchor, from its attributes."""
    operands = anchor.op.attrs["inputs"]
    assert isinstance(operands, tuple)
    data, weight = operands
    assert isinstance(data, te.Tensor)
    assert isinstance(weight, te.Tensor)
    return data, weight
