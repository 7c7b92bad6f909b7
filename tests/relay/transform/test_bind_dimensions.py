"""BindDimensions and HoistDimensions: names for unknown dimensions, and where they stand."""

from __future__ import annotations

import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay.transform import (
    BindDimensions,
    FuseOps,
    HoistDimensions,
    InferType,
    LambdaLift,
    ToANormalForm,
)

pytestmark = pytest.mark.quick


def bound(text: str) -> str:
    """The module with names."""
    return str(BindDimensions()(InferType()(relay.parse(text))))


def hoisted(text: str) -> str:
    """The module with names, on the way of the virtual machine."""
    module: IRModule = BindDimensions()(InferType()(relay.parse(text)))
    for each in (FuseOps(), ToANormalForm(), LambdaLift(), InferType(), HoistDimensions()):
        module = each(module)
    return str(module)


def test_a_module_of_known_dimensions_stays() -> None:
    module = InferType()(relay.parse("def @main(%x: Tensor[(n, 2), float32]) { nn.relu(%x) }"))
    assert BindDimensions()(module) is module


def test_operators_read_named_tensors_and_types_of_functions_stay() -> None:
    text = bound("def @f(%x: Tensor[(?, 2), float32]) { nn.relu(%x) }")
    assert "def @f(%x: Tensor[(?, 2), float32]) -> Tensor[(?, 2), float32]" in text
    assert "vm.match_shape(%x, shape=[x_0, 2])" in text
    assert "nn.relu(%x_1) /* ty=Tensor[(x_0, 2), float32] */" in text
    assert "vm.forget_shape(%0, shape=[?, 2])" in text


def test_the_result_of_a_call_gets_names_of_its_own() -> None:
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


def test_a_padded_result_is_cut() -> None:
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
