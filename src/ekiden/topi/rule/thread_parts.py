"""What families of kernels for devices of many threads have in common: a group as its anchor and
what follows it, and elements at places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import rewrite
from ekiden.runtime.late_methods import dataclass
from ekiden.te.inline import Inliner, is_injective, post_order_tensors
from ekiden.te.prim_func import BufferMap
from ekiden.te.reducer import Reduce
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import BufferStore, For, ForKind, PrimFunc, Stmt
from ekiden.topi.rule.stages import chosen_stages, own_outputs, stages_of


@dataclass(frozen=True, slots=True)
class Group:
    """A reduction and the output that is computed from it element by element, over buffers.

    Made of a group whose elementwise producers are substituted into the reduction.
    """

    params: BufferMap
    inputs: Sequence[Tensor]
    output: Tensor
    anchor: Tensor

    @staticmethod
    def of(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Group:
        """That of inputs and outputs of which `chosen_stages` leaves a reduction and no other."""
        (output,) = chosen_stages(own_outputs(outputs))
        anchor = next(t for t in stages_of([output]) if not is_injective(t))
        buffers = BufferMap()
        for each in (*inputs, output):
            buffers.declare(each)
        return Group(buffers, inputs, output, anchor)

    @property
    def reduce(self) -> Reduce:
        """What is reduced."""
        op = self.anchor.op
        assert isinstance(op, ComputeOp)
        found = op.body[self.anchor.value_index]
        assert isinstance(found, Reduce)
        return found

    def element(self, value: PrimExpr, places: Mapping[Var, PrimExpr]) -> PrimExpr:
        """An expression over tensors at values of its variables."""

        def change(e: PrimExpr) -> PrimExpr:
            """A variable's value; a read of a tensor as a load from its buffer."""
            if isinstance(e, Var):
                return places.get(e, e)
            if isinstance(e, ProducerLoad):
                return BufferLoad(self.params.buffers[e.producer], e.indices, e.dtype)
            return e

        return rewrite(value, change)

    def store(self, places: Sequence[PrimExpr], value: PrimExpr) -> Stmt:
        """The element of the output at some coordinates, from that of the reduction."""
        op = self.output.op
        assert isinstance(op, ComputeOp)
        result = value
        if self.output is not self.anchor:
            between = {t for t in post_order_tensors([self.output]) if is_injective(t)}
            body = Inliner(between - {self.output}).expr(op.body[self.output.value_index])

            def change(e: PrimExpr) -> PrimExpr:
                is_sum = isinstance(e, ProducerLoad) and e.producer is self.anchor
                return value if is_sum else e

            at = {a.var: p for a, p in zip(op.axis, places, strict=True)}
            result = self.element(rewrite(body, change), at)
        buffer = self.params.buffers[self.output]
        return BufferStore(buffer, result, tuple(places))

    def function(self, body: Stmt, name: str) -> PrimFunc:
        """The program."""
        params = (*(self.params.buffers[t] for t in self.inputs), self.params.buffers[self.output])
        return PrimFunc(params, body, {"global_symbol": name, "num_outputs": 1})


def bound(var: Var, extent: PrimExpr | int, axis: str, body: Stmt) -> Stmt:
    """A loop over a thread axis."""
    size = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), size, ForKind.THREAD_BINDING, body, {"thread": axis})


def serial(var: Var, extent: PrimExpr | int, body: Stmt) -> Stmt:
    """A loop inside of a thread."""
    size = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), size, ForKind.SERIAL, body)
