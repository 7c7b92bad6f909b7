"""BindDimensions and HoistDimensions: names for unknown dimensions, and where they stand."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_equal
from ekiden.relay.transform import (
    BindDimensions,
    FuseOps,
    HoistDimensions,
    InferType,
    LambdaLift,
    ToANormalForm,
)
from ekiden.runtime.errors import InputError, ParseError

pytestmark = pytest.mark.quick


def bound(text: str) -> str:
    """The module with names."""
    return str(BindDimensions()(InferType()(relay.parse(text))))


def hoisted(text: str) -> str:
    """The module with names, on the way of the virtual machine."""
    module: IRModule = BindDimensions()(InferType()(relay.parse(text)))
    for item in (FuseOps(), ToANormalForm(), LambdaLift(), InferType(), HoistDimensions()):
        module = item(module)
    return str(module)


def test_module_of_known_dimensions_stays() -> None:
    module = InferType()(relay.parse("def @main(%x: Tensor[(n, 2), float32]) { nn.relu(%x) }"))
    assert BindDimensions()(module) is module


def test_hoisting_names_operands_but_not_function_types() -> None:
    text = bound("def @f(%x: Tensor[(?, 2), float32]) { nn.relu(%x) }")
    assert "def @f(%x: Tensor[(?, 2), float32]) -> Tensor[(?, 2), float32]" in text
    assert "vm.match_shape(%x, shape=[x_0, 2])" in text
    assert "nn.relu(%x_1) /* ty=Tensor[(x_0, 2), float32] */" in text
    assert "vm.forget_shape(%0, shape=[?, 2])" in text


def test_result_of_a_call_gets_names_of_its_own() -> None:
    text = bound(
        """def @f(%x: Tensor[(?,), float32]) -> Tensor[(?,), float32] { %x }
           def @main(%x: Tensor[(n,), float32]) { let %y = @f(%x); add(exp(%y), %y) }"""
    )
    assert text.count("vm.match_shape") == 1
    assert "let %y_1: Tensor[(y_0,), float32] = vm.match_shape(%y, shape=[y_0])" in text


def test_fields_of_a_tuple_get_names() -> None:
    text = bound(
        """def @f(%t: (Tensor[(?,), float32], Tensor[(?, 3), float32])) {
             (exp(%t.0), negative(%t.1)) }"""
    )
    assert "shape=[t_0])" in text and "shape=[t_0_1, 3])" in text


def test_shapes_that_are_data_are_read_before_the_operator() -> None:
    text = bound(
        """def @main(%x: Tensor[(n, 2), float32], %s: Tensor[(3,), int64]) {
             nn.relu(dyn.reshape(%x, %s)) }"""
    )
    assert 'symbols=[reshape_0, reshape_1, reshape_2], operator="dyn.reshape"' in text
    assert "nn.relu(%2) /* ty=Tensor[(reshape_0, reshape_1, reshape_2), float32] */" in text


def test_padded_result_is_cut() -> None:
    text = bound("def @main(%x: Tensor[(n, 2), bool]) { argwhere(%x) }")
    assert "argwhere_padded(%x)" in text
    assert "vm.prefix(" in text and "shape=[argwhere_0, 2]" in text


def test_names_of_parameters_are_known_at_entry() -> None:
    text = hoisted(
        """def @f(%x: Tensor[(?,), float32], %t: (Tensor[(?,), float32], bool)) {
             add(exp(%x), %t.0) }"""
    )
    assert "def @f(%x: Tensor[(x_0,), float32], %t: (Tensor[(t_0,), float32], bool))" in text
    assert "match_shape" not in text


def test_names_in_the_middle_stay_there() -> None:
    text = hoisted(
        """def @f(%x: Tensor[(?,), float32]) -> Tensor[(?,), float32] { %x }
           def @main(%x: Tensor[(n,), float32]) { let %y = @f(%x); exp(%y) }"""
    )
    assert "vm.match_shape(%y, shape=[y_0])" in text


@pytest.mark.slow
def test_names_are_given_once() -> None:
    """Errors at run time show them: two dimensions must not have one name."""
    text = """def @main(%v: Tensor[(5,), float32]) {
      add(take(%v, take(argwhere(greater(%v, 0f)), 0, axis=1)),
          take(%v, take(argwhere(less(%v, 2.5f)), 0, axis=1))) }"""
    wrong = "argwhere_0 == argwhere_0_1 or argwhere_0 == 1 or argwhere_0_1 == 1"
    with pytest.raises(InputError, match=f"needs {wrong}; argwhere_0 is 3, argwhere_0_1 is 4"):
        ekiden.compile(relay.parse(text))(np.array([1, -1, 2, 0, 3], np.float32))


def test_shapes_derived_from_unknown_dimensions_are_unknown() -> None:
    text = bound(
        "def @main(%x: Tensor[(1, 4, ?, ?), float32]) { nn.depth_to_space(%x, block_size=2) }"
    )
    assert "-> Tensor[(1, 1, ?, ?), float32]" in text


def test_shape_vector_elements_are_dimensions() -> None:
    text = """def @main(%s: Tensor[(2,), int64]) {
      let %nothing = zeros(shape=[0], dtype="uint8");
      let %e: Tensor[(0, n, m), uint8] = dyn.extents(%nothing, %s);
      zeros(shape=[m, n], dtype="float32") }"""
    run = ekiden.compile(relay.parse(text))
    assert run(np.array([2, 3])).shape == (3, 2)
    assert run(np.array([0, 3])).shape == (3, 0)
    wrong = r"dyn.extents \(text:3:42\): a dimension of the result is negative; it is -3"
    with pytest.raises(InputError, match=wrong):
        run(np.array([2, -3]))


def test_parameter_type_is_kept_beside_wider_use() -> None:
    text = hoisted(
        """def @main(%x: Tensor[(n, 4), float32]) {
             let %wide: Tensor[(?, ?), float32] = vm.match_shape(%x, shape=[?, ?]);
             (exp(%wide), exp(%x)) }"""
    )
    assert "def @main(%x: Tensor[(n, 4), float32])" in text


def test_text_of_attributes_inside_of_attributes_reads_back() -> None:
    text = 'def @main(%i: int32) { sum(dyn.arange(-4, %i, 1, dtype="int32")) }'
    module = BindDimensions()(InferType()(relay.parse(text)))
    shown = str(module)
    assert 'attrs=["relay.attrs.DynamicAttrs", "dtype", "int32"]' in shown
    assert structural_equal(relay.parse(shown), module)
    wrong = shown.replace("relay.attrs.DynamicAttrs", "relay.attrs.Nothing")
    with pytest.raises(ParseError, match="expected an attribute class, then names and values"):
        relay.parse(wrong)


@pytest.mark.parametrize("level", [0, 2])
def test_kernels_fused_over_unknown_dimensions_compile(level: int) -> None:
    """A user may fuse before the compiler names dimensions."""
    module = relay.parse(
        "def @f(%x: Tensor[(?, 2), float32]) { nn.relu(concatenate((%x, negative(%x)))) }\n"
        "def @main(%x: Tensor[(?, 2), float32]) { exp(@f(tanh(%x))) }"
    )
    fused = FuseOps(level)(InferType()(module))
    assert "Primitive" in fused.astext()
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)
    half = np.tanh(x)
    expected = np.exp(np.maximum(np.concatenate((half, -half)), 0))
    np.testing.assert_allclose(ekiden.compile(fused)(x).numpy(), expected, rtol=1e-6)
