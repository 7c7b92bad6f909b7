"""Programs printed at any stage of compilation parse back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import ekiden
from ekiden import IRModule, relay, te, tir
from ekiden.ir.compare import assert_structural_equal
from ekiden.ir.pass_context import PassContext, PassInfo, PassInstrument
from ekiden.tir.script.parser import from_source

Program = tuple[te.Schedule, list[te.Tensor]]


class ReadsBack(PassInstrument):
    """Prints each module behind each pass, and compares what is read of the text."""

    def __init__(self) -> None:
        self.passes: list[str] = []

    def run_after_pass(self, module: IRModule, info: PassInfo) -> None:
        """Read a module's text. Raises ValueError where it is another one."""
        functions = list(module.functions.values())
        is_loops = all(isinstance(f, tir.PrimFunc) for f in functions)
        text = module.script() if is_loops else module.astext()
        back = from_source(text) if is_loops else relay.parse(text)
        assert_structural_equal(back, module)
        self.passes.append(info.name)


def staged_in_shared_memory() -> Program:
    """Sums of three neighbours, of tiles that a block's threads copy together."""
    a = te.placeholder((66, 66), name="a")
    c = te.compute((64, 64), lambda i, j: a[i, j] + a[i + 1, j + 1] + a[i + 2, j + 2], name="c")
    schedule = te.create_schedule(c.op)
    shared = schedule.cache_read(a, "shared", [c])
    axes = schedule[c].tile(*c.op.axis, 8, 8)
    for axis, thread in zip(axes, ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
                            strict=True):  # fmt: skip
        schedule[c].bind(axis, te.thread_axis(thread))
    schedule[shared].compute_at(schedule[c], axes[1])
    return schedule, [a, c]


def vectors() -> Program:
    """Four elements a thread."""
    a = te.placeholder((1024,), name="a")
    b = te.compute((1024,), lambda i: a[i] * 2.0, name="b")
    schedule = te.create_schedule(b.op)
    outer, inner = schedule[b].split(b.op.axis[0], 64)
    inner, lanes = schedule[b].split(inner, 4)
    schedule[b].bind(outer, te.thread_axis("blockIdx.x"))
    schedule[b].bind(inner, te.thread_axis("threadIdx.x"))
    schedule[b].vectorize(lanes)
    return schedule, [a, b]


def of_any_size() -> Program:
    """Elements of a matrix whose sizes only the run knows."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="a")
    b = te.compute((n, m), lambda i, j: a[i, j] * 2.0, name="b")
    schedule = te.create_schedule(b.op)
    outer, inner = schedule[b].split(schedule[b].fuse(*b.op.axis), 64)
    schedule[b].bind(outer, te.thread_axis("blockIdx.x"))
    schedule[b].bind(inner, te.thread_axis("threadIdx.x"))
    return schedule, [a, b]


def with_a_number() -> Program:
    """A parameter that is no tensor."""
    factor = te.var("factor", "float32")
    a = te.placeholder((64,), name="a")
    b = te.compute((64,), lambda i: a[i] * factor, name="b")
    schedule = te.create_schedule(b.op)
    outer, inner = schedule[b].split(b.op.axis[0], 16)
    schedule[b].bind(outer, te.thread_axis("blockIdx.x"))
    schedule[b].bind(inner, te.thread_axis("threadIdx.x"))
    return schedule, [factor, a, b]


def reduced_by_threads() -> Program:
    """Rows of any length, whose parts threads reduce and combine, of pairs."""
    n, m = te.var("n"), te.var("m")
    a = te.placeholder((n, m), name="a")
    k = te.reduce_axis((0, m), "k")
    pairs = te.comm_reducer(
        lambda x, y: (x[0] + y[0], tir.max(x[1], y[1])),
        lambda s, t: (tir.const(0, s), te.min_value(t)),
        "pairs",
    )
    total, largest = te.compute((n,), lambda i: pairs((a[i, k], a[i, k]), axis=k), name="b")
    schedule = te.create_schedule(total.op)
    _, inner = schedule[total].split(k, 16)
    schedule[total].bind(total.op.axis[0], te.thread_axis("blockIdx.x"))
    schedule[total].bind(inner, te.thread_axis("threadIdx.x"))
    return schedule, [a, total, largest]


DEVICE_PROGRAMS = [
    staged_in_shared_memory, vectors, of_any_size, with_a_number, reduced_by_threads,
]  # fmt: skip


@pytest.mark.quick
@pytest.mark.slow
@pytest.mark.parametrize("target", ["opencl", "cuda", "metal", "webgpu"])
@pytest.mark.parametrize("program", DEVICE_PROGRAMS)
def test_device_modules_read_back_behind_each_pass(
    target: str, program: Callable[[], Program]
) -> None:
    schedule, tensors = program()
    instrument = ReadsBack()
    with PassContext(instruments=[instrument]):
        ekiden.build(ekiden.lower(schedule, tensors, name="stage"), target)
    expected = {"tir.ThreadSync", "tir.FlattenBuffer", "tir.VectorizeLoop"}
    assert expected <= set(instrument.passes)


@pytest.mark.parametrize("program", [staged_in_shared_memory, vectors])
def test_relay_with_loop_programs_reads_back_behind_each_pass(
    program: Callable[[], Program],
) -> None:
    schedule, tensors = program()
    lowered = ekiden.lower(schedule, tensors, name="loops")
    name = ekiden.ir.GlobalVar("loops")
    x = relay.var("x", shape=tuple(int(d) for d in tensors[0].shape))
    module = IRModule({name: lowered["loops"]})
    module["main"] = relay.Function((x,), relay.nn.relu(relay.Call(name, (x,))))
    instrument = ReadsBack()
    with PassContext(instruments=[instrument]):
        ekiden.compile(module)
    assert {"CallPrimFuncs", "Inline", "FuseOps", "MemoryPlan"} <= set(instrument.passes)


def test_loop_program_that_cannot_be_read_is_told_with_its_line() -> None:
    text = 'def @main(%x: Tensor[(4,), float32]) { call_lowered((%x,), func="no program") }'
    with pytest.raises(ekiden.ParseError, match="a loop program cannot be read"):
        relay.parse(text)
