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
from ekiden.ir.prim import PrimExpr, Var, is_const
from ekiden.ir.prim_visitor import rewrite
from ekiden.te.inline import ProducerInliner, is_injective, post_order_tensors
from ekiden.tir.expr import Buffer, BufferLoad, broadcast, ramp
from ekiden.tir.stmt import BufferStore, Stmt
from ekiden.tir.tensor_intrin.micro import count_float_ops
from ekiden.tir.transform.buffer_flattening import flat_index
from ekiden.tir.transform.loop_vectorization import Vectorizer

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
        self.output, self.target = output, buffers[output]
        op = output.op
        assert isinstance(op, te.ComputeOp)
        self.axis = [a.var for a in op.axis]
        self.sum_var = Var("sum", anchor.dtype)
        body: PrimExpr = anchor[tuple(self.axis)]
        if output is not anchor:
            chosen = {
                t for t in post_order_tensors([output]) if t is not anchor and is_injective(t)
            }
            # All elementwise operators between anchor and output become one expression of the
            # anchor's element.
            body = ProducerInliner(chosen).rewrite_expr(op.body[output.value_index])

        def lower_load(e: PrimExpr) -> PrimExpr:
            """Replace the anchor's element by a variable, and others by loads."""
            if not isinstance(e, te.ProducerLoad):
                return e
            if e.producer is anchor:
                return self.sum_var
            buffer = buffers[e.producer]
            return BufferLoad(buffer, (flat_index(buffer, e.indices),), e.dtype)

        self.body = rewrite(body, lower_load)

    @property
    def is_cheap(self) -> bool:
        """Return whether the epilogue is so few instructions that it is inlined at every
        accumulator.
        """
        return count_float_ops(self.body) <= MAX_LIGHT_OPERATIONS

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
        vectors = Vectorizer(self.axis[axis], indices[axis], lanes, mask)
        vectors.define(self.sum_var, value)
        for var, index in zip(self.axis, indices, strict=True):
            if var is not self.axis[axis]:
                vectors.define(var, index)
        return broadcast(vectors.rewrite_expr(self.body), lanes)

    def emit_raw_store(
        self, flat: PrimExpr, last: PrimExpr, value: PrimExpr, mask: PrimExpr | None
    ) -> Stmt:
        """Emit the store of a vector without the epilogue, at flat index `flat`, into longer rows
        where the output is part of a larger tensor.
        """
        address = self._vector_index(flat, last, dt.lanes(value.dtype))
        return BufferStore(self.target, value, (address,), mask)

    def load_raw(self, flat: PrimExpr, last: PrimExpr, lanes: int) -> PrimExpr:
        """Load a vector that `emit_raw_store` stored."""
        dtype = dt.with_lanes(self.target.dtype, lanes)
        return BufferLoad(self.target, (self._vector_index(flat, last, lanes),), dtype)

    def _vector_index(self, flat: PrimExpr, last: PrimExpr, lanes: int) -> PrimExpr:
        row, target_row = self.output.shape[-1], self.target.shape[-1]
        # The output is a slice of rows of a concatenation, whose pitch is longer.
        if target_row is not row and not is_const(simplify(target_row - row), 0):
            flat = simplify((flat - last) // row) * target_row + last
        return ramp(flat, 1, lanes)


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
