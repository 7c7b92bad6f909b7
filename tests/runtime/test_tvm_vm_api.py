"""TVM's API of the virtual machine: caller's output buffers, stateful inputs, contents."""

import numpy as np
import pytest

from ekiden import nd, relay, runtime
from ekiden.runtime.errors import InputError
from ekiden.runtime.executable import output_buffers

pytestmark = pytest.mark.quick
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def machine() -> runtime.vm.VirtualMachine:
    module = relay.parse("def @main(%x: Tensor[(2, 3), float32]) { (%x + %x, nn.relu(%x)) }")
    return runtime.vm.VirtualMachine(relay.vm.compile(module))


def test_outputs_are_copied_to_tensors_of_the_caller() -> None:
    out = [nd.array(np.zeros((2, 3), np.float32)) for _ in range(2)]
    vm = machine()
    vm.invoke_with_outputs("main", {"x": X}, out)
    np.testing.assert_array_equal(out[0].numpy(), X + X)
    np.testing.assert_array_equal(out[1].numpy(), X)
    with pytest.raises(InputError, match="main: 2 outputs expected, got 1"):
        vm.invoke_with_outputs("main", {"x": X}, out[:1])


def address(tensor: runtime.Tensor) -> int:
    return int(tensor.numpy().ctypes.data)


def test_kernels_write_outputs_where_the_caller_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    output: list[int] = []

    def invoke_into(*args: object) -> object:
        result = output_buffers.invoke_into(*args)  # type: ignore[arg-type]
        output.extend(map(address, result))  # type: ignore[call-overload]
        return result

    monkeypatch.setattr(runtime.vm, "invoke_into", invoke_into)
    vm = machine()
    out = [nd.array(np.zeros((2, 3), np.float32)) for _ in range(2)]
    vm.invoke_with_outputs("main", {"x": X}, out)
    assert output == list(map(address, out))
    assert [address(t) for t in vm.get_outputs()] == output  # type: ignore[arg-type]
    shared = nd.array(X)
    vm.invoke_with_outputs("main", {"x": shared}, [shared, out[1]])  # read while it is written
    assert output[2] not in map(address, (shared, *out)) and output[3] == address(out[1])
    np.testing.assert_array_equal(shared.numpy(), X + X)
    np.testing.assert_array_equal(out[1].numpy(), X)
    wrong = nd.array(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="copy tensor: the shapes differ"):
        vm.invoke_with_outputs("main", {"x": X}, [wrong, out[1]])


def test_outputs_of_a_program_that_branches_are_copied() -> None:
    text = "def @main(%x: Tensor[(2, 3), float32], %c: bool) { if (%c) { %x + %x } else { %x } }"
    vm = runtime.vm.VirtualMachine(relay.vm.compile(relay.parse(text)))
    out = nd.array(np.zeros((2, 3), np.float32))
    for value, expected in ((True, X + X), (False, X)):
        vm.invoke_with_outputs("main", {"x": X, "c": np.asarray(value)}, [out])
        np.testing.assert_array_equal(out.numpy(), expected)


def test_outputs_apply_to_the_next_call_only() -> None:
    vm = machine()
    out = [nd.array(np.zeros((2, 3), np.float32)) for _ in range(2)]
    vm.set_outputs("main", *out)
    for argument in (X, X + 1):  # the second call is one of its own
        vm.invoke("main", argument)
        np.testing.assert_array_equal(out[0].numpy(), X + X)
        np.testing.assert_array_equal(out[1].numpy(), X)


def test_call_without_arguments_takes_the_inputs_that_were_set() -> None:
    vm = machine()
    vm.invoke_stateful("main", X)
    one, two = vm.get_outputs()
    vm.set_input("main", X + 1)
    three, _ = vm.invoke("main")  # type: ignore[misc]
    np.testing.assert_array_equal(one.numpy(), X + X)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(two.numpy(), X)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(three.numpy(), 2 * X + 2)


def test_executable_lists_its_contents() -> None:
    text = "def @f(%n: int32) -> int32 { if (%n < 1) { %n } else { @f(%n - 1) } }"
    exe = relay.vm.compile(relay.parse(f"{text} def @main(%x: int32) {{ @f(%x) }}"))
    assert sorted(exe.globals) == ["f", "main"]
    assert any("less" in name for name in exe.primitive_ops)
    assert "f(n)" in exe.bytecode


ADD = "def @main(%x: Tensor[(2, 3), float32]) { nn.relu(%x) + tanh(%x) }"


def test_bytecode_and_kernels_load_separately() -> None:
    exe = relay.vm.compile(relay.parse(ADD))
    code, lib = exe.save()
    assert isinstance(code, bytearray) and isinstance(lib, runtime.Module)
    assert len(code) < len(exe.raw.to_bytes())
    joined = runtime.vm.Executable.load_exec(code, lib)
    result = runtime.vm.VirtualMachine(joined).run(X)
    np.testing.assert_array_equal(result.numpy(), exe(X).numpy())  # type: ignore[attr-defined, union-attr]
    alone = runtime.vm.Executable.load_exec(code)
    with pytest.raises(Exception, match=exe.primitive_ops[0]):
        runtime.vm.VirtualMachine(alone)


def test_module_of_a_program_runs_in_a_machine() -> None:
    exe = relay.vm.compile(relay.parse(ADD))
    machine_of = runtime.vm.VirtualMachine
    np.testing.assert_array_equal(
        machine_of(exe.module).run(X).numpy(),  # type: ignore[attr-defined]
        machine_of(exe).run(X).numpy(),  # type: ignore[attr-defined]
    )
    assert exe.mod.get_function_params("main") == ["x"]
    with pytest.raises(TypeError, match="get_executable: no argument expected"):
        exe.module["get_executable"](1)


def test_numbers_of_python_are_int32_and_float32() -> None:
    text = """
    def @main(%n: int32, %x: float32, %b: bool) {
      if (%b) { cast(%n, dtype="float32") } else { %x } }"""
    vm = runtime.vm.VirtualMachine(relay.vm.compile(relay.parse(text)))
    assert vm.run(3, 0.5, True).numpy() == 3  # type: ignore[attr-defined]
    assert vm.run(3, 0.5, False).numpy() == 0.5  # type: ignore[attr-defined]


def test_executable_text_lists_contents() -> None:
    x, weight = relay.var("x", shape=(2, 3)), relay.const(X)
    exe = relay.vm.compile(relay.Function([x], x + weight))
    assert exe.constants == "Const[0]: float32[2, 3]"
    stats = exe.stats.splitlines()
    assert stats[0] == "constants (#1):" and "globals (#1): main[0]" in stats
    assert stats[-1] == f"primitives (#1): {exe.primitive_ops[0]}[0]"


def test_stop_fusion_stands_between_kernels() -> None:
    x = relay.var("x", shape=(2, 3))
    apart = relay.tanh(relay.annotation.stop_fusion(relay.nn.relu(x)))
    together = relay.tanh(relay.nn.relu(x))
    counts = []
    for body in (apart, together):
        exe = relay.vm.compile(relay.Function([x], body))
        counts.append(len(exe.primitive_ops))
        result = runtime.vm.VirtualMachine(exe).run(X - 3)
        np.testing.assert_allclose(result.numpy(), np.tanh(np.maximum(X - 3, 0)), rtol=1e-6)  # type: ignore[attr-defined]
    assert counts == [2, 1]
