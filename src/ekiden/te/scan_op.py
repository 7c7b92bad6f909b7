"""Scan operations (recurrences over time), whose state at each time step depends on earlier
ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.arith import Analyzer, prove_equal
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import rewrite
from ekiden.te.inline import input_tensors, post_order_tensors
from ekiden.te.prim_func import (
    TensorBufferMap,
    create_stage_nest,
    group_by_operation,
    wrap_in_allocations,
)
from ekiden.te.range_checks import range_checks_of
from ekiden.te.tensor import ComputeOp, PlaceholderOp, ProducerLoad, Tensor, extern_op
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import (
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IterKind,
    IterVar,
    Stmt,
    seq,
)

Tensors = Tensor | Sequence[Tensor]


def _as_tuple(tensors: Tensors) -> tuple[Tensor, ...]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def scan(
    init: Tensors,
    update: Tensors,
    state_placeholder: Tensors,
    inputs: Sequence[Tensor] | None = None,
    name: str = "scan",
    tag: str = "",
    attrs: Mapping[str, object] | None = None,
) -> Tensor | list[Tensor]:
    """Return a recurrent state over time, the first axis: its first rows are `init`, each later row
    t is row t of `update`.

        m, n = te.size_var("m"), te.size_var("n")
        X = te.placeholder((m, n))
        state = te.placeholder((m, n))
        first = te.compute((1, n), lambda _, i: X[0, i])
        update = te.compute((m, n), lambda t, i: state[t - 1, i] + X[t, i])
        sums = te.scan(first, update, state, inputs=[X])

    Several states make a list. Computations between state and update (which have the time as their
    first axis too) run step by step, others once before. `inputs` are found without being named.
    Update and what runs step by step have stages in a schedule, whose axes are those behind the
    time. Raises ValueError where numbers, shapes or dtypes disagree, or a state is read at a time
    that is not before its own.
    """
    inits, updates, states = _as_tuple(init), _as_tuple(update), _as_tuple(state_placeholder)
    _validate_scan(name, inits, updates, states)
    steps = _recurrent_computations(name, updates, set(states))
    inside = set(steps)
    outer = [t for t in _tensors_read(steps) if t not in inside and t not in states]
    for tensor in steps:
        _require_earlier_reads(name, tensor, {*states, *inside}, set(states))
    read = list(dict.fromkeys((*inits, *outer)))
    names = TensorBufferMap()
    blocks = [(op, names.block_name(op.name)) for op in dict.fromkeys(t.op for t in steps)]

    def build_statements(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Return the statements over buffers: each state shares the buffer of its result, so that
        reads of earlier rows read what was written there.
        """
        buffers = TensorBufferMap()
        buffers.buffers.update(zip(read, ins, strict=True))
        buffers.buffers.update(zip(states, outs, strict=True))
        return _emit_scan(inits, updates, steps, buffers, outs)

    shapes, dtypes = [s.shape for s in states], [s.dtype for s in states]
    step_blocks = [(op, block) for op, block in blocks if isinstance(op, ComputeOp)]
    outputs = extern_op(
        shapes, read, build_statements, dtypes, name, tag or "scan", attrs, step_blocks
    )
    return outputs[0] if isinstance(init, Tensor) else list(outputs)


def _validate_scan(
    name: str, inits: Sequence[Tensor], updates: Sequence[Tensor], states: Sequence[Tensor]
) -> None:
    if not len(inits) == len(updates) == len(states):
        raise ValueError(
            f"scan {name!r}: init, update and state_placeholder must be equally many, got"
            f" {len(inits)}, {len(updates)} and {len(states)}"
        )
    for first, later, state in zip(inits, updates, states, strict=True):
        if not isinstance(state.op, PlaceholderOp):
            raise ValueError(f"scan {name!r}: the state {state.name!r} must be a placeholder")
        if not isinstance(later.op, ComputeOp) or state.ndim == 0:
            raise ValueError(f"scan {name!r}: {later.name!r} must be a computation over time")
        same = first.ndim == later.ndim == state.ndim and all(
            map(prove_equal, (*later.shape, *first.shape[1:]), (*state.shape, *state.shape[1:]))
        )
        if not same:
            raise ValueError(
                f"scan {name!r}: init {_tensor_text(first)} and update {_tensor_text(later)} must"
                f" have the shape of the state {_tensor_text(state)}, but for the first axis of"
                " init"
            )
        if not first.dtype == later.dtype == state.dtype:
            raise ValueError(
                f"scan {name!r}: init, update and state must have one dtype, got {first.dtype},"
                f" {later.dtype} and {state.dtype}"
            )
    if not all(prove_equal(i.shape[0], inits[0].shape[0]) for i in inits):
        raise ValueError(f"scan {name!r}: all init must have the same number of rows")


def _tensor_text(tensor: Tensor) -> str:
    dim_texts = [str(getattr(d, "value", getattr(d, "name", d))) for d in tensor.shape]
    return f"({', '.join(dim_texts)})"


