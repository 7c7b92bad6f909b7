"""Convolutions in TVM's blocked layouts: their types, results, and weights without annotation."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import relay
from ekiden.ir.attrs import Attrs
from ekiden.ir.module import IRModule
from ekiden.runtime.errors import TypeInferenceError
from ekiden.topi.layout import transform_array
from long_runs import alike, share


@alike(2)
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
        ("NCDHW2c", "OIDHW2i4o", "NCDHW4c", 1),
    ],
)
def test_blocked_layouts_match_unblocked(
    data_layout: str, kernel_layout: str, out_layout: str, groups: int
) -> None:
    rng = np.random.default_rng(0)
    axes = [letter for letter in data_layout if letter in "DHW"]
    names = ("NCHW", "OIHW") if len(axes) == 2 else ("NCDHW", "OIDHW")
    operator = relay.nn.conv2d if len(axes) == 2 else relay.nn.conv3d
    c, image = (8, (6, 5)) if len(axes) == 2 else (4, (3, 2, 2))
    data = rng.normal(size=(1, c, *image)).astype("float32")
    weight = rng.normal(size=(c, c // groups, *(3 for _ in axes))).astype("float32")
    x, w = relay.var("x", shape=data.shape), relay.var("w", shape=weight.shape)
    plain = operator(x, w, padding=1, groups=groups, channels=c, kernel_size=3)
    expected_value = relay.create_executor(
        "debug", IRModule.from_expr(relay.Function([x, w], plain))
    )
    expected = expected_value.evaluate()(data, weight).numpy()
    blocked = transform_array(data, names[0], data_layout)
    y = relay.var("y", shape=blocked.shape)
    conv = operator(
        y, relay.var("v"), padding=1, groups=groups, channels=c, kernel_size=3,
        data_layout=data_layout, kernel_layout=kernel_layout, out_layout=out_layout,
    )  # fmt: skip
    body = relay.nn.relu(conv)
    module = IRModule.from_expr(relay.Function(relay.analysis.free_vars(body), body))
    packed = transform_array(weight, names[1], kernel_layout)
    layout = out_layout or data_layout
    for kind in ("debug", "vm"):
        actual = relay.create_executor(kind, module).evaluate()(blocked, packed).numpy()
        back = transform_array(actual, layout, names[0])
        np.testing.assert_allclose(back, np.maximum(expected, 0), rtol=1e-4, atol=1e-4)


IMAGES = {
    "global_max": lambda x, at: relay.nn.global_max_pool2d(x, at),
    "global_avg": lambda x, at: relay.nn.global_avg_pool2d(x, at),
    "adaptive_avg": lambda x, at: relay.nn.adaptive_avg_pool2d(x, (3, 2), at),
    "adaptive_max": lambda x, at: relay.nn.adaptive_max_pool2d(x, (3, 2), at),
    "nearest": lambda x, at: relay.nn.upsampling(x, 2, 3, at),
    "bilinear": lambda x, at: relay.nn.upsampling(x, 2, 3, at, "bilinear", True),
    "cubic": lambda x, at: relay.image.resize2d(x, (7, 4), None, at, "cubic"),
}


@share(2)
@pytest.mark.parametrize("layout", ["NCHW4c", "NHWC2c"])
@pytest.mark.parametrize("name", IMAGES)
def test_image_operators_accept_blocked_channels(name: str, layout: str) -> None:
    data = np.random.default_rng(0).normal(size=(2, 8, 6, 5)).astype("float32")

    def found(kind: str, at: str) -> np.ndarray:
        inputs = transform_array(data, "NCHW", at)
        body = IMAGES[name](relay.var("x", shape=inputs.shape), at)
        return relay.create_executor(kind, IRModule.from_expr(body)).evaluate()(inputs).numpy()

    for kind in ("debug", "vm"):
        back = transform_array(found(kind, layout), layout, "NCHW")
        np.testing.assert_allclose(back, found("debug", "NCHW"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", IMAGES)
def test_layout_has_as_many_axes_as_its_data(name: str) -> None:
    with pytest.raises(TypeInferenceError, match="must have 5 dimensions, got 4"):
        body = IMAGES[name](relay.var("x", shape=(2, 8, 6, 5)), "NCHW4c")
        relay.transform.InferType()(IRModule.from_expr(body))


def test_consumers_of_blocked_convolution_are_well_typed() -> None:
    def alter(attrs: Attrs, inputs: list[relay.Expr], *_: object) -> relay.Expr:
        return relay.nn.conv2d(*inputs, **{**dict(attrs), "data_layout": "NCHW4c"})

    x, w = relay.var("x", shape=(1, 8, 6, 6)), relay.const(np.ones((8, 8, 1, 1), "float32"))
    body = relay.nn.conv2d(x, w, channels=8, kernel_size=(1, 1))
    body = relay.nn.global_max_pool2d(relay.nn.upsampling(body, 2, 2))
    module = relay.transform.InferType()(IRModule.from_expr(body))
    relay.op.register_alter_op_layout("nn.conv2d", alter)
    try:
        transformed = relay.transform.AlterOpLayout()(module)
    finally:
        relay.op.get("nn.conv2d").reset_attr("FTVMAlterOpLayout")
    assert transformed.astext().count('layout="NCHW4c"') == 5  # two of them of transforms
    data = np.random.default_rng(0).normal(size=(1, 8, 6, 6)).astype("float32")
    one, other = (relay.create_executor("debug", m).evaluate()(data) for m in (module, transformed))
    np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5)
