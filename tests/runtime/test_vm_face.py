"""TVM's face of the virtual machine: outputs given, arguments of stateful calls, what is inside."""

import numpy as np
import pytest

from ekiden import nd, relay, runtime
from ekiden.runtime.errors import InputError

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


def test_a_call_without_arguments_takes_the_inputs_that_were_set() -> None:
    vm = machine()
    vm.invoke_stateful("main", X)
    one, two = vm.get_outputs()
    vm.set_input("main", X + 1)
    three, _ = vm.invoke("main")  # type: ignore[misc]
    np.testing.assert_array_equal(one.numpy(), X + X)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(two.numpy(), X)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(three.numpy(), 2 * X + 2)


def test_an_executable_says_what_is_in_it() -> None:
    text = "def @f(%n: int32) -> int32 { if (%n < 1) { %n } else { @f(%n - 1) } }"
    exe = relay.vm.compile(relay.parse(f"{text} def @main(%x: int32) {{ @f(%x) }}"))
    assert sorted(exe.globals) == ["f", "main"]
    assert any("less" in name for name in exe.primitive_ops)
    assert "f(n)" in exe.bytecode
