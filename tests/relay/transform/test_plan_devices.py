"""PlanDevices: placement, copies, idempotence."""

import re

import pytest

from ekiden import IRModule, relay, structural_equal
from ekiden.ir.transform import PassContext
from ekiden.relay.op.annotation import on_device
from ekiden.relay.transform import InferType, PlanDevices
from ekiden.relay.transform.devices.plan_devices import recover_virtual_device_map
from ekiden.runtime import cpu
from ekiden.runtime.errors import CompileError
from ekiden.target import CompilationConfig, VirtualDevice, make_compilation_config
from ekiden.target.virtual_device import PARAM_DEVICES_ATTR, RESULT_DEVICE_ATTR, compilation_config

META = {"VirtualDevice": [VirtualDevice(cpu(0)), VirtualDevice(cpu(1))]}
ON_0 = "virtual_device=meta[VirtualDevice][0]"
ON_1 = "virtual_device=meta[VirtualDevice][1]"
T = "Tensor[(5, 7), float32]"
DEFAULT = CompilationConfig((VirtualDevice(cpu(1)),))
"""Programs below are on cpu(1) where they say nothing, so that what they say shows."""


def plan(text: str, config: CompilationConfig = DEFAULT) -> IRModule:
    """The planned module, which parses back and does not change any more. With marks it says the
    same."""
    source = InferType()(relay.parse(f'#[version = "0.0.5"]\n{text}', init_meta_table=META))
    assert structural_equal(relay.fromtext(source.astext()), source)
    plain, marking = PlanDevices(config, marks=False), PlanDevices(config)
    planned, marked = plain(source), marking(source)
    for item, again in ((planned, plain), (marked, marking)):
        assert structural_equal(relay.fromtext(item.astext()), item)
        assert structural_equal(again(item), item)
    assert structural_equal(plain(marked), planned)
    assert "on_device" not in planned.astext()
    return planned


def plan_of(function: relay.Function, config: CompilationConfig) -> IRModule:
    return PlanDevices(config)(InferType()(IRModule.from_expr(function)))


def places(module: IRModule, name: str = "main") -> tuple[list[int], int]:
    """The numbers of the CPU devices of a function's parameters, and of its result."""
    function = module[name]
    params = function.attr(PARAM_DEVICES_ATTR) or (VirtualDevice(),) * len(function.params)
    result = function.attr(RESULT_DEVICE_ATTR) or VirtualDevice()
    return [p.virtual_device_id for p in params], result.virtual_device_id


def copies(module: IRModule) -> int:
    return module.astext().count("device_copy(")


