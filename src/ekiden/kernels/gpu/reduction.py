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
from ekiden.kernels.cpu.loops import product_of_extents
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.gpu.block_reduction import ThreadGroup
from ekiden.kernels.gpu.launch import ReductionGroup, is_long_reduction, serial_loop, thread_loop
from ekiden.kernels.gpu.vector_access import (
    are_contiguous,
    collect_loads,
    computes_with_vectors,
    lanes_fitting,
    max_lanes,
    unravel_index,
)
from ekiden.target import Target
from ekiden.te.prim_func import TensorBufferMap, wrap_in_allocations
from ekiden.te.reducer import COMBINE, Reduce, identity
from ekiden.te.tensor import ComputeOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, IfThenElse, PrimFunc, Stmt, seq


def _is_supported(anchor: Tensor, target: Target) -> bool:
    op = anchor.op
    body = op.body[anchor.value_index] if isinstance(op, ComputeOp) else None
    if not isinstance(op, ComputeOp) or not isinstance(body, Reduce) or not body.kind:
        return False
    return is_long_reduction(op)


def _search_space(anchor: Tensor, target: Target) -> SearchSpace:
    return (Knob("threads", (256, 128, 64, 32), "threads of a block"),)


def _default_decision(anchor: Tensor, target: Target, fixed: Overrides) -> Decision:
    threads = 64
    while threads > target.max_num_threads:
        threads //= 2
    values: dict[str, int | str] = {"threads": threads}
    return Decision.from_mapping(values | dict(fixed))


