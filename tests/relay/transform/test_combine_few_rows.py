"""CombineFewRows: dense layers of few rows over the same data become one."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import Array, assert_same_meaning, calls, program

import ekiden
from ekiden.ir.module import IRModule
from ekiden.relay.analysis import verify
from ekiden.relay.transform import CombineFewRows, InferType
from ekiden.relay.transform.graph.combine_parallel import MAX_COMBINED_DENSE_ROWS


def random(*shape: int, dtype: str = "float32") -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def layers(rows: object, dtype: str = "float32", constant: bool = True) -> IRModule:
    weights = {"u": random(5, 3, dtype=dtype), "v": random(4, 3, dtype=dtype)}
    return program(
        f"""def @main(%x: Tensor[({rows}, 3), {dtype}], %u: Tensor[(5, 3), {dtype}],
                      %v: Tensor[(4, 3), {dtype}]) {{
          (nn.relu(nn.dense(%x, %u)), nn.dense(%x, %v), nn.dense(%x, %u)) }}""",
        **(weights if constant else {}),
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("rows", [0, 1, MAX_COMBINED_DENSE_ROWS])
def test_layers_of_few_rows_become_one(rows: int, dtype: str) -> None:
    before = layers(rows, dtype)
    after = CombineFewRows()(before)
    verify(after)
    assert calls(after).count("nn.dense") == 1
    assert_same_meaning(before, InferType()(after), [random(rows, 3, dtype=dtype)])


@pytest.mark.parametrize(
    ("rows", "constant"), [(MAX_COMBINED_DENSE_ROWS + 1, True), ("n", True), (2, False)]
)  # fmt: skip
def test_other_layers_are_not_combined(rows: object, constant: bool) -> None:
    assert calls(CombineFewRows()(layers(rows, constant=constant))).count("nn.dense") == 3


def test_layers_of_other_data_stay() -> None:
    module = program(
        """def @main(%x: Tensor[(2, 3), float32], %y: Tensor[(2, 3), float32],
                     %u: Tensor[(4, 3), float32]) { add(nn.dense(%x, %u), nn.dense(%y, %u)) }""",
        u=random(4, 3),
    )
    assert calls(CombineFewRows()(module)).count("nn.dense") == 2


@pytest.mark.parametrize("rows", [1, 3])
def test_combined_layers_match_interpreter(rows: int) -> None:
    data = random(rows, 3)
    actual = ekiden.compile(layers(rows))(data)
    first, second = data @ random(5, 3).T, data @ random(4, 3).T
    for result, expected in zip(actual, (np.maximum(first, 0), second, first), strict=True):
        np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-5)
