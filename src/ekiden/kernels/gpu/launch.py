"""Helpers that kernel families for devices of many threads share: a group as its anchor and what
follows it, the loops of launches, and elements by coordinates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import rewrite
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.vector_access import Lanes, access_lanes, coordinates, tile_start
from ekiden.kernels.prim_builder import product
from ekiden.kernels.stages import chosen_stages, distinct_outputs, stages_of
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.inline import Inliner, is_injective, post_order_tensors
from ekiden.te.prim_func import BufferMap
from ekiden.te.reducer import Reduce
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

THREADS = 256
"""Threads of a block, where elements are independent."""
ROW_THREADS = 32
"""Threads of a block, where each walks a whole row."""
MAX_LOCAL_BYTES = 1 << 12
"""Bytes of an array that a thread has by itself: registers and the memory behind them."""
MIN_ROW_THREADS, MAX_ROW_THREADS = 32, 256
"""Threads of a block that has a row."""
MIN_ELEMENTS_PER_THREAD = 4
"""Elements of a row that a thread of a block should have."""
MIN_LONG_ELEMENTS = 512
"""From so many elements on a result is worth a block of threads."""
MAX_FEW_RESULTS = 256
"""Up to so many results; of more, a thread for each keeps a device busy."""


def is_long(op: ComputeOp) -> bool:
    """Return whether a reduction has few results of many elements each, as far as is known."""
    results = size_of(simplify(product([a.extent for a in op.axis])))
    elements = size_of(simplify(product([r.extent for r in op.reduce_axis])))
    return (
        results is not None
        and elements is not None
        and results <= MAX_FEW_RESULTS
        and elements >= MIN_LONG_ELEMENTS
    )


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
        """Return the group of inputs and outputs of which `chosen_stages` leaves a reduction and no
        other.
        """
        (output,) = chosen_stages(distinct_outputs(outputs))
        anchor = next(t for t in stages_of([output]) if not is_injective(t))
        buffers = BufferMap()
        for tensor in (*inputs, output):
            buffers.declare(tensor)
        return Group(buffers, inputs, output, anchor)

    @property
    def reduce(self) -> Reduce:
        """Return the reduction."""
        op = self.anchor.op
        assert isinstance(op, ComputeOp)
        body = op.body[self.anchor.value_index]
        assert isinstance(body, Reduce)
        return body

    def element(self, value: PrimExpr, values: Mapping[Var, PrimExpr]) -> PrimExpr:
        """Return an expression over tensors at values of its variables."""

        def change(e: PrimExpr) -> PrimExpr:
            """Replace a variable by its value, and a read of a tensor by a load from its buffer."""
            if isinstance(e, Var):
                return values.get(e, e)
            if isinstance(e, ProducerLoad):
                return BufferLoad(self.params.buffers[e.producer], e.indices, e.dtype)
            return e

        return rewrite(value, change)

    def store(self, coordinates: Sequence[PrimExpr], value: PrimExpr) -> Stmt:
        """Store the element of the output at some coordinates, from that of the reduction."""
        op = self.output.op
        assert isinstance(op, ComputeOp)
        result = value
        if self.output is not self.anchor:
            # What lies between the reduction and the output is computed on the way to the store.
            between = {t for t in post_order_tensors([self.output]) if is_injective(t)}
            body = Inliner(between - {self.output}).expr(op.body[self.output.value_index])

            def change(e: PrimExpr) -> PrimExpr:
                is_sum = isinstance(e, ProducerLoad) and e.producer is self.anchor
                return value if is_sum else e

            at = {a.var: p for a, p in zip(op.axis, coordinates, strict=True)}
            result = self.element(rewrite(body, change), at)
        buffer = self.params.buffers[self.output]
        return BufferStore(buffer, result, tuple(coordinates))

    def function(self, body: Stmt, name: str) -> PrimFunc:
        """Return the program."""
        params = (*(self.params.buffers[t] for t in self.inputs), self.params.buffers[self.output])
        return PrimFunc(params, body, {"global_symbol": name, "num_outputs": 1})


def bound(var: Var, extent: PrimExpr | int, axis: str, body: Stmt) -> Stmt:
    """Return a loop over a thread axis."""
    size = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), size, ForKind.THREAD_BINDING, body, {"thread": axis})


def serial(var: Var, extent: PrimExpr | int, body: Stmt) -> Stmt:
    """Return a loop inside of a thread."""
    size = const(extent) if isinstance(extent, int) else extent
    return For(var, const(0), size, ForKind.SERIAL, body)


def unrolled(var: Var, count: int, body: Stmt) -> Stmt:
    """Return a loop of so few iterations that each is written out: arrays indexed by it are in
    registers.
    """
    return For(var, const(0), const(count), ForKind.UNROLLED, body)


def launch(index: Var, extent: PrimExpr, threads: int, body: Stmt) -> Stmt:
    """Return the launch of a body for all values of the index below the extent, one thread each.

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
    guarded = inner if exact else IfThenElse(flat < extent, inner)
    blocks = simplify((extent + (threads - 1)) // threads)
    return bound(block, blocks, "blockIdx.x", bound(thread, threads, "threadIdx.x", guarded))


def threads_of(count: PrimExpr, target: Target) -> int:
    """Threads of a block that run one after the other: few enough that all units have some."""
    threads = THREADS
    while isinstance(count, IntImm) and threads > 1 and count.value < threads * target.cores:
        threads //= 2
    return threads


def threads_of_row(length: int | None, target: Target) -> int:
    """Threads of a block that take the elements of a row in turn: as many as have some turns each,
    by halves."""
    threads = MIN_ROW_THREADS
    while threads < MAX_ROW_THREADS and (
        length is None or threads * MIN_ELEMENTS_PER_THREAD < length
    ):
        threads *= 2
    while threads > target.max_num_threads:
        threads //= 2
    return threads


@dataclass(frozen=True, slots=True)
class Nest:
    """The loops of a computation, those over its elements and those that reduce, and its block."""

    spatial: Sequence[For]
    reduced: Sequence[For]
    realize: BlockRealize

    @staticmethod
    def of(nest: Stmt) -> Nest:
        """Return the nest of what `te.prim_func.stage_block` gives."""
        loops: list[For] = []
        while isinstance(nest, For):
            loops.append(nest)
            nest = nest.body
        assert isinstance(nest, BlockRealize)
        count = sum(i.kind is IterKind.SPATIAL for i in nest.block.iter_vars)
        return Nest(loops[:count], loops[count:], nest)

    @property
    def block(self) -> Block:
        """Return the block of an element."""
        return self.realize.block

    def part(
        self, number: Var, at: Sequence[PrimExpr], target: Target
    ) -> tuple[Stmt, PrimExpr, int]:
        """Return the body of one number: an element, or a vector of elements.

        Args:
            number: The variable that counts elements or vectors.
            at: Coordinates of the first axes.
            target: The device.

        Returns:
            The body, the number of elements or vectors, and the lanes of a vector.
        """
        extents = [f.extent for f in self.spatial]
        lanes = Lanes.of(self.block, target, len(at))
        if not at and lanes is None:
            lanes = access_lanes(self.block, target, THREADS)
        if lanes is None:
            own = coordinates(number, extents[len(at) :])
            return self.at((*at, *own)), product(extents[len(at) :]), 1
        outside, inside = extents[len(at) : lanes.first], extents[lanes.first :]
        size, lane = simplify(product(inside)), Var("lane")
        vectors_per_row = simplify((size + (lanes.count - 1)) // lanes.count)
        around, vector_index = coordinates(number, [product(outside), vectors_per_row])
        # The last vector may overlap the one before, so no lane needs a guard.
        element_index = tile_start(vector_index, lanes.count, size) + lane
        body = self.at((*at, *coordinates(around, outside), *coordinates(element_index, inside)))
        body = For(lane, const(0), const(lanes.count), ForKind.VECTORIZED, body)
        return body, simplify(product(outside) * vectors_per_row), lanes.count

    def at(self, coordinates: Sequence[PrimExpr]) -> Stmt:
        """Return the element at some coordinates, its reduced axes in loops."""
        values = (*coordinates, *self.realize.iter_values[len(coordinates) :])
        body: Stmt = self.realize.with_fields(iter_values=values)
        for loop in reversed(self.reduced):
            body = loop.with_fields(body=body)
        # what a sum runs over may depend on the element it is for
        return substitute_statement(
            body, {f.loop_var: p for f, p in zip(self.spatial, coordinates, strict=True)}
        )
