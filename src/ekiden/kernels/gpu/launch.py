"""Helpers of GPU kernel families: reduction groups, thread and serial loops, launch sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import rewrite
from ekiden.kernels.family import known_extent
from ekiden.kernels.gpu.vector_access import VectorAxes, tile_start, unravel_index, wide_access_axes
from ekiden.kernels.prim_builder import product_of_dims
from ekiden.kernels.stages import copy_repeated_outputs, inline_cheap_stages, stages_of
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.inline import ProducerInliner, is_injective, post_order_tensors
from ekiden.te.prim_func import TensorBufferMap
from ekiden.te.reducer import Reduce, ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor
from ekiden.tir.expr import BufferLoad
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    PrimFunc,
    Stmt,
)
from ekiden.tir.visitor import substitute as substitute_statement

THREADS_PER_BLOCK = 256
"""Threads per block of elementwise launches."""
ROW_LOOP_THREADS_PER_BLOCK = 32
"""Threads per block where each thread loops over a row."""
MAX_LOCAL_BYTES = 1 << 12
"""Maximum bytes of a thread-local array."""
MIN_ROW_THREADS, MAX_ROW_THREADS = 32, 256
"""Minimum and maximum threads of a block that computes a row."""
MIN_ELEMENTS_PER_THREAD = 4
"""Minimum row elements per thread."""
MIN_LONG_ELEMENTS = 512
"""Elements per result from which a reduction gets a block per result."""
MAX_FEW_RESULTS = 256
"""Maximum results of a long reduction; with more, one thread per result fills the device."""


def is_long_reduction(op: ComputeOp) -> bool:
    """Return whether a reduction has few results and many elements each, as far as is known."""
    results = known_extent(simplify(product_of_dims([a.extent for a in op.axis])))
    elements = known_extent(simplify(product_of_dims([r.extent for r in op.reduce_axis])))
    return (
        results is not None
        and elements is not None
        and results <= MAX_FEW_RESULTS
        and elements >= MIN_LONG_ELEMENTS
    )


@dataclass(frozen=True, slots=True)
class ReductionGroup:
    """Reduction and its elementwise epilogue, over buffers.

    Made of a group whose elementwise producers are substituted into the reduction.
    """

    params: TensorBufferMap
    inputs: Sequence[Tensor]
    output: Tensor
    anchor: Tensor

    @staticmethod
    def from_tensors(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ReductionGroup:
        """Return the group of inputs and outputs that have a single reduction after inlining."""
        (output,) = inline_cheap_stages(copy_repeated_outputs(outputs))
        anchor = next(t for t in stages_of([output]) if not is_injective(t))
        buffers = TensorBufferMap()
        for tensor in (*inputs, output):
            buffers.declare(tensor)
        return ReductionGroup(buffers, inputs, output, anchor)

    @property
    def reduce(self) -> Reduce:
        """Return the reduction expression."""
        op = self.anchor.op
        assert isinstance(op, ComputeOp)
        body = op.body[self.anchor.value_index]
        assert isinstance(body, Reduce)
        return body

    def lower_at(self, value: PrimExpr, values: Mapping[Var, PrimExpr]) -> PrimExpr:
        """Lower an expression over tensors to buffer loads, at given values of its variables."""

        def lower_node(e: PrimExpr) -> PrimExpr:
            """Replace a variable by its value, and a read of a tensor by a load from its buffer."""
            if isinstance(e, Var):
                return values.get(e, e)
            if isinstance(e, ProducerLoad):
                return BufferLoad(self.params.buffers[e.producer], e.indices, e.dtype)
            return e

        return rewrite(value, lower_node)

    def emit_store(self, coordinates: Sequence[PrimExpr], value: PrimExpr) -> Stmt:
        """Emit the store of an output element, computed by the epilogue from the reduced value."""
        op = self.output.op
        assert isinstance(op, ComputeOp)
        result = value
        if self.output is not self.anchor:
            # What lies between the reduction and the output is computed on the way to the store.
            between = {t for t in post_order_tensors([self.output]) if is_injective(t)}
            body = ProducerInliner(between - {self.output}).rewrite_expr(
                op.body[self.output.value_index]
            )

            def substitute_reduction(e: PrimExpr) -> PrimExpr:
                """Replace a load of the reduction's result by its value."""
                is_sum = isinstance(e, ProducerLoad) and e.producer is self.anchor
                return value if is_sum else e

            indices = {a.var: p for a, p in zip(op.axis, coordinates, strict=True)}
            result = self.lower_at(rewrite(body, substitute_reduction), indices)
        buffer = self.params.buffers[self.output]
        return BufferStore(buffer, result, tuple(coordinates))

    def create_prim_func(self, body: Stmt, name: str) -> PrimFunc:
        """Create the PrimFunc of a body."""
        params = (*(self.params.buffers[t] for t in self.inputs), self.params.buffers[self.output])
        return PrimFunc(params, body, {"global_symbol": name, "num_outputs": 1})


def thread_loop(var: Var, extent: PrimExpr | int, axis: str, body: Stmt) -> Stmt:
    """Return a loop bound to a thread axis."""
    size = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), size, ForKind.THREAD_BINDING, body, {"thread": axis})


