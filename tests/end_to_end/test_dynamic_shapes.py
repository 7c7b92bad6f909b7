"""Shapes unknown at function entry: `?` in any function, and named dimensions."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.runtime.errors import InputError


def check(text: str, *args: object) -> ekiden.Executable:
    """Compile, run, compare with the interpreter."""
    module = relay.parse(text)
    executable = ekiden.compile(module)
    interpreted = relay.create_executor("debug", module).evaluate()
    compare(executable, interpreted, *args)
    compare(ekiden.compile(module, executor="aot"), interpreted, *args)
    return executable


def compare(result: object, want: object, *args: object) -> None:
    """Hold a compiled program against the interpreter's function."""
    left, right = result(*args), want(*args)  # type: ignore[operator]
    for a, b in zip(_leaves(left), _leaves(right), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def _leaves(value: object) -> list[np.ndarray]:
    if isinstance(value, tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if hasattr(value, "fields"):
        return [leaf for item in value.fields for leaf in _leaves(item)]
    return [value.numpy()]  # type: ignore[attr-defined]


def floats(*shape: int) -> np.ndarray:
    """Some numbers."""
    count = int(np.prod(shape))
    return (np.arange(count, dtype=np.float32).reshape(shape) % 7 - 3) / 4


DOUBLE = """def @double(%x: Tensor[(?, 2), float32]) -> Tensor[(?, 2), float32] {
              nn.relu(concatenate((%x, %x))) }
"""


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_result_of_a_call_has_dimensions_of_its_own(rows: int) -> None:
    check(
        DOUBLE
        + """def @main(%x: Tensor[(?, 2), float32]) {
               let %y = @double(%x);
               add(multiply(%y, %y), concatenate((%x, exp(%x)))) }""",
        floats(rows, 2),
    )


@pytest.mark.parametrize("flag", [False, True])
def test_branches_may_have_different_shapes(flag: bool) -> None:
    check(
        """def @main(%x: Tensor[(?, 2), float32], %flag: bool) {
             let %y = if (%flag) { exp(%x) } else { concatenate((%x, %x)) };
             sum(multiply(%y, %y), axis=[0]) }""",
        floats(3, 2),
        np.array(flag),
    )


def test_tensor_grows_in_a_recursion() -> None:
    executable = check(
        """def @grow(%n: int32, %x: Tensor[(?, 2), float32]) -> Tensor[(?, 2), float32] {
             if (equal(%n, 0)) { %x } else {
               let %y = @grow(subtract(%n, 1), concatenate((%x, negative(%x))));
               nn.relu(%y) + %y } }
           def @main(%n: int32, %x: Tensor[(?, 2), float32]) { @grow(%n, %x) }""",
        np.array(5, np.int32),
        floats(3, 2),
    )
    assert executable(np.array(0, np.int32), floats(1, 2)).shape == (1, 2)
    assert executable(np.array(10, np.int32), floats(0, 2)).shape == (0, 2)


def test_local_loop_grows_a_tensor() -> None:
    check(
        """def @main(%n: int32) {
             let %loop = fn (%i: int32, %st: Tensor[(?, 1), int32]) -> Tensor[(?, 1), int32] {
               if (equal(%i, %n)) { %st } else {
                 %loop(add(%i, 1), concatenate((%st, reshape(%i, newshape=[1, 1])))) } };
             %loop(0, zeros(shape=[0, 1], dtype="int32")) }""",
        np.array(7, np.int32),
    )


def test_closures_capture_tensors_of_unknown_shape() -> None:
    check(
        DOUBLE
        + """def @main(%x: Tensor[(?, 2), float32]) {
               let %y = @double(%x);
               let %z = concatenate((%y, %x));
               let %f = fn (%a: Tensor[(?, 2), float32]) { (add(%a, %z), concatenate((%z, %y))) };
               let %r = %f(exp(%z));
               (%r.0, negative(%r.1)) }""",
        floats(2, 2),
    )


@pytest.mark.parametrize("flag", [False, True])
def test_closures_capture_tensors_that_carry_dimensions(flag: bool) -> None:
    check(
        DOUBLE
        + """def @main(%x: Tensor[(?, 2), float32], %c: bool) {
               let %y = @double(%x);
               let %w = @double(%y);
               let %z = concatenate((%y, %w));
               let %f = fn (%a: Tensor[(?, 2), float32]) { concatenate((%a, negative(%z))) };
               let %g = fn (%a: Tensor[(?, 2), float32]) { %f(concatenate((%a, %z))) };
               let %h = if (%c) { %f } else { %g };
               %h(%x) }""",
        floats(3, 2),
        np.array(flag),
    )


def test_fields_of_data_have_dimensions_of_their_own() -> None:
    check(
        """type List[A] { Nil, Cons(A, List[A]), }
           def @total(%xs: List[Tensor[(?,), float32]]) -> Tensor[(?,), float32] {
             match (%xs) {
               Nil => zeros(shape=[0], dtype="float32"),
               Cons(%x, %rest) => { let %t = @total(%rest); concatenate((exp(%x), %t)) },
             } }
           def @main(%x: Tensor[(?,), float32], %y: Tensor[(?,), float32]) {
             @total(Cons(%x, Cons(%y, Cons(concatenate((%y, %x)), Nil)))) }""",
        floats(3),
        floats(4),
    )


def test_reference_holds_tensors_of_several_shapes() -> None:
    module = relay.parse(
        DOUBLE
        + """def @main(%x: Tensor[(?, 2), float32]) {
               let %t = (@double(%x), %x);
               let %u = %t;
               concatenate((%u.0, add(%u.1, %u.1))) }"""
    )
    compare(ekiden.compile(module), relay.create_executor("debug", module).evaluate(), floats(3, 2))


def test_let_annotations_name_dimensions() -> None:
    check(
        DOUBLE
        + """def @main(%x: Tensor[(n, 2), float32]) {
               let %y: Tensor[(m, 2), float32] = @double(%x);
               add(%y, zeros(shape=[m, 2], dtype="float32")) }""",
        floats(3, 2),
    )


def test_sizes_that_do_not_fit_name_the_operator_and_the_dimensions() -> None:
    executable = check(
        DOUBLE
        + """def @main(%x: Tensor[(?, 2), float32], %y: Tensor[(?, 2), float32]) {
               let %d = @double(%x); add(%d, %y) }""",
        floats(3, 2),
        floats(6, 2),
    )
    expected = np.maximum(np.tile(floats(3, 2), (2, 1)), 0) + floats(1, 2)
    compared = executable(floats(3, 2), floats(1, 2)).numpy()
    np.testing.assert_allclose(compared, expected)
    with pytest.raises(InputError, match=r"add \(text:\d+:\d+\) needs d_0 == y_0 or d_0 == 1"):
        executable(floats(3, 2), floats(5, 2))


def test_branch_that_is_not_taken_checks_nothing() -> None:
    executable = ekiden.compile(
        relay.parse(
            """def @main(%x: Tensor[(n,), float32], %y: Tensor[(m,), float32], %c: bool) {
                 if (%c) { sum(add(%x, %y)) } else { sum(%x) } }"""
        )
    )
    assert executable(floats(3), floats(2), np.array(False)).numpy() == floats(3).sum()
    assert executable(floats(3), floats(3), np.array(True)).numpy() == 2 * floats(3).sum()
    with pytest.raises(InputError, match="add .* needs n == m"):
        executable(floats(3), floats(2), np.array(True))
    assert executable(floats(3), floats(2), np.array(False)).numpy() == floats(3).sum()


def test_unknown_dimensions_of_an_input_may_differ() -> None:
    check(
        "def @main(%x: Tensor[(?, ?, ?), float32]) { squeeze(%x, axis=[0]) }",
        floats(1, 3, 2),
    )
    executable = check(
        "def @main(%x: Tensor[(?, ?), float32], %a: Tensor[(?,), float32]) {"
        " nn.prelu(%x, %a, axis=1) }",
        floats(3, 2),
        floats(2),
    )
    with pytest.raises(InputError, match="nn.prelu .* needs"):
        executable(floats(3, 2), floats(3))


def test_entry_shapes_are_computed_at_entry() -> None:
    executable = check(
        "def @main(%x: Tensor[(?, 4), float32]) {"
        " nn.softmax(sum(concatenate((%x, exp(%x))), axis=[1])) }",
        floats(3, 4),
    )
    assert executable.disassemble().count(": shape_func") == 1
