"""Convolutions by groups in NHWC and HWOI of dtypes and groups that the depthwise kernel is not
for: its sums are of float32 and of one channel."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from long_runs import share


@share(4)
@pytest.mark.parametrize("dtype", ["int32", "int16", "float64", "float32", "float16"])
@pytest.mark.parametrize(("groups", "output"), [(6, 6), (6, 12), (3, 6), (2, 4)])
def test_grouped_convolution_dtypes_match_reference(dtype: str, groups: int, output: int) -> None:
    rng = np.random.default_rng(0)
    data = rng.integers(-4, 5, (1, 5, 4, 6)).astype(dtype)
    weight = rng.integers(-3, 4, (2, 3, output, 6 // groups)).astype(dtype)
    x, w = relay.var("x", shape=data.shape, dtype=dtype), relay.const(weight)
    conv = relay.nn.conv2d(
        x, w, groups=groups, padding=(1, 0), data_layout="NHWC", kernel_layout="HWOI",
        channels=output, kernel_size=(2, 3),
    )  # fmt: skip
    module = IRModule.from_expr(relay.Function([x], conv))
    result = [relay.create_executor(k, module).evaluate()(data).numpy() for k in ("debug", "vm")]
    np.testing.assert_array_equal(*result)
