"""Tensor intrinsics for te's schedules: what an operation computes, written as statements.

z = te.compute((16,), lambda i: x[i] + y[i])
add = te.decl_tensor_intrin(z.op, lambda ins, outs: tir.call_packed("vadd", *ins, *outs))
s[Z].tensorize(inner, add)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ekiden.ir.prim import PrimExpr, Var
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.te.prim_func import create_prim_func
from ekiden.te.reducer import ReduceAxis
from ekiden.te.tensor import ComputeOp, Operation, PlaceholderOp, Tensor, TensorRegion
from ekiden.te.tensor_compute import IntrinsicCall
from ekiden.tir.expr import Buffer, decl_buffer
from ekiden.tir.schedule.schedule import Schedule
from ekiden.tir.schedule.trace import BlockRV, LoopRV
from ekiden.tir.stmt import Block, Evaluate, PrimFunc, Stmt
from ekiden.tir.tensor_intrin import TensorIntrin as LoopIntrin
from ekiden.tir.visitor import pre_order_stmts

IntrinBody = Stmt | PrimExpr | None


@dataclass(frozen=True, slots=True, eq=False)
class TensorIntrin:
    """An operation and the instruction that computes it over `buffers` (inputs, then outputs). For
    a reduction, `body` computes the whole result, `reduce_init` initializes it and
    `reduce_update` accumulates into it.
    """

    name: str
    op: Operation
    inputs: tuple[Tensor, ...]
    buffers: tuple[Buffer, ...]
    scalar_params: tuple[Var, ...]
    body: Stmt | None
    reduce_init: Stmt | None
    reduce_update: Stmt | None

    def __call__(
        self,
        *regions: TensorRegion | Tensor,
        reduce_axis: ReduceAxis | Sequence[ReduceAxis] | None = None,
    ) -> IntrinsicCall:
        """Return what a `te.compute` function returns to use this instruction on regions of
        tensors, such as `add(a[i, 0:16], b[i, 0:16])`. Calls are summed over `reduce_axis`.
        Raises ScheduleError unless there is one region per input.
        """
        full_slice = slice(None)
        input_regions = [
            TensorRegion(r, (full_slice,) * r.ndim) if isinstance(r, Tensor) else r for r in regions
        ]
        if len(input_regions) != len(self.inputs) or any(
            not isinstance(p, TensorRegion) for p in input_regions
        ):
            raise ScheduleError(
                f"call of {self.name!r}: a part of a tensor, such as a[i, 0:16], is expected for"
                f" each of its {len(self.inputs)} inputs, got {regions}"
            )
        if not isinstance(self.op, ComputeOp):
            raise ScheduleError(f"call of {self.name!r}: its operation is no computation")
        axes = (reduce_axis,) if isinstance(reduce_axis, ReduceAxis) else tuple(reduce_axis or ())
        return IntrinsicCall(self, self.op, self.inputs, tuple(input_regions), axes)


def decl_tensor_intrin(
    op: Operation,
    fcompute: Callable[..., IntrinBody | Sequence[IntrinBody]],
    name: str = "tensor_intrin",
    binds: Mapping[Tensor, Buffer] | None = None,
    scalar_params: Sequence[Var] | None = None,
    default_buffer_params: Mapping[str, object] | None = None,
) -> TensorIntrin:
    """Declare an instruction: `fcompute(input_buffers, output_buffers)` returns a statement or a
    call, or three for a reduction: body, init and update (None if absent). `binds` maps tensors
    to buffers. Raises TypeError if `op` is no operation, ValueError for computed inputs,
    ScheduleError for scalar parameters.
    """
    if not isinstance(op, Operation):
        raise TypeError(f"decl_tensor_intrin: expected an operation, got {type(op).__name__}")
    if scalar_params:
        raise ScheduleError(
            f"decl_tensor_intrin {name!r}: scalar parameters are not taken; an instruction sees the"
            " buffers it is given"
        )
    inputs = op.input_tensors
    if any(not isinstance(t.op, PlaceholderOp) for t in inputs):
        raise ValueError(f"decl_tensor_intrin {name!r}: its inputs must be placeholders")
    tensors = [*inputs, *(op.output(n) for n in range(op.num_outputs))]
    options: dict[str, Any] = dict(default_buffer_params or {})
    bound_buffers = binds or {}
    buffers = [
        bound_buffers[t] if t in bound_buffers else decl_buffer(t.shape, t.dtype, t.name, **options)
        for t in tensors
    ]
    statements = fcompute(buffers[: len(inputs)], buffers[len(inputs) :])
    if not isinstance(statements, (tuple, list)):
        statements = [statements]  # type: ignore[list-item]
    bodies: list[IntrinBody] = list(statements)
    bodies += [None] * (3 - len(bodies))
    body, init, update = (Evaluate(p) if isinstance(p, PrimExpr) else p for p in bodies)
    return TensorIntrin(name, op, tuple(inputs), tuple(buffers), (), body, init, update)


_intrin_ids = itertools.count()


def _register_tir_intrin(
    intrin: TensorIntrin, desc: PrimFunc, impl: Stmt, params: Sequence[Buffer]
) -> str:
    """Register the instruction in `tir.TensorIntrin` under a unique name."""
    name = f"{intrin.name}.{next(_intrin_ids)}"
    LoopIntrin.register(name, desc, PrimFunc(tuple(params), impl, {"global_symbol": name}))
    return name


def _build_description(intrin: TensorIntrin) -> PrimFunc:
    outputs = [intrin.op.output(n) for n in range(intrin.op.num_outputs)]
    return create_prim_func([*intrin.inputs, *outputs], intrin.name)


def tensorize_stage(
    sch: Schedule, block: BlockRV, loop: LoopRV, outermost_sum: LoopRV | None, intrin: object
) -> None:
    """Replace a loop of a block by an instruction.

    A sum that runs around the loop too is begun by the instruction's init, or by stores where it
    has none, and continued by its update. Raises ScheduleError for an instruction without a body,
    or without an update where the sum needs one.
    """
    if not isinstance(intrin, TensorIntrin):
        raise ScheduleError(
            f"tensorize: expected what te.decl_tensor_intrin gives, got {type(intrin).__name__}"
        )
    desc = _build_description(intrin)
    if outermost_sum is None:
        if intrin.body is None:
            raise ScheduleError(f"tensorize with {intrin.name!r}: it has no body")
        sch.tensorize(loop, _register_tir_intrin(intrin, desc, intrin.body, intrin.buffers))
        return
    loops = sch.get_loops(block)
    is_around = _loop_index(sch, loops, outermost_sum) < _loop_index(sch, loops, loop)
    start = outermost_sum if is_around else loop
    update = intrin.reduce_update if intrin.reduce_update is not None else intrin.body
    if update is None or (is_around and intrin.reduce_update is None):
        raise ScheduleError(
            f"tensorize with {intrin.name!r}: the sum runs around the loop, and the instruction has"
            " no update"
        )
    if not is_around and intrin.body is not None:
        update = intrin.body
    # Positions are taken before decompose_reduction, which changes the list of loops.
    depth = _loop_index(sch, loops, start)
    init = sch.decompose_reduction(block, start)
    sums = _update_description(desc)
    sch.tensorize(loop, _register_tir_intrin(intrin, sums, update, intrin.buffers))
    if intrin.reduce_init is not None and isinstance(intrin.op, ComputeOp):
        begin = _init_description(desc)
        outputs = intrin.buffers[len(intrin.inputs) :]
        begin_loops = sch.get_loops(init)
        sch.tensorize(
            begin_loops[depth], _register_tir_intrin(intrin, begin, intrin.reduce_init, outputs)
        )


def _loop_index(sch: Schedule, loops: Sequence[LoopRV], loop: LoopRV) -> int:
    """Return the index of a loop among `loops`."""
    target = sch.get(loop)
    return next(n for n, candidate in enumerate(loops) if sch.get(candidate) is target)


def _single_block(desc: PrimFunc) -> Block:
    return next(s for s in pre_order_stmts(desc.body) if isinstance(s, Block))


def _update_description(desc: PrimFunc) -> PrimFunc:
    """Return the description of a reduction's update steps only."""
    sch = Schedule(desc)
    name = _single_block(desc).name
    init = sch.decompose_reduction(name, sch.get_loops(name)[0])
    update_loop = sch.statement(sch.get_loops(name)[0])
    del init
    return desc.with_fields(body=update_loop)


def _init_description(desc: PrimFunc) -> PrimFunc:
    """Return the description of a reduction's init only."""
    sch = Schedule(desc)
    name = _single_block(desc).name
    init = sch.decompose_reduction(name, sch.get_loops(name)[0])
    init_loop = sch.statement(sch.get_loops(init)[0])
    outputs = desc.attr("num_outputs")
    assert isinstance(outputs, int)
    return desc.with_fields(body=init_loop, params=desc.params[len(desc.params) - outputs :])


__all__ = ["TensorIntrin", "decl_tensor_intrin"]