def _recurrent_computations(
    name: str, updates: Sequence[Tensor], states: set[Tensor]
) -> list[Tensor]:
    """Return the computations that depend on a state, and the updates, producers first."""
    steps: list[Tensor] = []
    for tensor in post_order_tensors(updates):
        if tensor not in updates and not any(
            t in states or t in steps for t in input_tensors(tensor)
        ):
            continue
        if tensor in states:
            continue
        if not isinstance(tensor.op, ComputeOp) or not tensor.op.axis:
            raise ValueError(
                f"scan {name!r}: {tensor.name!r} stands between state and update and must be a"
                " computation whose first axis is the time"
            )
        if range_checks_of(tensor.op):
            raise ValueError(
                f"scan {name!r}: {tensor.name!r} reads at indices that are data, which cannot be"
                " checked before the state is known"
            )
        steps.append(tensor)
    return steps


def _tensors_read(steps: Sequence[Tensor]) -> list[Tensor]:
    return list(dict.fromkeys(t for s in steps for t in input_tensors(s)))


def _require_earlier_reads(
    name: str, tensor: Tensor, recurrent: set[Tensor], states: set[Tensor]
) -> None:
    """Check that states are read at earlier times, and computations of this step at the current
    time.
    """
    op = tensor.op
    assert isinstance(op, ComputeOp)
    analyzer = Analyzer()
    time = op.axis[0].var

    def check_load(e: PrimExpr) -> PrimExpr:
        """Raise ValueError for a read at another time; the expression stays as it is."""
        if isinstance(e, ProducerLoad) and e.producer in recurrent:
            position = e.indices[0]
            earlier = analyzer.can_prove(position < time)
            if e.producer in states and not earlier:
                raise ValueError(
                    f"scan {name!r}: {tensor.name!r} must read the state {e.producer.name!r} at a"
                    f" time before {time.name!r}"
                )
            if e.producer not in states and not analyzer.can_prove_equal(position, time):
                raise ValueError(
                    f"scan {name!r}: {tensor.name!r} must read {e.producer.name!r} at its own time"
                    f" {time.name!r}"
                )
        return e

    for body in op.body:
        rewrite(body, check_load)


def _emit_scan(
    inits: Sequence[Tensor],
    updates: Sequence[Tensor],
    steps: Sequence[Tensor],
    buffers: TensorBufferMap,
    outs: Sequence[Buffer],
) -> Stmt:
    """Emit the loops of a scan: copy the initial rows, then run every step for each t. An update
    that no step reads is computed into the state; others are copied there after the steps, also
    one that reads the state itself, as schedules do not support blocks that read what they
    write.
    """
    intermediates: list[Buffer] = []
    time, nests = Var("t"), []
    read = {*_tensors_read(steps)}
    for tensor, out in zip(updates, outs, strict=True):
        before = [buffers.buffers.get(t) for t in input_tensors(tensor)]
        # An update that nothing else reads is computed in the result itself: no copy per time step.
        if tensor not in read and tensor not in buffers.buffers and out not in before:
            buffers.buffers[tensor] = out
    for group in group_by_operation(steps):
        for tensor in group:
            if tensor not in buffers.buffers:
                intermediates.append(buffers.declare(tensor))
        op = group[0].op
        assert isinstance(op, ComputeOp)
        nests.append(_bind_time_axis(create_stage_nest(op, group, buffers), time))
    begin = [
        _emit_row_copy(buffers, buffers.buffers[i], o, i.shape)
        for i, o in zip(inits, outs, strict=True)
    ]
    done = [
        _emit_row_copy(buffers, source, out, out.shape, time)
        for tensor, out in zip(updates, outs, strict=True)
        if (source := buffers.buffers[tensor]) is not out
    ]
    start = inits[0].shape[0]
    # Serial: a step reads rows that earlier ones have written.
    loop = For(time, start, outs[0].shape[0] - start, ForKind.SERIAL, seq(*nests, *done))
    return wrap_in_allocations(seq(*begin, loop), intermediates)


def _emit_row_copy(
    buffers: TensorBufferMap,
    source: Buffer,
    target: Buffer,
    shape: Sequence[PrimExpr],
    time: Var | None = None,
) -> Stmt:
    """Emit the copy of a buffer's first elements, as many as a shape has, to another buffer; of one
    row where a time is given.
    """
    iters = tuple(IterVar(Var(f"v{n}"), d, IterKind.SPATIAL) for n, d in enumerate(shape))
    indices = tuple(i.var for i in iters)
    store = BufferStore(target, BufferLoad(source, indices, source.dtype), indices)
    block = Block(buffers.block_name(f"{target.name}_rows"), iters, store)
    loops = tuple(Var(f"i{n}") for n in range(len(shape)))
    values = loops if time is None else (time, *loops[1:])
    stmt: Stmt = BlockRealize(values, const(True), block)
    for loop, extent in reversed(list(zip(loops, shape, strict=True))[time is not None :]):
        stmt = For(loop, const(0), extent, ForKind.SERIAL, stmt)
    return stmt


def _bind_time_axis(nest: Stmt, time: Var) -> Stmt:
    """Return a computation's nest without its outermost loop, the first iterator bound to
    the time.
    """
    assert isinstance(nest, For)
    loops: list[For] = []
    inner: Stmt = nest.body
    while isinstance(inner, For):
        loops.append(inner)
        inner = inner.body
    assert isinstance(inner, BlockRealize)
    assert inner.block.iter_vars[0].kind is IterKind.SPATIAL
    body: Stmt = inner.with_fields(iter_values=(time, *inner.iter_values[1:]))
    for loop in reversed(loops):
        body = loop.with_fields(body=body)
    return body
