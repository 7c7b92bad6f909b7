"""InlinePrimitives: primitive functions are inlined at their calls."""

import numpy as np
import pytest
from pass_checks import check

import ekiden
from ekiden import relay
from ekiden.relay.transform import InlinePrimitives

pytestmark = pytest.mark.quick

KERNEL = "fn (%p: Tensor[(3), float32], Primitive=1) { nn.relu(%p) }"


def test_primitive_function_is_called_in_place() -> None:
    before = f"def @main(%x: Tensor[(3), float32]) {{ let %f = {KERNEL}; %f(%f(%x)) }}"
    module = InlinePrimitives()(relay.transform.InferType()(relay.parse(before)))
    body = module["main"].body
    assert isinstance(body, relay.Call)
    assert isinstance(body.op, relay.Function)
    assert body.op is body.args[0].op


def test_what_is_not_primitive_stays() -> None:
    text = "def @main(%x: float32) { let %f = fn (%p: float32) { nn.relu(%p) }; %f(%x) }"
    check(InlinePrimitives(), text, text)


def test_program_that_was_fused_before_compiles() -> None:
    text = f"def @main(%x: Tensor[(3), float32]) {{ let %f = {KERNEL}; %f(%x) }}"
    x = np.array([-1, 0, 2], np.float32)
    assert ekiden.compile(relay.parse(text))(x).numpy().tolist() == [0, 0, 2]
