"""Errors of compiled programs say where in the program they came up, in bytecode, in native code
and step by step alike; and cells that a program shares with its caller.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.runtime.errors import RunError
from ekiden.runtime.vm import VirtualMachine

CONS, NIL = 0, 1
LISTS = "type List[A] { Cons(A, List[A]), Nil, }\n"
FATAL = "Fatal: the program cannot go on"


Run: TypeAlias = Callable[..., runtime.Tensor]


def a_list(*values: int) -> runtime.ADT:
    result = runtime.ADT(NIL)
    for value in reversed(values):
        result = runtime.ADT(CONS, (runtime.tensor(np.int32(value)), result))
    return result


@pytest.fixture(params=["vm", "aot", "async", "steps"])
def run(request: pytest.FixtureRequest) -> Run:
    """run(text, *args): what `main` of a program gives."""

    def start(text: str, *args: object) -> runtime.Tensor:
        kind = "vm" if request.param == "steps" else request.param
        exe = ekiden.compile(relay.parse(LISTS + text), executor=kind)
        if request.param != "steps":
            return exe(*args)  # type: ignore[return-value]
        machine = VirtualMachine(exe)
        machine.start("main", *args)
        assert machine.resume()
        return machine.stepper.result  # type: ignore[return-value]

    return start


HEADS = """
def @heads(%l: (List[int32], List[int32])) -> int32 {
  match? (%l) { (Cons(%x, Cons(%y, _)), Cons(_, _)) => %x + %y, (_, Nil) => 3 }
}
def @main(%a: List[int32], %b: List[int32]) { @heads((%a, %b)) + 1 }"""


@pytest.mark.parametrize(
    ("one", "shown"),
    [(a_list(), "(Nil, Cons(_, _))"), (a_list(1), "(Cons(_, Nil), Cons(_, _))")],
)
def test_match_failure_names_location_and_value(run: Run, one: object, shown: str) -> None:
    assert int(run(HEADS, a_list(1, 2), a_list(1)).numpy()) == 4
    with pytest.raises(RunError) as error:
        run(HEADS, one, a_list(5))
    place = f"(in 'heads': no clause of the match at text:4:3 is for {shown})"
    assert str(error.value) == f"{FATAL} {place}"


def test_match_failures_name_the_match_in_a_function(run: Run) -> None:
    text = """
    def @main(%l: List[int32]) {
      match (%l) {
        Cons(%x, %rest) => match? (%rest) { Nil => %x },
        Nil => match? (%l) { Cons(%x, _) => %x } } }"""
    for values, place, shown in [((1, 2), "5:28", "Cons(_, _)"), ((), "6:16", "Nil")]:
        with pytest.raises(RunError) as error:
            run(text, a_list(*values))
        assert f"match at text:{place} is for {shown}" in str(error.value)


def test_deeply_nested_values_are_not_shown(run: Run) -> None:
    inner = "Nil"
    for _ in range(8):
        inner = f"Cons(_, {inner})"
    text = f"def @main(%l: List[int32]) {{ match? (%l) {{ {inner} => 1 }} }}"
    assert int(run(text, a_list(*range(8))).numpy()) == 1
    with pytest.raises(RunError, match=r"is for Cons\(_, Cons\(_, Cons\(_, Cons\(_, _\)\)\)\)\)"):
        run(text, a_list(*range(6)))


def test_too_deep_a_recursion_says_which_call(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EKIDEN_MAX_DEPTH", "100")
    text = """
    def @sum(%n: int32) -> int32 {
      if (%n <= 0) { 0 } else {
        1 + @sum(%n - 1) } }
    def @main(%n: int32) { @sum(%n) }"""
    with pytest.raises(RunError) as error:
        run(text, runtime.tensor(np.int32(200)))
    expected = "call: recursion is deeper than 100 calls (in 'sum': text:5:13)"
    assert str(error.value) == expected


def test_type_confusion_error_names_its_use(run: Run) -> None:
    text = """
    def @main(%l: List[int32], %c: ref(int32)) {
      let %x = ref_read(%c);
      match (%l) { Cons(%y, _) => %x + %y, Nil => %x } }"""
    three = runtime.tensor(np.int32(3))
    assert int(run(text, a_list(4), runtime.Ref(three)).numpy()) == 7
    with pytest.raises(RunError, match=r"ReadRef: a reference expected, .* \(in 'main': text:4"):
        run(text, a_list(), three)
    with pytest.raises(RunError, match=r"Switch: .* \(in 'main': text:5"):
        run(text, runtime.Ref(three), runtime.Ref(three))


def test_kernels_name_the_node_themselves(run: Run) -> None:
    text = """
    def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32]) { add(%x, %y) }"""
    with pytest.raises(RunError) as error:
        run(text, runtime.tensor(np.ones(2, "f4")), runtime.tensor(np.ones(3, "f4")))
    assert "(in '" not in str(error.value)


COUNTER = """
def @main(%c: ref(float32), %by: float32) {
  let %old = ref_read(%c);
  ref_write(%c, %old + %by);
  (%old, %c, fn () { ref_read(%c) })
}"""


@pytest.mark.parametrize("kind", ["vm", "aot"])
def test_cell_is_shared_with_the_caller(kind: str) -> None:
    exe = ekiden.compile(relay.parse(COUNTER), executor=kind)
    cell = runtime.Ref(np.float32(1))
    old, same, read = exe(cell, np.float32(2))  # type: ignore[misc]
    assert (float(old.numpy()), float(cell.value.numpy())) == (1.0, 3.0)  # type: ignore[attr-defined]
    assert same == cell
    cell.value = np.float32(10)
    assert float(read().numpy()) == 10.0  # type: ignore[operator]
    exe(same, np.float32(1))
    assert float(cell.value.numpy()) == 11.0  # type: ignore[attr-defined]


def test_reference_cell_contents_are_checked() -> None:
    rows = np.arange(6, dtype=np.int32).reshape(2, 3)
    cell = runtime.Ref((rows[:, ::2], runtime.Ref(5)))
    first, second = cell.value  # type: ignore[misc]
    np.testing.assert_array_equal(first.numpy(), rows[:, ::2])
    assert second.value == 5
    rows[:] = 0
    assert first.numpy().any()
    with pytest.raises(TypeError, match=r"ek.reference.write: .* got None"):
        cell.value = None
    with pytest.raises(TypeError, match=r"ek.reference.new: .* got None"):
        runtime.Ref(None)
