"""SimplifyInference: batch normalisation becomes a scale and a shift, dropout goes."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, check, program

from ekiden.relay.transform import InferType, SimplifyInference

pytestmark = pytest.mark.quick


def batch_norm(axis: int = 1, channels: int = 3, center: bool = True, scale: bool = True) -> str:
    vector = f"Tensor[({channels},), float32]"
    params = ", ".join(f"%{name}: {vector}" for name in "gbmv")
    return f"""
def @main(%x: Tensor[(2, 3, 4, 5), float32], {params}) {{
  nn.batch_norm(%x, %g, %b, %m, %v, axis={axis}, epsilon=0.01f64, center={center}, scale={scale}).0
}}"""


@pytest.mark.parametrize(("axis", "channels"), [(1, 3), (3, 5), (-1, 5)])
@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("scale", [True, False])
def test_batch_norm_keeps_its_meaning(axis: int, channels: int, center: bool, scale: bool) -> None:
    before = program(batch_norm(axis, channels, center, scale))
    after = SimplifyInference()(before)
    assert "nn.batch_norm" not in calls(after)
    rng = np.random.default_rng(0)
    shapes = [(2, 3, 4, 5), *[(channels,)] * 4]
    assert_same_meaning(before, after, [rng.random(s, np.float32) + 0.5 for s in shapes])


def test_result_is_typed_again() -> None:
    after = InferType()(SimplifyInference()(program(batch_norm())))
    assert [int(d.value) for d in after["main"].body.checked_type.shape] == [2, 3, 4, 5]


def test_dropout_goes() -> None:
    check(
        SimplifyInference(),
        "def @main(%x: float32) { tanh(nn.dropout(%x, rate=0.5f64).0) }",
        "def @main(%x: float32) { tanh(%x) }",
    )


def test_statistics_that_are_used_keep_the_operator() -> None:
    text = batch_norm().replace(").0", ").1")
    check(SimplifyInference(), text, text)
