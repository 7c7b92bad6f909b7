"""Tensors inside arguments come to the program's device, however deep they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.runtime import ADT, Device, Tensor

MATRIX = "Tensor[(?, 3), float32]"
LIST = f"type List {{ Nil, Cons({MATRIX}, List) }}\n"
Y = np.arange(-4.0, 5.0, dtype="float32").reshape(3, 3)
RELU = np.maximum(Y, 0)

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
    return runtime.VirtualMachine(ekiden.compile(relay.parse(text)).raw, executor)


@pytest.mark.parametrize("executor", ["vm", "async"])
def test_tuple_fields_are_copied_to_the_device(place: Place, executor: str) -> None:
    text = f"def @main(%x: ({MATRIX}, ({MATRIX}, {MATRIX}))) {{ add(%x.0, %x.1.1) }}"
    y = place(Y)
    result = machine_of(text, executor).invoke("main", (y, (runtime.tensor(Y), y)))
    np.testing.assert_array_equal(result.numpy(), 2 * Y)


def test_list_elements_are_copied_to_the_device(place: Place) -> None:
    text = (
        LIST + f"def @main(%l: List) -> {MATRIX} {{ match? (%l) {{ Cons(%h, _) => nn.relu(%h) }} }}"
    )
    given = ADT(1, [place(Y), ADT(0, [])])
    np.testing.assert_array_equal(machine_of(text).invoke("main", given).numpy(), RELU)
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


def test_externally_written_references_are_copied(place: Place) -> None:
    square = "Tensor[(3, 3), float32]"
    text = f"def @main(%r: ref({square})) -> {square} {{ nn.relu(ref_read(%r)) }}"
    reference, machine = runtime.Ref(place(Y)), machine_of(text)
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
