"""Independent kernels of one program at the same time: results, errors and memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.ir.prim import SizeVar
from ekiden.relay.expr import Expr, Function
from ekiden.runtime.errors import EkidenError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.vm import VirtualMachine
from long_runs import share

RUNS = 5
"""Of each program, as orders differ."""
RNG = np.random.default_rng(7)
N = SizeVar("n")


@pytest.fixture(autouse=True, params=[2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = runtime.num_threads()
    runtime.num_threads(request.param)
    yield request.param
    runtime.num_threads(before)


def towers(count: int, depth: int, width: int) -> Function:
    """Chains of dense layers over one input, added at the end."""
    rng = np.random.default_rng(0)
    x = relay.var("x", shape=(N, width))
    ends = []
    for _ in range(count):
        y = x
        for _ in range(depth):
            weight = rng.standard_normal((width, width)).astype("float32") / np.float32(width)
            y = relay.tanh(relay.nn.dense(y, relay.const(weight)))
        ends.append(y)
    total = ends[0]
    for y in ends[1:]:
        total = relay.add(total, y)
    return Function([x], total)


def agree(module: object, *args: object) -> Executable:
    """Run a program both ways; gives the asynchronous one."""
    if isinstance(module, Function):
        module = ekiden.IRModule.from_expr(module)
    plain, both = (ekiden.compile(module, executor=kind) for kind in ("vm", "async"))
    expected = plain(*args)
    for _ in range(RUNS):
        same(both(*args), expected)
    machine = VirtualMachine(plain, executor="async")  # memory planned for one at a time
    for _ in range(RUNS):
        same(machine.invoke("main", *args), expected)
    return both


def same(actual: object, expected: object) -> None:
    """Equal to the last bit."""
    if isinstance(expected, tuple):
        assert isinstance(actual, tuple) and len(actual) == len(expected)
        for a, b in zip(actual, expected, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(np.asarray(actual), np.asarray(expected))


def random_program(seed: int) -> Function:
    """A graph of operators of all shapes: rows and columns of one matrix."""
    rng = np.random.default_rng(seed)
    x = relay.var("x", shape=(N, 48))
    known = [x]
    for _ in range(30):
        a, b = (known[int(rng.integers(max(0, len(known) - 8), len(known)))] for _ in range(2))
        match rng.integers(6):
            case 0:
                weight = rng.standard_normal((48, 48)).astype("float32") / np.float32(7)
                tensor = relay.nn.dense(a, relay.const(weight))
            case 1:
                tensor = relay.nn.softmax(relay.add(a, b))
            case 2:
                tensor = relay.concatenate(relay.split(a, 2, axis=1).astuple(), axis=1)
            case 3:
                tensor = relay.sort(a, axis=1)
            case 4:
                tensor = relay.subtract(a, relay.mean(b, axis=1, keepdims=True))
            case _:
                tensor = relay.multiply(relay.tanh(a), b)
        known.append(tensor)
    return Function([x], relay.Tuple(known[-6:]))


@share(4)
@pytest.mark.parametrize("seed", range(6))
def test_random_programs_give_the_same_bits(seed: int) -> None:
    exe = agree(random_program(seed), RNG.standard_normal((5, 48)).astype("float32"))
    x = RNG.standard_normal((90, 48)).astype("float32")
    expected = VirtualMachine(exe, executor="vm").invoke("main", x)
    for _ in range(RUNS):
        same(exe(x), expected)


@share(4)
@pytest.mark.parametrize("count, depth, width", [(2, 4, 64), (3, 30, 32), (1, 80, 16), (90, 1, 16)])
def test_towers_give_the_same_bits(count: int, depth: int, width: int) -> None:
    agree(towers(count, depth, width), RNG.standard_normal((3, width)).astype("float32"))


def convolved(x: Expr, size: int, channels: int) -> Expr:
    weight = RNG.standard_normal((channels, 16, size, size)).astype("float32")
    pad = size // 2
    return relay.nn.relu(relay.nn.conv2d(x, relay.const(weight), padding=(pad, pad)))


def test_convolutions_side_by_side_give_the_same_bits() -> None:
    x = relay.var("x", shape=(1, 16, 20, 20))
    y: Expr = x
    for _ in range(3):
        pooled = relay.nn.max_pool2d(y, pool_size=(3, 3), strides=(1, 1), padding=(1, 1))
        parts = [convolved(y, 1, 4), convolved(convolved(y, 1, 16), 3, 4), convolved(y, 5, 4)]
        y = relay.concatenate([*parts, convolved(pooled, 1, 4)], axis=1)
    agree(Function([x], y), RNG.standard_normal((1, 16, 20, 20)).astype("float32"))


def test_control_flow_waits_for_its_operands() -> None:
    module = relay.fromtext("""
