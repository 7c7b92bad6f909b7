"""Tensors inside arguments come to the program's device, however deep they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, rpc, runtime
from ekiden.runtime import ADT, Device, Tensor
from ekiden.runtime.errors import CompileError

MATRIX = "Tensor[(?, 3), float32]"
LIST = f"type List {{ Nil, Cons({MATRIX}, List) }}\n"
Y = np.arange(-4.0, 5.0, dtype="float32").reshape(3, 3)
RELU = np.maximum(Y, 0)
SQUARE = "Tensor[(3, 3), float32]"

Place = Callable[[np.ndarray], Tensor]


def on_opencl(opencl: Device) -> Place:
    return lambda array: runtime.tensor(array).copyto(opencl)


def strided(array: np.ndarray) -> Tensor:
    """The same elements, every other one of memory that is twice as wide."""
    wide = np.repeat(array, 2, axis=1)
    return runtime.from_dlpack(wide[:, ::2])


@pytest.fixture(params=["opencl", "strided"])
def place(request: pytest.FixtureRequest) -> Place:
    """What makes a tensor that a kernel of the host cannot read where it is."""
    if request.param == "strided":
        return strided
    return on_opencl(request.getfixturevalue("opencl"))


def machine_of(text: str, executor: str = "vm") -> runtime.VirtualMachine:
    executable = ekiden.compile(relay.parse(text), executor=executor)
    return runtime.VirtualMachine(executable.raw, "async" if executor == "async" else "vm")


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_tuple_fields_are_copied_to_the_device(place: Place, executor: str) -> None:
    text = f"def @main(%x: ({MATRIX}, ({MATRIX}, {MATRIX}))) {{ add(%x.0, %x.1.1) }}"
    y = place(Y)
    result = machine_of(text, executor).invoke("main", (y, (runtime.tensor(Y), y)))
    np.testing.assert_array_equal(result.numpy(), 2 * Y)


FIRST = LIST + f"def @main(%l: List) -> {MATRIX} {{ match? (%l) {{ Cons(%h, _) => nn.relu(%h) }} }}"


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_list_elements_are_copied_to_the_device(place: Place, executor: str) -> None:
    given = ADT(1, [place(Y), ADT(0, [])])
    np.testing.assert_array_equal(machine_of(FIRST, executor).invoke("main", given).numpy(), RELU)
    again = machine_of(LIST + "def @main(%l: List) -> List { %l }").invoke("main", given)
    assert again[0].device == ekiden.cpu()
    np.testing.assert_array_equal(again[0].numpy(), Y)


def test_long_list_with_one_foreign_element_is_copied(place: Place) -> None:
    text = LIST + "def @main(%l: List) -> List { %l }"
    own, given = runtime.tensor(Y), ADT(0, [])
    for number in range(5_000):
        given = ADT(1, [place(Y) if number == 2_500 else own, given])
    at = machine_of(text).invoke("main", given)
    for _ in range(5_000):
        assert at[0].device == ekiden.cpu()
        assert at[0].is_contiguous
        at = at[1]


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_externally_written_references_are_copied(place: Place, executor: str) -> None:
    text = f"def @main(%r: ref({SQUARE})) -> {SQUARE} {{ nn.relu(ref_read(%r)) }}"
    reference, machine = runtime.Ref(place(Y)), machine_of(text, executor)
    np.testing.assert_array_equal(machine.invoke("main", reference).numpy(), RELU)
    reference.value = place(Y - 1)
    np.testing.assert_array_equal(machine.invoke("main", reference).numpy(), np.maximum(Y - 1, 0))


def test_references_inside_adts_are_copied(place: Place) -> None:
    text = LIST + (
        f"def @main(%x: (ref(List), {MATRIX})) -> {MATRIX} "
        "{ match? (ref_read(%x.0)) { Cons(%h, _) => add(%h, %x.1) } }"
    )
    reference = runtime.Ref(ADT(1, [place(Y), ADT(0, [])]))
    result = machine_of(text).invoke("main", (reference, place(Y)))
    np.testing.assert_array_equal(result.numpy(), 2 * Y)


def test_exported_library_copies_arguments_to_the_device(place: Place, tmp_path: Path) -> None:
    text = f"def @main(%x: ({MATRIX}, {MATRIX})) {{ add(%x.0, %x.1) }}"
    ekiden.compile(relay.parse(text)).export_library(tmp_path / "program.so")
    function = runtime.load_module(tmp_path / "program.so")["main"]
    np.testing.assert_array_equal(function((place(Y), place(Y))).numpy(), 2 * Y)


def test_host_adts_are_copied_to_the_device(opencl: Device) -> None:
    text = (
        LIST + f"def @main(%l: List) -> {MATRIX} {{ match? (%l) {{ Cons(%h, _) => nn.relu(%h) }} }}"
    )
    executable = ekiden.compile(relay.parse(text), target="opencl")
    for value in (runtime.tensor(Y), runtime.tensor(Y).copyto(opencl)):
        result = executable(ADT(1, [value, ADT(0, [])]))
        np.testing.assert_array_equal(result.numpy(), RELU)


@pytest.mark.parametrize("kind", ["debug", "vm", "aot"])
def test_executors_copy_what_arguments_hold(place: Place, kind: str) -> None:
    executor = relay.create_executor(kind, relay.parse(FIRST))
    result = executor.evaluate()(ADT(1, [place(Y), ADT(0, [])]))  # type: ignore[operator]
    np.testing.assert_array_equal(result.numpy(), RELU)
    text = f"def @main(%r: ref({SQUARE})) {{ ref_write(%r, add(ref_read(%r), ref_read(%r))) }}"
    reference = runtime.Ref(place(Y))
    relay.create_executor(kind, relay.parse(text)).evaluate()(reference)  # type: ignore[operator]
    np.testing.assert_array_equal(reference.value.numpy(), 2 * Y)


@pytest.mark.parametrize("executor", ["vm", "aot"])
def test_references_that_enter_a_device_hold_tensors_there(opencl: Device, executor: str) -> None:
    """Directly, inside data that has other owners, inside another reference, and around itself."""
    text = LIST.replace("List)", "List), Mutable(ref(List))") + (
        f"def @head(%l: List) -> {MATRIX} {{ match? (%l) {{ Cons(%h, _) => %h, "
        "Mutable(%r) => @head(ref_read(%r)) } }\n"
        f"def @main(%r: ref({SQUARE}), %l: List) {{ let %u = ref_write(%r, add(ref_read(%r), "
        "ref_read(%r))); (ref_read(%r), nn.relu(@head(%l))) }"
    )
    executable = ekiden.compile(relay.parse(text), "opencl", executor=executor)
    for value in (runtime.tensor(Y), runtime.tensor(Y).copyto(opencl)):
        reference, inner = runtime.Ref(value), runtime.Ref(ADT(1, [value, ADT(0)]))
        data = ADT(2, [runtime.Ref(ADT(2, [inner]))])
        for turn in (2, 4):
            doubled, first = executable(reference, data)
            np.testing.assert_array_equal(doubled.numpy(), turn * Y)
            np.testing.assert_array_equal(first.numpy(), RELU)
            np.testing.assert_array_equal(reference.value.numpy(), turn * Y)
        inner.value = ADT(1, [runtime.tensor(-Y), ADT(0)])
        _, first = executable(reference, data)
        np.testing.assert_array_equal(first.numpy(), np.maximum(-Y, 0))
        inner.value = data
        result = executable(reference, ADT(1, [value, data]))
        np.testing.assert_array_equal(result[1].numpy(), RELU)
        inner.value = ADT(0)


@pytest.mark.parametrize("target", ["llvm", "opencl", "vulkan"])
def test_data_of_several_kinds_of_devices_comes_to_one(
    opencl: Device, vulkan: Device, target: str
) -> None:
    value = runtime.tensor(Y)
    items = ADT(0, [])
    for item in (value, value.copyto(opencl), value.copyto(vulkan)):
        items = ADT(1, [item, items])
    text = LIST + (
        f"def @sum(%l: List) -> {SQUARE} {{ match (%l) {{ Cons(%h, %t) => add(%h, @sum(%t)), "
        'Nil => zeros(shape=[3, 3], dtype="float32") } }\n'
        f"def @main(%l: List, %r: ref({SQUARE})) -> {SQUARE} {{ add(@sum(%l), ref_read(%r)) }}"
    )
    executable = ekiden.compile(relay.parse(text), target)
    for device in (opencl, vulkan):
        result = executable(items, runtime.Ref(value.copyto(device)))
        np.testing.assert_array_equal(result.numpy(), 4 * Y)


def test_graph_executor_refuses_inputs_that_are_no_tensors() -> None:
    text = f"def @main(%x: ({SQUARE}, {SQUARE})) {{ add(%x.0, %x.1) }}"
    with pytest.raises(CompileError, match="graph: input 'x' is no tensor: .*the virtual"):
        relay.create_executor("graph", relay.parse(text)).evaluate()


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("target", ["llvm", "opencl"])
def test_closures_of_a_program_copy_arguments_to_its_device(
    opencl: Device, target: str, executor: str
) -> None:
    """Parameters of one program's closures are on different devices."""
    text = (
        f"def @main(%x: {SQUARE}) {{ (fn (%a: {SQUARE}, %n: int64) -> {SQUARE} {{ "
        f"if (less(%n, 1i64)) {{ %a }} else {{ add(%a, %x) }} }}, fn (%a: ({SQUARE}, {SQUARE})) "
        f"-> {SQUARE} {{ multiply(%a.0, %a.1) }}) }}"
    )
    functions = ekiden.compile(relay.parse(text), target, executor=executor)(Y)
    add, multiply = functions  # type: ignore[misc]
    values = runtime.tensor(Y), runtime.tensor(Y).copyto(opencl)
    for first, second in itertools.product(values, values):
        for count in (0, 1):
            result = add(first, np.int64(count))  # type: ignore[operator]
            np.testing.assert_array_equal(result.numpy(), Y + count * Y)
        result = multiply((first, second))  # type: ignore[operator]
        np.testing.assert_array_equal(result.numpy(), Y * Y)


def test_remote_programs_copy_arguments_to_their_device(opencl: Device, tmp_path: Path) -> None:
    ekiden.compile(relay.parse(FIRST)).save(tmp_path / "first.eki")
    server = rpc.Server(port=0)
    try:
        with rpc.connect("127.0.0.1", server.port) as session:
            session.upload(str(tmp_path / "first.eki"))
            module = session.load_module("first.eki")
            for device in (session.cpu(), session.cl(0)):
                value = runtime.nd.array(Y, device)
                result = module["main"](ADT(1, [value, ADT(0, [])]))
                np.testing.assert_array_equal(result.numpy(), RELU)
            with pytest.raises(TypeError, match="rpc: Tensor cannot cross: copy it there first"):
                module["main"](ADT(1, [runtime.tensor(Y).copyto(opencl), ADT(0, [])]))
    finally:
        server.terminate()
