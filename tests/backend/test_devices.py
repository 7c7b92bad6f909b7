"""Programs over two CPU devices: the machine, native code and the interpreter agree, copies are
made, memory is apart, and arguments that lie elsewhere are copied or refused.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ekiden
from ekiden import IRModule, relay, runtime
from ekiden.backend.vm.write_executable import DeviceTable, VMFunction, write_executable
from ekiden.relay.interpreter import Interpreter
from ekiden.relay.op.annotation import on_device
from ekiden.runtime import cpu
from ekiden.runtime.debug.instructions import Instruction, make_instruction
from ekiden.runtime.errors import LoadError, RunError
from ekiden.target import VirtualDevice

META = {"VirtualDevice": [VirtualDevice(cpu(0)), VirtualDevice(cpu(1))]}
ON_0 = "virtual_device=meta[VirtualDevice][0]"
ON_1 = "virtual_device=meta[VirtualDevice][1]"
T = "Tensor[(5, 7), float32]"
LIST = "type List[A] { Cons(A, List[A]), Nil, }"
TWO = {cpu(0): "llvm", cpu(1): "llvm"}


def parse(text: str) -> IRModule:
    return relay.parse(f'#[version = "0.0.5"]\n{text}', init_meta_table=META)


def random(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype("float32")


EVERY = ("vm", "aot", "async")


def check(
    module: IRModule, *args: np.ndarray, executors: Sequence[str] = EVERY
) -> ekiden.Executable:
    """The executable of a module, whose results are those of the interpreter."""
    expected = relay.create_executor("debug", module).evaluate()(*args)
    for kind in executors:
        exe = ekiden.compile(module, executor=kind)
        for _ in range(2):
            np.testing.assert_allclose(exe(*args).numpy(), expected.numpy(), 1e-5, 1e-6)
    return exe


def allocations() -> int:
    """How often the system was asked for memory."""
    return runtime.memory_stats().allocations


def count(exe: ekiden.Executable, instruction: str) -> int:
    return sum(f": {instruction} " in line for line in exe.disassemble().splitlines())


PROGRAMS = {
    "operators": (
        f"def @main(%x: {T}, %y: {T}) {{ %0 = on_device(add(%x, %y), {ON_1});"
        " multiply(%0, nn.relu(%0)) }",
        (random(5, 7), random(5, 7)), 1,
    ),
    "closures": (
        f"def @main(%x: bool, %y: {T}, %z: {T}) {{ let %f = fn (%a) {{"
        f" %0 = on_device(%y, {ON_1}, constrain_result=True); add(%a, %0) }};"
        f" let %g = fn (%a1) {{ on_device(subtract(%a1, %y), {ON_0}) }};"
        " let %h = if (%x) { %f } else { %g }; %h(%z) }",
        (np.array(True), random(5, 7), random(5, 7)), 2,
    ),
    "references": (
        f"def @main(%x: {T}, %y: {T}) {{ let %r = ref(on_device(%x, {ON_1},"
        " constrain_result=True)); ref_write(%r, %y); %1 = ref_read(%r); add(%y, %1) }",
        (random(5, 7), random(5, 7)), 0,
    ),
    "lists that are copied whole": (
        f"{LIST} def @sum(%l: List[{T}], %acc: {T}) -> {T} {{ match (%l) {{"
        " Cons(%h, %t) => { @sum(%t, add(%acc, %h)) }, Nil => { %acc } } }"
        f" def @main(%x: {T}, %y: {T}) {{ %0 = on_device(%y, {ON_0}, constrain_result=True);"
        f" %1 = Nil; %2 = Cons(%0, %1); let %l = Cons(%x, %2); let %m = on_device(%l, {ON_1});"
        " add(@sum(%m, zeros_like(%x)), %x) }",
        (random(5, 7), random(5, 7)), 1,
    ),
    "dynamic shapes": (
        "def @main(%x: Tensor[(?, 7), float32], %n: Tensor[(?, 7), float32]) {"
        f" %0 = on_device(nn.relu(%x), {ON_1}); add(concatenate((%0, %n)), 1f) }}",
        (random(6, 7), random(2, 7)), 1,
    ),
    "a result whose shape depends on data": (
        f"def @main(%x: {T}) {{ %0 = on_device(argwhere(%x), {ON_1});"
        ' cast(%0, dtype="float32") }',
        ((random(5, 7) > 0).astype("float32"),), 2,
    ),
    "a shape that is data": (
        "def @main(%x: Tensor[(?, 8), float32], %s: Tensor[(2), int64]) {"
        f" %0 = on_device(nn.relu(%x), {ON_1}, constrain_result=True);"
        " %1 = dyn.reshape(%0, %s); negative(%1) }",
        (random(3, 8), np.array([4, 6])), 1,
    ),
    "recursion": (
        f"def @loop(%i: int32, %x: {T}) -> {T} {{ if (less(%i, 10)) {{"
        f" %0 = on_device(multiply(%x, 1.1f), {ON_1}); @loop(add(%i, 1), %0) }} else {{"
        f" on_device(%x, {ON_0}) }} }} def @main(%x: {T}) {{ @loop(0, %x) }}",
        (random(5, 7),), 2,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_all_executors_agree(name: str) -> None:
    text, args, copies = PROGRAMS[name]
    exe = check(parse(text), *args)
    assert count(exe, "device_copy") == copies
    assert exe.raw.devices == [cpu(0), cpu(1)]


def test_constants_are_copied_to_devices_at_load() -> None:
    weight = relay.const(random(5, 7))
    x = relay.var("x", shape=(5, 7))
    both = relay.add(on_device(relay.multiply(x, weight), cpu(1)), relay.multiply(x, weight))
    exe = check(IRModule.from_expr(relay.Function([x], both)), random(5, 7))
    assert [c.device.id for c in exe.raw.constants if c.shape == (5, 7)] == [1]
    tuples = relay.concatenate([on_device(weight, cpu(1)), x], axis=0)
    exe = check(IRModule.from_expr(relay.Function([x], on_device(tuples, cpu(1)))), random(5, 7))
    assert count(exe, "device_copy") == 0


def test_results_stay_on_their_device() -> None:
    x = relay.var("x", shape=(4,))
    module = IRModule.from_expr(relay.Function([x], on_device(relay.exp(x), cpu(1))))
    exe = ekiden.compile(module, [cpu(0), cpu(1)])
    result = exe(runtime.tensor(random(4)).copyto(cpu(1)))
    assert result.device == cpu(1) and result.__dlpack_device__() == (1, 1)
    copied = result.numpy()
    assert not np.shares_memory(copied, result.numpy())
    np.testing.assert_allclose(copied, np.exp(random(4)), rtol=1e-6)
    assert ekiden.compile(IRModule.from_expr(relay.Function([x], relay.exp(x))), TWO)(
        runtime.tensor(random(4)).copyto(cpu(1))
    ).device == cpu(0)


def test_default_other_than_the_host() -> None:
    x = relay.var("x", shape=(4,))
    module = IRModule.from_expr(relay.Function([x], relay.exp(x)))
    exe = ekiden.compile(module, [cpu(1), cpu(0)])
    assert exe(random(4)).device == cpu(1)
    assert relay.vm.compile(module, {cpu(1): "llvm"})(random(4)).device == cpu(1)


def test_devices_have_separate_memory() -> None:
    def asks_the_system(number: int) -> bool:
        before = allocations()
        runtime.empty((1 << 22,), "float32", cpu(number))  # and forgotten at once
        return allocations() > before

    assert asks_the_system(1)
    assert not asks_the_system(1)
    assert asks_the_system(3)
    assert not asks_the_system(3)
    assert not asks_the_system(1)
    with pytest.raises(ValueError, match="a CPU device from 0 to 7 expected, got 8"):
        runtime.empty((4,), "float32", cpu(8))


def test_warm_run_allocates_nothing() -> None:
    exe = ekiden.compile(parse(PROGRAMS["operators"][0]))
    x = runtime.tensor(random(5, 7))
    for _ in range(3):
        exe(x, x)
    before = allocations()
    for _ in range(10):
        exe(x, x)
    assert allocations() == before


def test_saved_program_records_its_devices(tmp_path: Path) -> None:
    exe = ekiden.compile(parse(PROGRAMS["closures"][0]))
    exe.save(tmp_path / "two.eki")
    again = ekiden.load(tmp_path / "two.eki")
    assert again.raw.to_bytes() == exe.raw.to_bytes()
    args = PROGRAMS["closures"][1]
    np.testing.assert_array_equal(again(*args).numpy(), exe(*args).numpy())


def test_profile_shows_copies() -> None:
    text, args, _ = PROGRAMS["operators"]
    report = ekiden.compile(parse(text)).profile(*args, peak=False)
    copies = [call for call in report.calls if call.name.startswith("device_copy")]
    arguments, copy = copies[:-1], copies[-1]
    assert {call.name for call in arguments} == {"device_copy argument -> cpu(1)"}
    assert copy.name == "device_copy cpu(1) -> cpu(0)"
    assert copy.nbytes == 4 * 5 * 7
    assert "device_copy cpu(1) -> cpu(0)" in str(report)


def by_hand(*code: Instruction, places: DeviceTable, primitives: tuple[str, ...] = ()) -> bytes:
    main = VMFunction("main", ("x",), 3, code)
    return write_executable([main], [], list(primitives), b"", {}, places)


DEVICES = ((1, 0), (1, 1))
COPY = (
    make_instruction("DeviceCopy", dst=1, src=0, dst_device=1, src_device=0),
    make_instruction("Ret", src=1),
)


def test_primitive_refuses_tensor_of_another_device() -> None:
    ekiden.register_func("ekiden.test.nothing", lambda *args: None, override=True)
    call = make_instruction("InvokePacked", packed_index=0, output_size=1, args=(0, 0))
    places = DeviceTable(DEVICES, (), (1,), ((0,),))
    data = by_hand(
        call, make_instruction("Ret", src=0), places=places, primitives=("ekiden.test.nothing",)
    )
    machine = runtime.VirtualMachine(runtime.Executable.from_bytes(data))
    message = r"argument 0 of 'ekiden.test.nothing': a tensor on cpu\(1\) expected, got one on cpu"
    with pytest.raises(RunError, match=message):
        machine.invoke("main", runtime.tensor(random(3)))


def test_copies_of_data() -> None:
    data = by_hand(*COPY, places=DeviceTable(DEVICES, (), (), ((0,),)))
    machine = runtime.VirtualMachine(runtime.Executable.from_bytes(data))
    value = runtime.ADT(1, [runtime.tensor(random(3)), 5, runtime.ADT(0, [])])
    for _ in range(50_000):
        value = runtime.ADT(2, [runtime.tensor(np.float32(1)), value])
    copied = machine.invoke("main", value)
    for _ in range(50_000):
        assert copied.tag == 2
        copied = copied[1]
    assert copied.tag == 1 and copied[1] == 5 and copied[0].device == cpu(1)
    elsewhere = runtime.ADT(0, [runtime.tensor(random(3)).copyto(cpu(1))])
    assert machine.invoke("main", elsewhere)[0].device == cpu(1)


@pytest.mark.parametrize(
    ("places", "message"),
    [
        (DeviceTable(((1, 1), (1, 0)), (), (), ((0,),)), "device 0 must be the host"),
        (DeviceTable(((1, 0), (1, 0)), (), (), ((0,),)), "one that differs from those before it"),
        (DeviceTable(((1, 0), (1, -1)), (), (), ((0,),)), "got type 1, id -1"),
        (DeviceTable(DEVICES, (), (), ((2,),)), "a device below 2 expected, got 2"),
        (DeviceTable(DEVICES, (), (), ()), "1 places expected, got 0"),
        (DeviceTable(DEVICES, (0,), (), ((0,),)), "1 places expected, got 2"),
    ],
)
def test_hostile_tables_are_refused(places: DeviceTable, message: str) -> None:
    with pytest.raises(LoadError, match=f"DEVICES: .*{message}"):
        runtime.Executable.from_bytes(by_hand(*COPY, places=places))


def test_out_of_range_device_operand_is_refused() -> None:
    with pytest.raises(LoadError, match="a device below 1 expected, got 1"):
        runtime.Executable.from_bytes(by_hand(*COPY, places=DeviceTable()))


@st.composite
def programs(draw: st.DrawFn) -> IRModule:
    """A function over three tensors: operators, branches, tuples, closures and references, with
    marks anywhere.
    """
    params = [relay.var(n, shape=(2, 3)) for n in "abc"]
    values: list[relay.Expr] = list(params)

    def pick() -> relay.Expr:
        value = draw(st.sampled_from(values))
        if draw(st.integers(0, 2)):
            return value
        fixed = draw(st.booleans())
        return on_device(value, cpu(draw(st.integers(0, 2))), constrain_result=fixed)

    def apply(function: relay.Function, *args: relay.Expr) -> relay.Expr:
        return relay.Call(function, args)

    for _ in range(draw(st.integers(1, 7))):
        kind = draw(st.sampled_from(["add", "relu", "if", "tuple", "closure", "ref", "const"]))
        if kind == "add":
            values.append(relay.add(pick(), pick()))
        elif kind == "relu":
            values.append(relay.nn.relu(pick()))
        elif kind == "const":
            values.append(relay.multiply(pick(), relay.const(random(2, 3))))
        elif kind == "if":
            values.append(relay.If(relay.sum(pick()) > 0.0, pick(), pick()))
        elif kind == "tuple":
            values.append(relay.TupleGetItem(relay.Tuple([pick(), pick()]), 1))
        elif kind == "closure":
            x = relay.var("x", shape=(2, 3))
            values.append(apply(relay.Function([x], relay.add(pick(), x)), pick()))
        else:
            r, y = relay.var("r"), relay.var("y")
            body = relay.Let(y, relay.RefWrite(r, pick()), relay.RefRead(r))
            values.append(relay.Let(r, relay.RefCreate(pick()), body))
    return IRModule.from_expr(relay.Function(params, on_device(values[-1], cpu(0))))


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(programs())
def test_device_annotations_do_not_change_results(module: IRModule) -> None:
    check(module, random(2, 3), random(2, 3) + 1, random(2, 3) - 1, executors=("vm",))


FUNCTIONS = {
    "generic code of tensors and functions": """
    def @id[A](%x: A) -> A { %x }
    def @main(%n: int32, %b: float32) -> float32 {
      let %y = on_device(@id(%b), FAR, constrain_body=False, constrain_result=True);
      let %f = if (greater(%b, 0f)) { fn (%x: float32) -> float32 { exp(%x) } }
               else { fn (%x: float32) -> float32 { %b } };
      let %g = @id(%f);
      %g(add(%y, %b))
    }""",
    "a closure that calls what is around it": """
    def @main(%n: int32, %b: float32) -> float32 {
      let %f = fn (%a: int32, %y: float32) -> float32 {
        if (less_equal(%a, 0)) { %y } else {
          let %g = if (greater(%y, 0f)) { fn (%x: int32) -> float32 { %f(subtract(%a, 1), %y) } }
                   else { fn (%x: int32) -> float32 { %y } };
          %g(on_device(negative(%a), FAR, constrain_result=True))
        }
      };
      %f(%n, %b)
    }""",
}


@pytest.mark.parametrize("text", FUNCTIONS.values(), ids=FUNCTIONS)
@pytest.mark.parametrize("first", [0, 1])
def test_functions_among_values_of_two_devices(text: str, first: int) -> None:
    """Closures are not copied, and what nobody says of a function's values is on the host."""
    far = "virtual_device=VirtualDevice(device_type=1, virtual_device_id=1)"
    module = parse(text.replace("FAR", far))
    exe = ekiden.compile(module, [cpu(first), cpu(1 - first)])
    for n, b in ((2, 0.3), (1, -0.3)):
        given = np.int32(n), np.float32(b)
        expected = Interpreter(module).evaluate("main", *given)
        np.testing.assert_allclose(exe(*given).numpy(), expected, rtol=1e-6)


def test_kernel_on_the_host_whose_result_goes_to_a_function_of_functions() -> None:
    """Nothing says of a function in a function where its parameters are: what was planned is read
    from the copies before it."""
    inner = "fn (bool) -> bool"
    outer = f"fn ({T}) -> {inner}"
    result = f"fn (int32) -> {outer}"
    module = parse(f"""def @main(%i: bool, %m: {T}) {{
      %0 = on_device(%m, {ON_0}, constrain_result=True, constrain_body=False);
      %1 = negative(%0);
      %2 = {{
        let %f = fn (%n: int32, %g: {result}) -> {result} {{
          if (less(%n, 0)) {{ %g }} else {{ %f(subtract(%n, 1), %g) }}
        }};
        let %h = fn () -> {result} {{
          fn (%q: int32) -> {outer} {{
            fn (%a: {T}) -> {inner} {{ fn (%c: bool) -> bool {{ %i }} }}
          }}
        }};
        %f(2, %h())
      }};
      %3 = %2(1);
      let %k = %3(%1);
      %k(%i)
    }}""")
    exe = ekiden.compile(module, [cpu(1), cpu(0)])
    assert bool(exe(np.array(True), random(5, 7)).numpy())
