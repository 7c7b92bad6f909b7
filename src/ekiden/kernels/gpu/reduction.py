"""Reductions on devices of many threads.

Of many elements to few results where threads run together: a block of threads for each result.

    out[z] = reduce over k of x[z, k]

    for k in strides of the block: each thread its own
    threads combine their values (`block_reduction`); the first stores the result

Where threads run one after the other and compute with vectors: a thread for each result, which goes
along the last axis by vectors.

    out[z] = sum over k of x[z, k]   ->   for k in steps of 16: sums += x[z, k : k + 16]
                                          out[z] = sum of sums + the remainder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import substitute
from ekiden.kernels.decision import Decision, Fixed, Knob, Space
from ekiden.kernels.family import Family, size_of
from ekiden.kernels.gpu.block_reduction import Team
from ekiden.kernels.gpu.launch import Group, bound, is_long, serial
from ekiden.kernels.gpu.vector_access import (
    are_contiguous,
    coordinates,
    has_vectors,
    lanes_of,
    loads_of,
    max_lanes,
)
from ekiden.kernels.prim_builder import product
from ekiden.target import Target
from ekiden.te.prim_func import BufferMap, allocated
from ekiden.te.reducer import COMBINE, Reduce, identity
from ekiden.te.tensor import ComputeOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, PrimFunc, Stmt, seq


def _accepts(anchor: Tensor, target: Target) -> bool:
    op = anchor.op
    body = op.body[anchor.value_index] if isinstance(op, ComputeOp) else None
    if not isinstance(op, ComputeOp) or not isinstance(body, Reduce) or not body.kind:
        return False
    return is_long(op)


def _space(anchor: Tensor, target: Target) -> Space:
    return (Knob("threads", (256, 128, 64, 32), "threads of a block"),)


def _default(anchor: Tensor, target: Target, fixed: Fixed) -> Decision:
    threads = 64
    while threads > target.max_num_threads:
        threads //= 2
    values: dict[str, int | str] = {"threads": threads}
    return Decision.of(values | dict(fixed))


def build(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of a reduction, and of what follows it."""
    group = Group.of(inputs, outputs)
    reduce, op, threads = group.reduce, group.anchor.op, decision.number("threads")
    assert isinstance(op, ComputeOp)
    block, thread, iteration = Var("block"), Var("thread"), Var("turn")
    dtype = reduce.dtype
    own = Buffer("own", (const(1),), dtype, "local")
    combine = COMBINE[reduce.kind]
    extents = [r.extent for r in reduce.axis]
    total = simplify(product(extents))
    # Threads stride by the block: neighbours read neighbouring elements.
    number = iteration * threads + thread
    values: dict[Var, PrimExpr] = {}
    values |= dict(zip(reduce.axis, coordinates(number, extents), strict=True))
    results = coordinates(block, [a.extent for a in op.axis]) if op.axis else []
    values |= {a.var: at for a, at in zip(op.axis, results, strict=True)}
    zero = (const(0),)
    value = combine(BufferLoad(own, zero, dtype), group.element(reduce.source, values))
    inside: Stmt = IfThenElse(number < total, BufferStore(own, value, zero))
    num_iterations = simplify((total + (threads - 1)) // threads)
    statements = [
        BufferStore(own, identity(reduce.kind, dtype), zero),
        serial(iteration, num_iterations, inside),
    ]
    team = Team.of(thread, threads, target)
    total_value = team.combined([own], reduce.reducer.combine, everywhere=False)
    store = IfThenElse(thread.equal(0), group.store(results, total_value.values[0]))
    body = allocated(seq(*statements, total_value.body, store), [own])
    count = simplify(product([a.extent for a in op.axis])) if op.axis else const(1)
    lanes = allocated(bound(thread, threads, "threadIdx.x", body), total_value.shared)
    return group.function(bound(block, count, "blockIdx.x", lanes), name)


FAMILY = Family(
    name="thread_reduction",
    on_threads=True,
    together=True,
    why="threads combine what they have between barriers: blocks of a schedule know none",
    accepts=_accepts,
    space=_space,
    default=_default,
    build=build,
)


Value: TypeAlias = Callable[[Var, tuple[PrimExpr, ...]], PrimExpr]
"""(lane, the place of its partial result) -> what is stored there."""
VECTOR_CHAINS = 4
"""Vectors that are summed side by side: none waits for the one before."""


def row_of(op: ComputeOp, tensor: Tensor, buffers: BufferMap, target: Target) -> Stmt | None:
    """Return the element of a reduction at the axes of its operation, by vectors.

    Args:
        op: The reduction.
        tensor: Its result.
        buffers: The buffers of all tensors.
        target: The device.

    Returns:
        None where the last axis of the reduction has no vectors.
    """
    reduce = op.body[tensor.value_index]
    if not isinstance(reduce, Reduce) or not reduce.kind or len(reduce.sources) != 1:
        return None
    if not has_vectors(target) or reduce.dtype == "bool":
        return None
    last, step = reduce.axis[-1], Var("step")
    source = buffers.loads(reduce.source)
    loads = loads_of(source)
    max_lanes_ = max_lanes(target, (reduce.dtype, *(buffer.dtype for buffer, _ in loads)))
    size = size_of(last.extent)
    lanes = lanes_of(max_lanes_, max_lanes_ if size is None else size)
    if lanes == 1 or not loads or not are_contiguous(loads, {last: step}, step, 1):
        return None
    chains = VECTOR_CHAINS if size is None or size >= VECTOR_CHAINS * lanes else 1
    return _VectorRow(reduce, source, buffers.buffers[tensor], lanes, chains).element(op)


class _VectorRow:
    def __init__(
        self, reduce: Reduce, source: PrimExpr, out: Buffer, lanes: int, chains: int
    ) -> None:
        self.reduce, self.source, self.out = reduce, source, out
        self.lanes, self.chains, self.dtype = lanes, chains, reduce.dtype
        self.parts = Buffer("parts", (const(lanes * chains),), self.dtype, "local")
        self.rest = Buffer("rest", (const(1),), self.dtype, "local")
        self.combine = COMBINE[reduce.kind]
        self.names: dict[Var, PrimExpr] = {r: Var(r.name) for r in reduce.axis}

    def element(self, op: ComputeOp) -> Stmt:
        """Compute one element of the result: chains of vectors are reduced side by side and
        combined at the end, with the remainder reduced in a scalar.
        """
        zero, start = (const(0),), identity(self.reduce.kind, self.dtype)
        statements: list[Stmt] = [BufferStore(self.rest, start, zero)]
        statements += [self.lane_by_lane(n, lambda lane, at: start) for n in range(self.chains)]
        statements.append(self.steps())
        result: PrimExpr = BufferLoad(self.rest, zero, self.dtype)
        for n in range(self.chains):
            index = ramp(const(n * self.lanes), 1, self.lanes)
            lanes = BufferLoad(self.parts, (index,), f"{self.dtype}x{self.lanes}")
            result = self.combine(result, VectorReduce(lanes, self.reduce.kind, self.dtype))
        statements.append(BufferStore(self.out, result, tuple(a.var for a in op.axis)))
        return allocated(seq(*statements), [self.parts, self.rest])

    def lane_by_lane(self, chain: int, value: Value) -> Stmt:
        """Store a value to each lane of a vector of partial results."""
        lane = Var("lane")
        at = (const(chain * self.lanes) + lane,)
        store = BufferStore(self.parts, value(lane, at), at)
        return For(lane, const(0), const(self.lanes), ForKind.VECTORIZED, store)

    def value(self, last: PrimExpr) -> PrimExpr:
        """Return what is reduced, at an index of the last axis."""
        return substitute(self.source, self.names | {self.reduce.axis[-1]: last})

    def steps(self) -> Stmt:
        """Reduce by vectors, then the remainder, for every value of the outer axes."""
        *outer_axes, last = self.reduce.axis
        width, block, tail_index = self.lanes * self.chains, Var(last.name), Var(last.name)
        num_blocks = simplify(last.extent // width)

        def more(chain: int) -> Stmt:
            """Add one vector to a chain."""
            first = block * width + chain * self.lanes
            return self.lane_by_lane(
                chain,
                lambda lane, at: self.combine(
                    BufferLoad(self.parts, at, self.dtype), self.value(first + lane)
                ),
            )

        body = serial(block, num_blocks, seq(*(more(n) for n in range(self.chains))))
        tail_extent = simplify(last.extent - num_blocks * width)
        if not isinstance(tail_extent, IntImm) or tail_extent.value:
            zero = (const(0),)
            old = BufferLoad(self.rest, zero, self.dtype)
            one = self.combine(old, self.value(num_blocks * width + tail_index))
            body = seq(body, serial(tail_index, tail_extent, BufferStore(self.rest, one, zero)))
        for r in reversed(outer_axes):
            var = self.names[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        return body
