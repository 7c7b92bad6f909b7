"""Reductions on devices whose threads run one after the other and compute with vectors: a thread
for each result, which goes along the last axis of what is reduced by vectors.

    out[z] = sum over k of x[z, k]   ->   for k in steps of 16: sums += x[z, k : k + 16]
                                          out[z] = sum of sums + what no vector has
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ekiden.arith import simplify
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import substitute
from ekiden.kernels.family import size_of
from ekiden.kernels.gpu.lanes import are_near, has_vectors, lanes_of, loads_of, most_lanes
from ekiden.kernels.gpu.parts import serial
from ekiden.target import Target
from ekiden.te.prim_func import BufferMap, allocated
from ekiden.te.reducer import COMBINE, Reduce, identity
from ekiden.te.tensor import ComputeOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad, VectorReduce, ramp
from ekiden.tir.stmt import BufferStore, For, ForKind, Stmt, seq

Value: TypeAlias = Callable[[Var, tuple[PrimExpr, ...]], PrimExpr]
"""(lane, the place of its partial result) -> what is stored there."""
CHAINS = 4
"""Vectors that are summed side by side: none waits for the one before."""


def row_of(op: ComputeOp, tensor: Tensor, buffers: BufferMap, target: Target) -> Stmt | None:
    """The element of a reduction at the axes of its operation; None where its last axis is no
    vectors."""
    reduce = op.body[tensor.value_index]
    if not isinstance(reduce, Reduce) or not reduce.kind or len(reduce.sources) != 1:
        return None
    if not has_vectors(target) or reduce.dtype == "bool":
        return None
    last, step = reduce.axis[-1], Var("step")
    source = buffers.loads(reduce.source)
    loads = loads_of(source)
    most = most_lanes(target, (reduce.dtype, *(buffer.dtype for buffer, _ in loads)))
    size = size_of(last.extent)
    lanes = lanes_of(most, most if size is None else size)
    if lanes == 1 or not loads or not are_near(loads, {last: step}, step, 1):
        return None
    chains = CHAINS if size is None or size >= CHAINS * lanes else 1
    return _Row(reduce, source, buffers.buffers[tensor], lanes, chains).element(op)


class _Row:
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
        """One element of the result: chains of vectors are reduced side by side and joined at the
        end, with what was left over reduced in a scalar.
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
        """A vector of partial results gets a value."""
        lane = Var("lane")
        at = (const(chain * self.lanes) + lane,)
        store = BufferStore(self.parts, value(lane, at), at)
        return For(lane, const(0), const(self.lanes), ForKind.VECTORIZED, store)

    def value(self, last: PrimExpr) -> PrimExpr:
        """What is reduced, at a place of the last axis."""
        return substitute(self.source, self.names | {self.reduce.axis[-1]: last})

    def steps(self) -> Stmt:
        """Vectors, then what they leave, for every place of the other axes."""
        *others, last = self.reduce.axis
        width, block, left = self.lanes * self.chains, Var(last.name), Var(last.name)
        whole = simplify(last.extent // width)

        def more(chain: int) -> Stmt:
            """A vector more for one chain."""
            first = block * width + chain * self.lanes
            return self.lane_by_lane(
                chain,
                lambda lane, at: self.combine(
                    BufferLoad(self.parts, at, self.dtype), self.value(first + lane)
                ),
            )

        body = serial(block, whole, seq(*(more(n) for n in range(self.chains))))
        rest = simplify(last.extent - whole * width)
        if not isinstance(rest, IntImm) or rest.value:
            zero = (const(0),)
            old = BufferLoad(self.rest, zero, self.dtype)
            one = self.combine(old, self.value(whole * width + left))
            body = seq(body, serial(left, rest, BufferStore(self.rest, one, zero)))
        for r in reversed(others):
            var = self.names[r]
            assert isinstance(var, Var)
            body = serial(var, r.extent, body)
        return body
