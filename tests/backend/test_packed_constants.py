"""Constants with elements of less than a byte are stored packed."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ekiden
from ekiden import relay


@pytest.mark.parametrize("executor", ["vm", "aot"])
@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn"])
def test_packed_constant_is_a_result_after_saving(
    dtype: str, executor: str, tmp_path: Path
) -> None:
    numbers = np.array([[1, 0, 1], [3, 2, 1], [1, 0, 3]]).astype(getattr(ml_dtypes, dtype))
    x = relay.var("x", relay.TensorType((2,), "float32"))
    constant = relay.const(numbers)
    wide = relay.op.cast(constant, "float32")
    function = relay.Function([x], relay.Tuple([x, constant, wide]))
    compiled = ekiden.compile(function, executor=executor)
    compiled.save(tmp_path / "constant.eki")
    for item in (compiled, ekiden.load(tmp_path / "constant.eki")):
        _, packed, floats = (np.asarray(result) for result in item(np.ones(2, np.float32)))
        np.testing.assert_array_equal(packed, numbers)
        np.testing.assert_array_equal(floats, numbers.astype(np.float32))