def serial_loop(var: Var, extent: PrimExpr | int, body: Stmt) -> Stmt:
    """Return a serial loop within a thread."""
    size = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), size, ForKind.SERIAL, body)


def reduction_loops(axes: Sequence[ReduceAxis], names: Mapping[Var, PrimExpr], body: Stmt) -> Stmt:
    """Return serial loops over reduction axes, whose variables are given by name."""
    for r in reversed(axes):
        var = names[r]
        assert isinstance(var, Var)
        body = serial_loop(var, r.extent, body)
    return body


def unrolled_loop(var: Var, count: int, body: Stmt) -> Stmt:
    """Return an unrolled loop, so that arrays indexed by its variable stay in registers."""
    return For(var, const(0), const(count), ForKind.UNROLLED, body)


def emit_launch(index: Var, extent: PrimExpr, threads: int, body: Stmt) -> Stmt:
    """Emit the launch of a body with one thread per index below the extent.

    Args:
        index: The index.
        extent: Its extent.
        threads: Threads of a block.
        body: What a thread does.
    """
    block, thread = Var("block"), Var("thread")
    flat = block * threads + thread
    exact = is_const(simplify(extent % threads), 0)
    inner = substitute_statement(body, {index: flat})
    # The last block may have threads behind the extent.
    guarded = inner if exact else IfThenElse(flat < extent, inner)
    blocks = simplify((extent + (threads - 1)) // threads)
    return thread_loop(
        block, blocks, "blockIdx.x", thread_loop(thread, threads, "threadIdx.x", guarded)
    )


def threads_per_block(count: PrimExpr, target: Target) -> int:
    """Return the block size on targets that run threads serially: small enough that all units get
    blocks.
    """
    threads = THREADS_PER_BLOCK
    while isinstance(count, IntImm) and threads > 1 and count.value < threads * target.cores:
        threads //= 2
    return threads


def threads_per_row(length: int | None, target: Target) -> int:
    """Return the block size of a row kernel: halved until each thread has several elements."""
    threads = MIN_ROW_THREADS
    while threads < MAX_ROW_THREADS and (
        length is None or threads * MIN_ELEMENTS_PER_THREAD < length
    ):
        threads *= 2
    while threads > target.max_num_threads:
        threads //= 2
    return threads


@dataclass(frozen=True, slots=True)
class ComputationNest:
    """Loop nest of a computation: spatial loops, reduction loops and the block."""

    spatial: Sequence[For]
    reduced: Sequence[For]
    realize: BlockRealize

    @staticmethod
    def from_stage(nest: Stmt) -> ComputationNest:
        """Return the nest of the result of `te.prim_func.create_stage_nest`."""
        loops: list[For] = []
        while isinstance(nest, For):
            loops.append(nest)
            nest = nest.body
        assert isinstance(nest, BlockRealize)
        count = sum(i.kind is IterKind.SPATIAL for i in nest.block.iter_vars)
        return ComputationNest(loops[:count], loops[count:], nest)

    @property
    def block(self) -> Block:
        """Return the nest's block."""
        return self.realize.block

    def vector_body(
        self, number: Var, at: Sequence[PrimExpr], target: Target
    ) -> tuple[Stmt, PrimExpr, int]:
        """Return the body for one flat index: an element, or a vector of elements.

        Args:
            number: The variable that counts elements or vectors.
            at: Coordinates of the first axes.
            target: The device.

        Returns:
            The body, the number of elements or vectors, and the lanes of a vector.
        """
        extents = [f.extent for f in self.spatial]
        lanes = VectorAxes.widest(self.block, target, len(at))
        if not at and lanes is None:
            lanes = wide_access_axes(self.block, target, THREADS_PER_BLOCK)
        if lanes is None:
            own = unravel_index(number, extents[len(at) :])
            return self.element_at((*at, *own)), product_of_dims(extents[len(at) :]), 1
        outside, inside = extents[len(at) : lanes.first], extents[lanes.first :]
        size, lane = simplify(product_of_dims(inside)), Var("lane")
        vectors_per_row = simplify((size + (lanes.count - 1)) // lanes.count)
        around, vector_index = unravel_index(number, [product_of_dims(outside), vectors_per_row])
        # The last vector may overlap the one before, so no lane needs a guard.
        element_index = tile_start(vector_index, lanes.count, size) + lane
        body = self.element_at(
            (*at, *unravel_index(around, outside), *unravel_index(element_index, inside))
        )
        body = For(lane, const(0), const(lanes.count), ForKind.VECTORIZED, body)
        return body, simplify(product_of_dims(outside) * vectors_per_row), lanes.count

    def element_at(self, coordinates: Sequence[PrimExpr]) -> Stmt:
        """Return the statement of the element at some coordinates, with its reduction loops."""
        values = (*coordinates, *self.realize.iter_values[len(coordinates) :])
        body: Stmt = self.realize.with_fields(iter_values=values)
        for loop in reversed(self.reduced):
            body = loop.with_fields(body=body)
        # the extent of a reduction may depend on the element, as in triangular sums
        return substitute_statement(
            body, {f.loop_var: p for f, p in zip(self.spatial, coordinates, strict=True)}
        )
