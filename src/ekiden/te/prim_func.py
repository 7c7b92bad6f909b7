"""From tensor expressions to a loop program: one block per computation, in order, nothing fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ekiden.ir.prim import Add, Mul, PrimExpr, Var, binary, const, maximum, minimum
from ekiden.ir.prim_visitor import rewrite
from ekiden.te.inline import post_order_tensors
from ekiden.te.tensor import (
    ComputeOp,
    ExternOp,
    PlaceholderOp,
    ProducerLoad,
    Reduce,
    Tensor,
    identity,
)
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.visitor import ExprRewriter

COMBINE: dict[str, Callable[[PrimExpr, PrimExpr], PrimExpr]] = {
    "sum": lambda a, b: binary(Add, a, b),
    "prod": lambda a, b: binary(Mul, a, b),
    "max": maximum,
    "min": minimum,
}
"""How a reduction of each kind takes in one more value."""


class BufferMap:
    """Which buffer holds each tensor; outputs of one rebuilt operation may be set beforehand."""

    def __init__(self) -> None:
        self.buffers: dict[Tensor, Buffer] = {}
        self._names: dict[str, int] = {}

    def declare(self, tensor: Tensor, scope: str = "global") -> Buffer:
        """A new buffer for a tensor, its name made unique."""
        count = self._names.get(tensor.name, 0)
        self._names[tensor.name] = count + 1
        name = f"{tensor.name}_{count}" if count else tensor.name
        buffer = self.buffers[tensor] = Buffer(name, tensor.shape, tensor.dtype, scope)
        return buffer

    def loads(self, expr: PrimExpr) -> PrimExpr:
        """The expression with tensor elements read from buffers."""
        return rewrite(expr, self._load)

    def _load(self, expr: PrimExpr) -> PrimExpr:
        if isinstance(expr, ProducerLoad):
            return BufferLoad(self.buffers[expr.producer], expr.indices, expr.dtype)
        return expr


def _stage_block(op: ComputeOp, outputs: Sequence[Tensor], buffers: BufferMap) -> Stmt:
    """The loops and block of one computation (all its outputs)."""
    spatial = tuple(a.var for a in op.axis)
    inits: list[Stmt] = []
    updates: list[Stmt] = []
    for tensor in outputs:
        buffer, body = buffers.buffers[tensor], op.body[tensor.value_index]
        if isinstance(body, Reduce):
            value = COMBINE[body.kind](
                BufferLoad(buffer, spatial, body.dtype), buffers.loads(body.source)
            )
            inits.append(BufferStore(buffer, identity(body.kind, body.dtype), spatial))
        else:
            value = buffers.loads(body)
        updates.append(BufferStore(buffer, value, spatial))
    iters = (*op.axis, *(IterVar(r, r.extent, IterKind.REDUCE) for r in op.reduce_axis))
    block = Block(op.name, iters, seq(*updates), seq(*inits) if inits else None)
    loops = tuple(Var(i.var.name) for i in iters)
    nest: Stmt = BlockRealize(loops, const(True), block)
    for var, each in zip(reversed(loops), reversed(iters), strict=True):
        nest = For(var, const(0), each.extent, ForKind.SERIAL, nest)
    return nest


def extern_stage(op: ExternOp, outputs: Sequence[Tensor], buffers: BufferMap) -> Stmt:
    """The statements of an extern operation over the real buffers."""
    real: dict[Buffer, Buffer] = {
        declared: buffers.buffers[t]
        for declared, t in zip(op.input_buffers, op.inputs, strict=True)
    }
    for tensor in outputs:
        real[op.output_buffers[tensor.value_index]] = buffers.buffers[tensor]

    class _Rename(ExprRewriter):
        def buffer(self, buffer: Buffer) -> Buffer:
            return real.get(buffer, buffer)

    def change(e: PrimExpr) -> PrimExpr:
        return (
            e.with_fields(buffer=real[e.buffer])
            if isinstance(e, BufferLoad) and e.buffer in real
            else e
        )

    return _Rename(change).visit(op.body)


def allocated(body: Stmt, buffers: Sequence[Buffer]) -> Stmt:
    """The body within allocations."""
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body


def whole_operations(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors grouped by operation, each group where its first member stands; all outputs of a
    ComputeOp are present.
    """
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.op, []).append(tensor)
    return [_completed(g) for g in groups.values()]


def _completed(group: list[Tensor]) -> list[Tensor]:
    """Outputs of an extern that nobody reads are written all the same."""
    op = group[0].op
    if isinstance(op, ExternOp):
        present = {t.value_index: t for t in group}
        return [
            present.get(n, Tensor(op, n, b.shape, b.dtype)) for n, b in enumerate(op.output_buffers)
        ]
    return group


def create_prim_func(args: Sequence[Tensor], name: str = "main") -> PrimFunc:
    """The program that computes the outputs among `args` (inputs first, then outputs) from the
    inputs.

    One block per computation in dependency order; intermediates are allocated around all of them.
    Raises ValueError when an input that is needed is not among `args`.
    """
    outputs = [t for t in args if not isinstance(t.op, PlaceholderOp)]
    buffers = BufferMap()
    params = tuple(buffers.declare(t) for t in args)
    stages: list[Stmt] = []
    intermediates: list[Buffer] = []
    for group in whole_operations(post_order_tensors(outputs)):
        op = group[0].op
        if isinstance(op, PlaceholderOp):
            if group[0] not in buffers.buffers:
                raise ValueError(
                    f"create_prim_func {name!r}: input {op.name!r} is not among the arguments"
                )
            continue
        for tensor in group:
            if tensor not in buffers.buffers:
                intermediates.append(buffers.declare(tensor))
        if isinstance(op, ComputeOp):
            stages.append(_stage_block(op, group, buffers))
        elif isinstance(op, ExternOp):
            stages.append(extern_stage(op, group, buffers))
    attrs = {"global_symbol": name, "num_outputs": len(outputs)}
    return PrimFunc(params, allocated(seq(*stages), intermediates), attrs)
