"""What runs on the host of a program for a device: decisions and what leads to them alone, each
with its reason; everything else is on the device, whatever reads it.
"""

from __future__ import annotations

import pytest

import ekiden
from ekiden import IRModule, relay
from ekiden.relay.transform import InferType, PlanDevices
from ekiden.relay.transform.devices.device_domains import HOST_OPERATORS_ATTR
from ekiden.relay.transform.shapes.control_values import HostReason
from ekiden.runtime import Device, cpu
from ekiden.target import CompilationConfig, VirtualDevice

OPENCL = VirtualDevice(Device(4, 0))
CONFIG = CompilationConfig((OPENCL,))
"""Programs are on opencl(0) where nothing places them; no driver is needed to plan."""
X, W = "Tensor[(8, 64), float32]", "Tensor[(64, 64), float32]"
CONTROL, SHAPE = HostReason.CONTROL.value, HostReason.SHAPE.value


def planned(text: str, config: CompilationConfig = CONFIG) -> IRModule:
    module = InferType()(relay.parse(f'#[version = "0.0.5"]\n{text}'))
    result = PlanDevices(config, marks=False)(module)
    assert ekiden.structural_equal(PlanDevices(config, marks=False)(result), result)
    return result


def host_work(text: str) -> dict[str, set[str]]:
    """Reason -> the operators that run on the host for it."""
    return {reason: set(names) for reason, *names in planned(text).attrs[HOST_OPERATORS_ATTR]}


PROGRAMS = {
    "a branch on computed data": (
        f"def @main(%x: {X}, %w: {W}) {{ let %h = nn.dense(%x, %w);"
        " if (less(sum(%h), 0f)) { nn.softmax(nn.dense(%h, %w)) } else { tanh(%h) } }",
        {}, 1,
    ),
    "a branch on an argument": (
        f"def @main(%x: {X}, %b: bool) {{ if (%b) {{ exp(%x) }} else {{ tanh(%x) }} }}",
        {}, 0,
    ),
    "a loop until convergence": (
        f"def @go(%x: {X}, %w: {W}) -> {X} {{ if (less(max(%x), 0.1f)) {{ %x }} else {{"
        f" @go(multiply(0.5f, tanh(nn.dense(%x, %w))), %w) }} }}"
        f" def @main(%x: {X}, %w: {W}) {{ @go(%x, %w) }}",
        {}, 1,
    ),
    "a loop by a counter": (
        f"def @go(%i: int32, %x: {X}) -> {X} {{ if (less(%i, 1)) {{ %x }} else {{"
        " @go(subtract(%i, 1), tanh(%x)) } }"
        f" def @main(%i: int32, %x: {X}) {{ @go(%i, %x) }}",
        {CONTROL: {"less", "subtract"}}, 0,
    ),
    "a counter that is an index too": (
        f"def @go(%i: int32, %x: {X}, %w: {W}) -> {X} {{ if (less(%i, 1)) {{ %x }} else {{"
        " @go(subtract(%i, 1), add(%x, take(%w, %i, axis=0)), %w) } }"
        f" def @main(%x: {X}, %w: {W}) {{ @go(7, %x, %w) }}",
        {CONTROL: {"less", "subtract"}}, 1,
    ),
    "a counter beside a tolerance": (
        f"def @go(%i: int32, %x: {X}) -> {X} {{"
        " if (logical_or(less(max(%x), 0.1f), greater(%i, 50))) { %x } else {"
        f" @go(add(%i, 1), multiply(0.5f, tanh(%x))) }} }} def @main(%x: {X}) {{ @go(0, %x) }}",
        {CONTROL: {"logical_or", "greater", "add"}}, 1,
    ),
    "a counter in a reference": (
        f"def @main(%x: {X}, %n: int32) {{ let %r = ref(%n); ref_write(%r, add(ref_read(%r), 1));"
        " if (less(ref_read(%r), 9)) { exp(%x) } else { tanh(%x) } }",
        {CONTROL: {"less", "add"}}, 0,
    ),
    "integers that nothing decides by": (
        "def @main(%i: int32) { multiply(add(%i, 1), 2) }", {}, 0,
    ),
    "a branch on a size": (
        f"def @main(%x: Tensor[(?, 64), float32], %w: {W}) {{ let %n = take(shape_of(%x), 0);"
        " if (less(%n, 5i64)) { nn.dense(%x, %w) } else { tanh(%x) } }",
        {SHAPE: {"shape_of"}, CONTROL: {"take", "less"}}, 0,
    ),
    "a size that data is divided by": (
        "def @main(%x: Tensor[(?, 64), float32]) {"
        ' divide(sum(%x), cast(take(shape_of(%x), 0), dtype="float32")) }',
        {SHAPE: {"shape_of"}}, 1,
    ),
    "a size that is the result": (
        "def @main(%x: Tensor[(?, 64), float32]) { shape_of(tanh(%x)) }",
        {SHAPE: {"shape_of"}}, 0,
    ),
    "a token in a list of the device": (
        "type List[A] { Cons(A, List[A]), Nil, }"
        f" def @go(%x: {X}, %w: {W}, %l: List[int64]) -> List[int64] {{"
        " let %t = max(cast(nn.dense(%x, %w), dtype=\"int64\"));"
        " if (equal(%t, 7i64)) { %l } else { @go(tanh(%x), %w, Cons(%t, %l)) } }"
        f" def @main(%x: {X}, %w: {W}) {{ @go(%x, %w, Nil) }}",
        {}, 1,
    ),
    "functions that are chosen by data": (
        f"def @main(%x: {X}, %w: {W}) {{ let %h = nn.dense(%x, %w);"
        f" let %f = if (less(sum(%h), 0f)) {{ fn (%a: {X}) -> {X} {{ nn.dense(%a, %w) }} }}"
        f" else {{ fn (%b: {X}) -> {X} {{ tanh(%b) }} }}; %f(%h) }}",
        {}, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_decisions_alone_run_on_the_host(name: str) -> None:
    text, reasons, copies = PROGRAMS[name]
    assert host_work(text) == reasons
    assert planned(text).astext().count("device_copy(") == copies


def test_size_from_data_copies_the_size_alone() -> None:
    """The kernel that finds the coordinates runs on the device, and what the host reads of it is
    how many there are."""
    x = relay.var("x", shape=(8, 64))
    body = relay.argwhere(relay.less(x, relay.const(0.0)))
    module = IRModule.from_expr(relay.Function([x], body))
    bound = relay.transform.BindDimensions()(InferType()(module))
    copied = [
        line for line in PlanDevices(CONFIG, marks=False)(bound).astext().splitlines()
        if "device_copy(" in line
    ]  # fmt: skip
    assert len(copied) == 1 and "Tensor[(1,), int32]" in copied[0]


def test_device_annotation_overrides_host_placement() -> None:
    x, i = relay.var("x", shape=(8, 64)), relay.var("i", shape=(), dtype="int32")
    counted = relay.annotation.on_device(relay.add(i, relay.const(1)), OPENCL)
    branch = relay.If(relay.less(counted, relay.const(3)), relay.exp(x), relay.tanh(x))
    module = InferType()(IRModule.from_expr(relay.Function([x, i], branch)))
    config = CompilationConfig((VirtualDevice(cpu(0)), OPENCL))
    work = PlanDevices(config, marks=False)(module).attrs[HOST_OPERATORS_ATTR]
    assert work == [[HostReason.DEFAULT.value, "exp", "tanh"]]
