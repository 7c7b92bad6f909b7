"""Arguments are held against the declared types before anything runs, whoever calls, and the error
names the input.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden import relay
from ekiden.runtime import vm

pytestmark = pytest.mark.quick
Array = np.ndarray


def f32(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def message_of(call: object, *args: object) -> str:
    assert callable(call)
    with pytest.raises(ekiden.InputError) as caught:
        call(*args)
    return str(caught.value)


TWO = """
def @main(%x: Tensor[(n, 3), float32], %y: Tensor[(n + 1,), float32]) {
  (exp(%x), exp(%y))
}
"""


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_executors_give_identical_argument_errors(executor: str) -> None:
    exe = ekiden.compile(relay.parse(TWO), executor=executor)
    machine = vm.VirtualMachine(exe)
    calls = [exe, exe.module["main"], lambda *a: machine.invoke("main", *a), exe.profile]
    cases = [
        ((f32(2, 4), f32(3)), "input 'x': expected Tensor[(n, 3), float32], got (2, 4) float32"),
        ((f32(3), f32(3)), "input 'x': expected Tensor[(n, 3), float32], got (3) float32"),
        ((np.ones((2, 3)), f32(3)),
         "input 'x': expected Tensor[(n, 3), float32], got (2, 3) float64"),
        ((f32(2, 3), f32(2)),
         "input 'y': expected Tensor[(n + 1), float32] with n + 1 = 3, got (2) float32"),
    ]  # fmt: skip
    for call in calls:
        for args, message in cases:
            assert message_of(call, *map(ekiden.tensor, args)) == message
        call(ekiden.tensor(f32(2, 3)), ekiden.tensor(f32(3)))


def test_identity_function_checks_its_argument() -> None:
    exe = relay.vm.compile(relay.parse("def @main(%x: Tensor[(2,), float32]) { %x }"))
    machine = vm.VirtualMachine(exe)
    expected = "input 'x': expected Tensor[(2), float32], got (5) float32"
    assert message_of(machine.invoke, "main", f32(5)) == expected
    assert machine.invoke("main", f32(2)).shape == (2,)  # type: ignore[attr-defined]


def test_non_main_functions_check_their_arguments() -> None:
    text = """
    def @other(%a: Tensor[(n, n), float32]) -> Tensor[(n, n), float32] { tanh(%a) }
    def @main(%x: Tensor[(4, 4), float32]) -> Tensor[(4, 4), float32] { @other(%x) }
    """
    raw = ekiden.compile(relay.parse(text)).raw
    assert "other" in raw.globals
    machine = vm.VirtualMachine(raw)
    expected = "input 'a': expected Tensor[(n, n), float32] with n = 2, got (2, 3) float32"
    assert message_of(machine.invoke, "other", f32(2, 3)) == expected


def test_tuple_arguments_are_checked_by_field() -> None:
    text = "def @main(%t: (Tensor[(n,), float32], Tensor[(n,), float32])) { %t.0 + %t.1 }"
    machine = vm.VirtualMachine(relay.vm.compile(relay.parse(text)))
    expected = "field 1 of input 't': expected Tensor[(n), float32] with n = 2, got (3) float32"
    assert message_of(machine.invoke, "main", (f32(2), f32(3))) == expected
    assert message_of(machine.invoke, "main", (f32(2),)) == (
        "input 't': expected a tuple of 2, got a tuple of 1"
    )


def test_inputs_have_the_names_of_the_model() -> None:
    """Names that no variable of a program can have."""
    kinds = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 3]) for n in ("in.1", "a/b")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["in.1", "a/b"], ["y"])], "g", kinds,
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 3])],
    )  # fmt: skip
    exe = ekiden.compile(helper.make_model(graph))
    assert exe.get_function_params("main") == ["in.1", "a/b"]
    assert message_of(exe.module["main"], f32(2, 3), f32(4, 3)) == (
        "input 'a/b': expected Tensor[(b, 3), float32] with b = 2 as in input 'in.1', "
        "got (4, 3) float32"
    )


def test_graph_executor_names_the_input_too() -> None:
    lib = relay.build(relay.parse("def @main(%x: Tensor[(2, 2), float32]) { exp(%x) }"))
    module = lib["default"](ekiden.cpu(0))
    module["set_input"]("x", ekiden.tensor(f32(2, 3)))
    expected = "input 'x': expected Tensor[(2, 2), float32], got (2, 3) float32"
    assert message_of(module["run"]) == expected


def test_elements_of_a_sequence_are_held_against_their_type() -> None:
    kind = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(
        [helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], "g", [kind], [result]
    )
    exe = ekiden.compile(helper.make_model(graph))
    assert exe([f32(2), f32(2)]).shape == (4,)
    expected = "input 's[1]': expected Tensor[(2), float32], got (3) float32"
    assert message_of(exe, [f32(2), f32(3)]) == expected
    expected = "input 's[0]': expected Tensor[(2), float32], got (2) float64"
    assert message_of(exe, [np.ones(2), f32(3)]) == expected


def test_bound_run_is_refused_when_it_is_bound() -> None:
    exe = ekiden.compile(relay.parse("def @main(%x: Tensor[(2, 2), float32]) { exp(%x) }"))
    expected = "input 'x': expected Tensor[(2, 2), float32], got (2, 3) float32"
    assert message_of(exe.bind, f32(2, 3)) == expected
