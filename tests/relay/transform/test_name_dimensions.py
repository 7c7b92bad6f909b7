"""NameDimensions: unknown dimensions of parameters become named ones, where they may differ."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.relay.transform import NameDimensions
from ekiden.runtime.errors import InputError


def named(text: str) -> str:
    return str(NameDimensions()(relay.parse(text)))


def test_each_unknown_dimension_gets_a_name() -> None:
    text = named("def @main(%x: Tensor[(?, 2, ?), float32], %p: (Tensor[(?), int8], bool)) { %x }")
    assert "%x: Tensor[(x_0, 2, x_2), float32], %p: (Tensor[(p_0,), int8], bool)" in text
    assert "-> Tensor[(x_0, 2, x_2), float32]" in text


@pytest.mark.parametrize(
    "text",
    [
        "def @main(%x: Tensor[(n, 2), float32]) { nn.relu(%x) }",
        "def @main(%x: Tensor[(?), float32], %y: Tensor[(?), float32]) { add(%x, %y) }",
        "def @main(%x: Tensor[(1, ?), float32], %w: Tensor[(5, 10), float32]) { nn.dense(%x, %w) }",
        "def @main(%x: Tensor[(?), float32]) { reshape(%x, newshape=[-1, 4]) }",
        "def @f(%x: Tensor[(?), float32]) { nn.relu(%x) }",
    ],
)
def test_static_or_equal_dimensions_are_unchanged(text: str) -> None:
    module = relay.parse(text)
    assert NameDimensions()(module) is module


def test_unknown_dimensions_run_at_any_size() -> None:
    x = relay.var("x", shape=(relay.Any(), relay.Any(), 3))
    y = relay.nn.relu(relay.concatenate([x, x], axis=0))
    run = relay.create_executor("vm", relay.IRModule.from_expr(y)).evaluate()
    for shape in ((1, 2, 3), (4, 1, 3)):
        data = np.random.default_rng(0).standard_normal(shape).astype("float32")
        np.testing.assert_equal(run(data).numpy(), np.maximum(np.concatenate([data, data]), 0))
    with pytest.raises(InputError):
        run(np.ones((1, 2, 4), "float32"))