ABCD = f"def @main(%a: {T}, %b: {T}, %c: {T}, %d: {T})"
CASES = {
    "nothing is said": (
        f"{ABCD} {{ %0 = add(%a, %b); %1 = add(%c, %d); subtract(%0, %1) }}",
        ([1, 1, 1, 1], 1), 0,
    ),
    "one operand elsewhere": (
        f"{ABCD} {{ %0 = add(%a, %b); %1 = on_device(%0, {ON_0}); %2 = add(%c, %d);"
        " subtract(%1, %2) }",
        ([0, 0, 1, 1], 1), 1,
    ),
    "functions without parameters, and of functions": (
        f"def @main(%a: {T}, %b: bool) {{ %0 = on_device(nn.relu(%a), {ON_0});"
        " %1 = if (%b) { fn () { %0 } } else { fn () { nn.relu(%0) } };"
        " %2 = fn (%f) { fn () { %f() } }; %3 = %2(%1); %3() }",
        ([0, 0], 0), 0,
    ),
    "a copy that the program makes": (
        f"{ABCD} {{ %0 = add(%a, %b); %1 = device_copy(%0, src_{ON_0}, dst_{ON_1});"
        " %2 = add(%c, %d); subtract(%1, %2) }",
        ([0, 0, 1, 1], 1), 1,
    ),
    "a value that two marks share is copied once": (
        f"def @main(%a: {T}, %b: {T}) {{ %0 = add(%a, %b); %1 = on_device(%0, {ON_0});"
        f" %2 = on_device(%0, {ON_0}); subtract(%1, %2) }}",
        ([0, 0], 1), 1,
    ),
    "the use of a variable places its value": (
        f"{ABCD} {{ let %l = add(%a, %b); let %r = add(%c, %d); %0 = on_device(%l, {ON_0});"
        " subtract(%0, %r) }",
        ([0, 0, 1, 1], 1), 1,
    ),
    "the body of a function places its arguments": (
        f"{ABCD} {{ let %f = fn (%x, %y) {{ %0 = add(%x, %y); on_device(%0, {ON_0}) }};"
        " %1 = %f(%a, %b); %2 = add(%c, %d); subtract(%1, %2) }",
        ([0, 0, 0, 0], 0), 0,
    ),
    "the use of a call places the function": (
        f"{ABCD} {{ let %f = fn (%x, %y) {{ add(%x, %y) }}; %0 = %f(%a, %b);"
        f" %1 = on_device(%0, {ON_0}); %2 = add(%c, %d); subtract(%1, %2) }}",
        ([0, 0, 1, 1], 1), 1,
    ),
    "functions that give functions": (
        f"def @main(%x: {T}, %y: {T}) {{ let %f = fn (%g) {{ fn (%a) {{"
        f" %0 = on_device(%a, {ON_0}); %1 = %g(%0); add(%1, %x) }} }};"
        " let %h = fn (%b) { negative(%b) }; %2 = %f(%h); %3 = %2(%y); subtract(%x, %3) }",
        ([1, 0], 1), 1,
    ),
    "a function in a tuple": (
        f"def @main(%x: {T}, %y: {T}) {{ let %f = fn (%a: {T}, %b: {T}) {{"
        f" %0 = on_device(%b, {ON_0}); add(%a, %0) }}; let %t = (%f, %x);"
        " %1 = %t.1; %2 = %t.0; %2(%1, %y) }",
        ([1, 0], 1), 1,
    ),
    "branches that are functions": (
        f"def @main(%x: bool, %y: {T}, %z: {T}) {{ let %f = fn (%a) {{"
        f" %0 = on_device(%y, {ON_0}, constrain_result=True); add(%a, %0) }};"
        " let %g = fn (%a1) { subtract(%a1, %y) };"
        " let %h = if (%x) { %f } else { %g }; %h(%z) }",
        ([0, 0, 0], 0), 0,
    ),
    "a condition is on the host": (
        f"def @main(%x: {T}) {{ %0 = on_device(sum(%x), {ON_1}, constrain_result=True);"
        " if (greater(%0, 0f)) { %x } else { negative(%x) } }",
        ([1], 1), 1,
    ),
    "global functions": (
        f"def @f(%a: {T}, %b: {T}) -> {T} {{ %0 = on_device(%b, {ON_0}); add(%a, %0) }}"
        f" def @main(%x: {T}, %y: {T}) -> {T} {{ @f(%y, %x) }}",
        ([0, 1], 1), 1,
    ),
    "a reference": (
        f"def @main(%x: {T}, %y: {T}) {{ let %r = ref(%x); %0 = on_device(%y, {ON_0});"
        " ref_write(%r, %0); %1 = ref_read(%r); add(%x, %1) }",
        ([1, 0], 1), 1,
    ),
    "data": (
        "type List[A] { Cons(A, List[A]), Nil, }"
        f" def @main(%x: {T}, %y: {T}) {{ %0 = on_device(%y, {ON_0}, constrain_result=True);"
        " %1 = Nil; %2 = Cons(%0, %1); let %l = Cons(%x, %2);"
        " match? (%l) { Cons(%z, _) => { %z } } }",
        ([0, 0], 0), 0,
    ),
    "a tuple may be on several devices": (
        f"def @main(%x: {T}, %y: {T}) {{ %0 = on_device(negative(%x), {ON_0},"
        " constrain_result=True); %1 = negative(%y); let %t = (%0, %1); %2 = %t.1; %2 }",
        ([0, 1], 1), 0,
    ),
    "the shape of a tensor is on the host, wherever the tensor is": (
        f"def @main(%x: Tensor[(?, 7), float32]) {{"
        f" %0 = on_device(%x, {ON_1}, constrain_result=True); vm.shape_of(%0) }}",
        ([1], 0), 0,
    ),
    "there and back": (
        f"def @main(%x: {T}, %y: {T}) {{ %0 = add(%x, %y); %1 = on_device(%0, {ON_1});"
        f" %2 = negative(%1); %3 = on_device(%2, {ON_0}); %4 = negative(%0); %5 = add(%3, %4);"
        f" %6 = on_device(%5, {ON_1}); %7 = negative(%6); on_device(%7, {ON_0}) }}",
        ([1, 1], 0), 3,
    ),
    "what is copied into place by a mark that says nothing of the value": (
        f"def @main(%x: {T}) {{ %0 = on_device(negative(%x), {ON_1}, constrain_result=True);"
        f" %1 = on_device(%0, {ON_0}, constrain_result=True, constrain_body=False);"
        " nn.relu(%1) }",
        ([1], 0), 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_go_where_they_are_used(name: str) -> None:
    text, expected, count = CASES[name]
    planned = plan(text)
    assert places(planned) == expected
    assert copies(planned) == count


def test_text_of_a_planned_module() -> None:
    text = f"def @main(%a: {T}, %b: {T}) {{ %0 = on_device(nn.relu(%a), {ON_1}); add(%0, %b) }}"
    planned = plan(text, CompilationConfig())
    lines = re.sub(r" /\*.*?\*/", "", planned.astext()).splitlines()
    one = "VirtualDevice(device_type=1, virtual_device_id=1)"
    host = "VirtualDevice(device_type=1)"
    work = '"host_work" = [["no mark places it elsewhere", "add"]]'
    assert lines[1] == f'attributes {{"virtual_devices" = [{host}, {one}], {work}}}'
    head = f"(%a {{virtual_device={one}}}: {T}, %b {{virtual_device={host}}}: {T}, virtual_device="
    assert head in lines[2]
    assert f"  %1 = device_copy(%0, src_virtual_device={one});" in lines


def test_function_that_fits_no_devices_is_wrapped() -> None:
    planned = plan(
        f"def @main(%c: bool, %x: {T}) {{"
        f" let %f = fn (%a: {T}) {{ on_device(negative(%a), {ON_0}) }};"
        f" let %g = fn (%a1: {T}) {{ on_device(nn.relu(%a1), {ON_1}) }};"
        " let %h = if (%c) { %f } else { %g }; %h(%x) }"
    )
    assert planned.astext().count("fn (") >= 3
    assert copies(planned) == 2


def test_reference_cannot_be_copied() -> None:
    text = (
        f"def @main(%x: {T}) {{ let %r = on_device(ref(%x), {ON_0}, constrain_result=True);"
        f" let %s = on_device(%r, {ON_1}, constrain_result=True); ref_read(%s) }}"
    )
    with pytest.raises(CompileError, match=r"a reference on cpu\(1\) expected, got one on"):
        plan(text)


def test_module_without_annotations_is_unchanged() -> None:
    x = relay.var("x", shape=(3,))
    module = InferType()(IRModule.from_expr(relay.Function([x], relay.nn.relu(x))))
    assert PlanDevices()(module).attrs == {}


def test_device_annotations_are_honoured() -> None:
    x = relay.var("x", shape=(3,))
    assert on_device(x, None) is x
    free = on_device(x, "cpu:1", constrain_body=False)
    assert free.attrs.virtual_device.device_type_int == -1
    planned = plan_of(relay.Function([x], relay.nn.relu(free)), CompilationConfig())
    assert "device_copy" not in planned.astext() and "on_device" not in planned.astext()
    assert on_device(x, "cpu:1").attrs.virtual_device.device == cpu(1)
    copy = relay.op.device_copy(x, cpu(0), VirtualDevice(cpu(1)))
    assert copy.attrs.dst_virtual_device.device == cpu(1)


SCOPES = [VirtualDevice(cpu(0), memory_scope=name) for name in ("", "texture", "scratch")]
META_SCOPES = {"VirtualDevice": SCOPES}
A, B = "virtual_device=meta[VirtualDevice][1]", "virtual_device=meta[VirtualDevice][2]"


def test_memories_of_a_device_are_planned_and_told_apart() -> None:
    text = (
        f'#[version = "0.0.5"] def @f(%x {{{B}}}: {T}, {B}) -> {T} {{ %x }}'
        f" def @main(%a {{{ON_0}}}: {T}, %b {{{A}}}: {T}, {A}) {{"
        f" %0 = @f(on_device(%a, {ON_0}, constrain_body=False));"
        f" %1 = @f(on_device(%b, {ON_0}, constrain_body=False));"
        f" on_device(add(%0, %1), {ON_0}, constrain_body=False) }}"
    )
    module = InferType()(relay.parse(text, init_meta_table=META_SCOPES))
    planned = PlanDevices()(module)
    assert [p.memory_scope for p in planned["main"].attr(PARAM_DEVICES_ATTR)] == [
        "scratch",
        "texture",
    ]
    assert copies(planned) == 2
    assert structural_equal(relay.fromtext(planned.astext()), planned)
    with pytest.raises(CompileError, match=r"scope 'global' expected, got '\w+' of cpu\(0\)"):
        relay.vm.compile(module, "llvm")


def test_planning_supports_device_kinds_without_codegen() -> None:
    context = PassContext(config={"relay.fallback_device_type": 10})
    config = make_compilation_config(context, ["llvm", "rocm"])
    assert config.default_primitive_virtual_device.device_type == 10
    value = f"let %l = on_device(nn.relu(%a), {ON_0}); negative(on_device(%l, {ON_0}))"
    source = f"def @main(%a: {T}) {{ {value} }}"
    module = InferType()(relay.parse(f'#[version = "0.0.5"]\n{source}', init_meta_table=META))
    planned = PlanDevices(config)(module)
    let = planned["main"].body
    assert let.value.attrs.constrain_result and let.value.attrs.virtual_device.is_host
    assert let.body.args[0].attrs.dst_virtual_device.device_type == 10
    where = recover_virtual_device_map(planned, planned["main"])
    assert [where[e].device_type for e in (let.var, let.value.args[0], let.body)] == [1, 1, 10]
    with pytest.raises(CompileError, match=r"no code generator for rocm\(0\)"):
        PlanDevices(config, marks=False)(module)
    with context, pytest.raises(CompileError, match="no device of kind 10 in "):
        compilation_config("llvm")


def test_device_configurations_are_planned() -> None:
    for argument in ({cpu(1): "llvm", cpu(0): "llvm"}, [cpu(1), cpu(0)]):
        config = compilation_config(argument)
        assert [d.device for d in config.devices] == [cpu(1), cpu(0)]
        assert config.default_primitive_virtual_device.device == cpu(1)
        assert config.host_virtual_device.is_host
    with pytest.raises(CompileError, match="one target for all CPU devices expected"):
        compilation_config({cpu(0): "llvm", cpu(1): "llvm -mcpu=x86-64-v3"})
    with pytest.raises(CompileError, match=r"no code generator for rocm\(0\)"):
        compilation_config({"rocm": "llvm"})


def test_chain_of_any_length() -> None:
    x = relay.var("x", shape=(3,))
    value = x
    for number in range(5000):
        value = relay.nn.relu(value)
        if number % 250 == 0:
            value = on_device(value, cpu(number // 250 % 2))
    module = InferType()(IRModule.from_expr(relay.Function([x], value)))
    planned = PlanDevices(marks=False)(module)
    assert len(planned.attrs["virtual_devices"]) == 2