def @steps(%n: int32, %x: Tensor[(64, 64), float32], %y: Tensor[(64, 64), float32]) {
  if (less(%n, 1)) { (%x, %y) }
  else { @steps(subtract(%n, 1), tanh(nn.dense(%x, %x)), if (greater(max(%y), 0.5f)) {
    multiply(%y, 0.5f) } else { add(sort(%y), 1f) }) }
}
def @main(%n: int32, %x: Tensor[(64, 64), float32]) { @steps(%n, %x, %x) }
""")
    x = RNG.standard_normal((64, 64)).astype("float32")
    agree(module, np.int32(20), x)


def test_data_dependent_shapes() -> None:
    x = relay.var("x", shape=(40, 40))
    result = relay.argwhere(relay.greater(relay.sort(x), relay.const(np.float32(0.3))))
    exe = agree(
        Function([x], relay.Tuple([result, relay.nn.softmax(x), relay.sum(result, axis=0)])),
        RNG.standard_normal((40, 40)).astype("float32"),
    )
    assert exe.raw.metadata["executor"] == "async"


def test_first_error_in_program_order_is_the_one_reported() -> None:
    x, y = relay.var("x", shape=(N, 32)), relay.var("y", shape=(SizeVar("m"), 32))
    busy = x
    for _ in range(6):
        busy = relay.sort(relay.nn.softmax(busy))
    exe = ekiden.compile(
        ekiden.IRModule.from_expr(Function([x, y], relay.add(busy, relay.sort(y)))),
        executor="async",
    )
    machine = VirtualMachine(exe, executor="vm")
    good = RNG.standard_normal((20, 32)).astype("float32")
    for _ in range(RUNS):
        exe(good, good)
        with pytest.raises(EkidenError) as expected:
            machine.invoke("main", good, good[:7])
        with pytest.raises(type(expected.value)) as actual:
            VirtualMachine(exe).invoke("main", good, good[:7])
        assert str(actual.value) == str(expected.value)


def ends(count: int) -> Function:
    """Chains whose intermediate results are large, over one input."""
    x = relay.var("x", shape=(256, 64))
    result = []
    for number in range(count):
        y = relay.add(x, relay.const(np.float32(number)))
        for i in range(3):
            weight = np.full((64, 64), i, "float32")
            y = relay.nn.softmax(relay.nn.dense(y, relay.const(weight)))
        result.append(relay.nn.softmax(y))
    return Function([x], relay.concatenate(result, axis=0))


@pytest.mark.parametrize("count", [1, 4])
def test_memory_is_planned_for_kernels_at_the_same_time(count: int) -> None:
    module = ekiden.IRModule.from_expr(ends(count))
    one, many = (ekiden.compile(module, executor=e).peak_memory or 0 for e in ("vm", "async"))
    assert many > one if count > 1 else many == one > 0


def test_warm_runs_allocate_no_memory() -> None:
    exe = ekiden.compile(ekiden.IRModule.from_expr(towers(3, 6, 96)), executor="async")
    x = RNG.standard_normal((8, 96)).astype("float32")
    counts = []
    while len(counts) < 2 or counts[-1] != counts[-2]:  # each thread, once it runs, asks once
        assert len(counts) < 20, f"runs never stop asking: {counts}"
        for _ in range(50):
            exe(x)
        counts.append(runtime.memory_stats().allocations)


def test_async_programs_can_be_profiled_saved_and_stepped() -> None:
    exe = ekiden.compile(ekiden.IRModule.from_expr(towers(2, 2, 32)), executor="async")
    x = RNG.standard_normal((2, 32)).astype("float32")
    again = Executable(runtime.Executable.from_bytes(exe.raw.to_bytes()))
    same(again(x), exe(x))
    assert len(exe.profile(x, peak=False).calls) > 3
    machine = VirtualMachine(exe)
    machine.start("main", x)
    machine.resume()
    same(machine.stepper.result, exe(x))


def test_unknown_executor_is_refused() -> None:
    exe = ekiden.compile(ekiden.IRModule.from_expr(towers(1, 1, 16)))
    with pytest.raises(ValueError, match="executor 'vm' or 'async' expected, got 'fast'"):
        VirtualMachine(exe, executor="fast")
