"""Reductions on devices of many threads.

Of many elements to few results where threads run together: a block of threads for each result.

    out[z] = reduce over k of x[z, k]

    for z in blockIdx.x:                               threads of a block reduce: each has a part of
      for thread in threadIdx.x: for turn: block       the sum, and lowering combines these
      u in threadIdx.x: block of the epilogue          (`tir.transform.cross_thread_reduction`)

Where threads run one after the other and compute with vectors: a thread for each result, which goes
along the last axis by vectors.

    out[z] = sum over k of x[z, k]   ->   for k in steps of 16: sums += x[z, k : k + 16]
                                          out[z] = sum of sums + the remainder
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import substitute
from ekiden.kernels.decision import Decision, Knob, Overrides, SearchSpace
from ekiden.kernels.family import Family, known_extent
from ekiden.kernels.gpu.launch import is_long_reduction, reduction_loops, serial_loop
from ekiden.kernels.gpu.vector_access import (
    are_contiguous,
    collect_loads,
    computes_with_vectors,
    lanes_fitting,
    max_lanes,
)
from ekiden.kernels.scheduled_kernel import KernelSpec
from ekiden.kernels.stages import copy_repeated_outputs, inline_cheap_stages, stages_of
from ekiden.target import Target
from ekiden.te.prim_func import TensorBufferMap, create_stage_nest, wrap_in_allocations
from ekiden.te.reducer import COMBINE, Reduce, identity
from ekiden.te.tensor import ComputeOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, PrimFunc, Stmt, seq

if TYPE_CHECKING:
    from ekiden.tir.schedule.schedule import Schedule


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


def create_reduction_program(inputs: Sequence[Tensor], kernel: KernelSpec, name: str) -> PrimFunc:
    """Create the program to schedule: a block for the reduction, whose elementwise producers are
    inlined, and one for what follows it, if anything does.
    """
    outputs = inline_cheap_stages(copy_repeated_outputs(kernel.outputs))
    buffers = TensorBufferMap()
    params = tuple(buffers.declare(t) for t in (*inputs, *outputs))
    nests, intermediates = [], []
    for tensor in stages_of(outputs):
        if tensor not in buffers.buffers:
            intermediates.append(buffers.declare(tensor))
        assert isinstance(tensor.op, ComputeOp)
        nests.append(create_stage_nest(tensor.op, [tensor], buffers))
    attrs = {"global_symbol": name, "num_outputs": len(outputs)}
    return PrimFunc(params, wrap_in_allocations(seq(*nests), intermediates), attrs)


def schedule_reduction(sch: Schedule, kernel: KernelSpec) -> None:
    """Schedule a reduction: a block of threads for each result, whose threads stride over its terms
    and then combine what they have.
    """
    op = kernel.anchor.op
    assert isinstance(op, ComputeOp)
    reduction = sch.get_block(op.name)
    epilogues = sch.get_consumers(reduction)
    loops = sch.get_loops(reduction)
    results, terms = loops[: len(op.axis)], loops[len(op.axis) :]
    # Neighbouring threads read neighbouring elements.
    term = sch.fuse(*terms) if len(terms) > 1 else terms[0]
    block = sch.fuse(*results) if len(results) > 1 else (results or [sch.add_unit_loop(term)])[0]
    iteration, thread = sch.split(term, [None, kernel.decision.int_value("threads")])
    sch.reorder(block, thread, iteration)
    for epilogue in epilogues:
        sch.reverse_compute_at(epilogue, block)
        # Only the epilogue in the block reads the sum, so it needs no device memory.
        sch.set_scope(reduction, 0, "local")
        # The unit loop binds the epilogue to one thread: the others have no result to store.
        sch.bind(sch.add_unit_loop(epilogue), "threadIdx.x")
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


FAMILY = Family(
    name="thread_reduction",
    is_gpu_family=True,
    needs_barriers=True,
    accepts=_is_supported,
    search_space=_search_space,
    default_decision=_default_decision,
    create_initial_program=create_reduction_program,
    schedule_steps=schedule_reduction,
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
    # Lanes that are not neighbours in memory cannot be loaded as one vector.
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
        indices = (const(chain * self.lanes) + lane,)
        store = BufferStore(self.chain_sums, value(lane, indices), indices)
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
        return reduction_loops(outer_axes, self.loop_vars, body)
