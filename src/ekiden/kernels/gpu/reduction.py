"""Reductions of much to little on devices of many threads: a block of threads for each result.

out[z] = reduce over k of x[z, k]

for k in steps of the block: each thread its own
threads combine what they have (`thread_team`); the first stores it
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import simplify
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.kernels.cpu.loops import product
from ekiden.kernels.decision import Choice, Decision, Fixed, Space
from ekiden.kernels.family import Family
from ekiden.kernels.gpu.block_reduction import Team
from ekiden.kernels.gpu.lanes import coordinates
from ekiden.kernels.gpu.parts import Group, bound, is_long, serial
from ekiden.target import Target
from ekiden.te.prim_func import allocated
from ekiden.te.reducer import COMBINE, Reduce, identity
from ekiden.te.tensor import ComputeOp, Tensor
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, IfThenElse, PrimFunc, Stmt, seq


def _accepts(anchor: Tensor, target: Target) -> bool:
    op = anchor.op
    body = op.body[anchor.value_index] if isinstance(op, ComputeOp) else None
    if not isinstance(op, ComputeOp) or not isinstance(body, Reduce) or not body.kind:
        return False
    return is_long(op)


def _space(anchor: Tensor, target: Target) -> Space:
    return (Choice("threads", (256, 128, 64, 32), "threads of a block"),)


def _default(anchor: Tensor, target: Target, fixed: Fixed) -> Decision:
    threads = 64
    while threads > target.max_num_threads:
        threads //= 2
    found: dict[str, int | str] = {"threads": threads}
    return Decision.of(found | dict(fixed))


def build(
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    target: Target,
    name: str,
    decision: Decision,
) -> PrimFunc:
    """The kernel of a reduction, and of what follows it."""
    group = Group.of(inputs, outputs)
    reduce, op, threads = group.reduce, group.anchor.op, decision.number("threads")
    assert isinstance(op, ComputeOp)
    block, thread, turn = Var("block"), Var("thread"), Var("turn")
    dtype = reduce.dtype
    own = Buffer("own", (const(1),), dtype, "local")
    combine = COMBINE[reduce.kind]
    extents = [r.extent for r in reduce.axis]
    total = simplify(product(extents))
    number = turn * threads + thread
    places: dict[Var, PrimExpr] = {}
    places |= dict(zip(reduce.axis, coordinates(number, extents), strict=True))
    results = coordinates(block, [a.extent for a in op.axis]) if op.axis else []
    places |= {a.var: at for a, at in zip(op.axis, results, strict=True)}
    zero = (const(0),)
    value = combine(BufferLoad(own, zero, dtype), group.element(reduce.source, places))
    inside: Stmt = IfThenElse(number < total, BufferStore(own, value, zero))
    turns = simplify((total + (threads - 1)) // threads)
    statements = [
        BufferStore(own, identity(reduce.kind, dtype), zero),
        serial(turn, turns, inside),
    ]
    team = Team.of(thread, threads, target)
    made = team.combined([own], reduce.reducer.combine, everywhere=False)
    store = IfThenElse(thread.equal(0), group.store(results, made.values[0]))
    body = allocated(seq(*statements, made.body, store), [own])
    count = simplify(product([a.extent for a in op.axis])) if op.axis else const(1)
    lanes = allocated(bound(thread, threads, "threadIdx.x", body), made.shared)
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