def build_reduction(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """Build the kernel of a reduction and its epilogue."""
    group = ReductionGroup.from_tensors(inputs, outputs)
    reduce, op, threads = group.reduce, group.anchor.op, decision.int_value("threads")
    assert isinstance(op, ComputeOp)
    block, thread, iteration = Var("block"), Var("thread"), Var("turn")
    dtype = reduce.dtype
    own = Buffer("own", (const(1),), dtype, "local")
    combine = COMBINE[reduce.kind]
    extents = [r.extent for r in reduce.axis]
    total = simplify(product_of_extents(extents))
    # Threads stride by the block: neighbours read neighbouring elements.
    number = iteration * threads + thread
    values: dict[Var, PrimExpr] = {}
    values |= dict(zip(reduce.axis, unravel_index(number, extents), strict=True))
    results = unravel_index(block, [a.extent for a in op.axis]) if op.axis else []
    values |= {a.var: at for a, at in zip(op.axis, results, strict=True)}
    zero = (const(0),)
    value = combine(BufferLoad(own, zero, dtype), group.lower_at(reduce.source, values))
    inside: Stmt = IfThenElse(number < total, BufferStore(own, value, zero))
    num_iterations = simplify((total + (threads - 1)) // threads)
    statements = [
        BufferStore(own, identity(reduce.kind, dtype), zero),
        serial_loop(iteration, num_iterations, inside),
    ]
    thread_group = ThreadGroup.create(thread, threads, target)
    total_value = thread_group.emit_reduction(
        [own], reduce.reducer.combine, broadcasts_result=False
    )
    store = IfThenElse(thread.equal(0), group.emit_store(results, total_value.results[0]))
    body = wrap_in_allocations(seq(*statements, total_value.body, store), [own])
    count = simplify(product_of_extents([a.extent for a in op.axis])) if op.axis else const(1)
    lanes = wrap_in_allocations(
        thread_loop(thread, threads, "threadIdx.x", body), total_value.shared
    )
    return group.create_prim_func(thread_loop(block, count, "blockIdx.x", lanes), name)


FAMILY = Family(
    name="thread_reduction",
    is_gpu_family=True,
    needs_barriers=True,
    unscheduled_reason=(
        "threads combine partial results between barriers, which blocks of a schedule do not have"
    ),
    accepts=_is_supported,
    search_space=_search_space,
    default_decision=_default_decision,
    build_unscheduled=build_reduction,
)


LaneValue: TypeAlias = Callable[[Var, tuple[PrimExpr, ...]], PrimExpr]
"""Function (lane, index of its partial result) -> stored value."""
MAX_VECTOR_CHAINS = 4
"""Maximum independent accumulator vectors, which hide the latency of additions."""


def emit_vector_row(
    op: ComputeOp, tensor: Tensor, buffers: TensorBufferMap, target: Target
) -> Stmt | None:
    """Emit one element of a reduction in vectors; None where it cannot be vectorised.

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
    if not computes_with_vectors(target) or reduce.dtype == "bool":
        return None
    last, step = reduce.axis[-1], Var("step")
    source = buffers.replace_loads(reduce.source)
    loads = collect_loads(source)
    max_lanes_ = max_lanes(target, (reduce.dtype, *(buffer.dtype for buffer, _ in loads)))
    size = known_extent(last.extent)
    lanes = lanes_fitting(max_lanes_, max_lanes_ if size is None else size)
    if lanes == 1 or not loads or not are_contiguous(loads, {last: step}, step, 1):
        return None
    # A short row does not fill several chains, which would only be combined at the end.
    chains = MAX_VECTOR_CHAINS if size is None or size >= MAX_VECTOR_CHAINS * lanes else 1
    return _VectorReduction(reduce, source, buffers.buffers[tensor], lanes, chains).emit_element(op)


class _VectorReduction:
    """Builder of the vectorised reduction of one element."""

    def __init__(
        self, reduce: Reduce, source: PrimExpr, out: Buffer, lanes: int, chains: int
    ) -> None:
        self.reduce, self.source, self.out = reduce, source, out
        self.lanes, self.chains, self.dtype = lanes, chains, reduce.dtype
        self.chain_sums = Buffer("parts", (const(lanes * chains),), self.dtype, "local")
        self.remainder_sum = Buffer("rest", (const(1),), self.dtype, "local")
        self.combine = COMBINE[reduce.kind]
        self.loop_vars: dict[Var, PrimExpr] = {r: Var(r.name) for r in reduce.axis}

    def emit_element(self, op: ComputeOp) -> Stmt:
        """Emit one result element: independent chains of vectors, combined at the end, and a scalar
        remainder.
        """
        zero, start = (const(0),), identity(self.reduce.kind, self.dtype)
        statements: list[Stmt] = [BufferStore(self.remainder_sum, start, zero)]
        statements += [self.emit_store_lanes(n, lambda lane, at: start) for n in range(self.chains)]
        statements.append(self.emit_steps())
        result: PrimExpr = BufferLoad(self.remainder_sum, zero, self.dtype)
        for n in range(self.chains):
            index = ramp(const(n * self.lanes), 1, self.lanes)
            lanes = BufferLoad(self.chain_sums, (index,), f"{self.dtype}x{self.lanes}")
            result = self.combine(result, VectorReduce(lanes, self.reduce.kind, self.dtype))
        statements.append(BufferStore(self.out, result, tuple(a.var for a in op.axis)))
        return wrap_in_allocations(seq(*statements), [self.chain_sums, self.remainder_sum])

    def emit_store_lanes(self, chain: int, value: LaneValue) -> Stmt:
        """Emit the store of a value to each lane of a chain's accumulator."""
        lane = Var("lane")
        at = (const(chain * self.lanes) + lane,)
        store = BufferStore(self.chain_sums, value(lane, at), at)
        return For(lane, const(0), const(self.lanes), ForKind.VECTORIZED, store)

    def source_at(self, last: PrimExpr) -> PrimExpr:
        """Return the reduced expression at an index of the last axis."""
        return substitute(self.source, self.loop_vars | {self.reduce.axis[-1]: last})

    def emit_steps(self) -> Stmt:
        """Emit the vector loop and the scalar remainder within the loops over the outer axes."""
        *outer_axes, last = self.reduce.axis
        width, block, tail_index = self.lanes * self.chains, Var(last.name), Var(last.name)
        num_blocks = simplify(last.extent // width)

        def accumulate_chain(chain: int) -> Stmt:
            """Add one vector to a chain."""
            first = block * width + chain * self.lanes
            return self.emit_store_lanes(
                chain,
                lambda lane, at: self.combine(
                    BufferLoad(self.chain_sums, at, self.dtype), self.source_at(first + lane)
                ),
            )

        body = serial_loop(
            block, num_blocks, seq(*(accumulate_chain(n) for n in range(self.chains)))
        )
        tail_extent = simplify(last.extent - num_blocks * width)
        if not isinstance(tail_extent, IntImm) or tail_extent.value:
            zero = (const(0),)
            old = BufferLoad(self.remainder_sum, zero, self.dtype)
            one = self.combine(old, self.source_at(num_blocks * width + tail_index))
            body = seq(
                body,
                serial_loop(tail_index, tail_extent, BufferStore(self.remainder_sum, one, zero)),
            )
        for r in reversed(outer_axes):
            var = self.loop_vars[r]
            assert isinstance(var, Var)
            body = serial_loop(var, r.extent, body)
        return body
