"""Convolutions in TVM's blocked layouts: their types, results, and weights without annotation."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.topi.layout import transform_array


@pytest.mark.parametrize(
    ("data_layout", "kernel_layout", "out_layout", "groups"),
    [
        ("NCHW4c", "OIHW", "", 1),
        ("NCHW4c", "OIHW2i8o", "NCHW8c", 1),
        ("NCHW", "OIHW4i", "", 1),
        ("NHWC", "HWIO", "NCHW8c", 1),
        ("NHWC", "HWIO", "NCHW", 1),
        ("NCHW", "OIHW", "NHWC", 2),
        ("NCHW4c", "OIHW1i4o", "", 8),
    ],
)
def test_results_are_those_of_whole_axes(
    data_layout: str, kernel_layout: str, out_layout: str, groups: int
) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=(1, 8, 6, 5)).astype("float32")
    weight = rng.normal(size=(8, 8 // groups, 3, 3)).astype("float32")
    x, w = relay.var("x", shape=data.shape), relay.var("w", shape=weight.shape)
    plain = relay.nn.conv2d(x, w, padding=1, groups=groups)
    wanted = relay.create_executor("debug", IRModule.from_expr(relay.Function([x, w], plain)))
    expected = wanted.evaluate()(data, weight).numpy()
    blocked = transform_array(data, "NCHW", data_layout)
    y = relay.var("y", shape=blocked.shape)
    conv = relay.nn.conv2d(
        y, relay.var("v"), padding=1, groups=groups, channels=8, kernel_size=3,
        data_layout=data_layout, kernel_layout=kernel_layout, out_layout=out_layout,
    )  # fmt: skip
    body = relay.nn.relu(conv)
    module = IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
    packed = transform_array(weight, "OIHW", kernel_layout)
    layout = out_layout or data_layout
    for kind in ("debug", "vm"):
        found = relay.create_executor(kind, module).evaluate()(blocked, packed).numpy()
        back = transform_array(found, layout, "NCHW")
        np.testing.assert_allclose(back, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)
