"""Operators that ConvertLayout converts to channels last, and those it must not."""

import numpy as np
import pytest
from pass_checks import assert_same_meaning, main_of

from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS
from ekiden.relay import op
from ekiden.relay.expr import Call, Function, const, var
from ekiden.relay.transform import ConvertLayout, InferType
from ekiden.relay.visitor import bind, free_vars, post_order
from ekiden.topi.dimensions import as_ints

pytestmark = pytest.mark.quick

X, VOLUME = var("x", shape=(1, 4, 6, 6)), var("x", shape=(1, 4, 3, 4, 5))
ROIS, SIZE = var("rois", shape=(2, 5)), var("size", shape=(2,), dtype="int64")
SCALES, FACTOR = var("scales", shape=(2,)), var("factor", shape=())
LAYOUTS: dict[str, Call] = {
    "nn.conv2d": op.nn.conv2d(X, var("w", shape=(2, 2, 3, 3)), groups=2, channels=2),
    "nn.conv2d_transpose": op.nn.conv2d_transpose(X, var("w", shape=(4, 2, 3, 3)), strides=2),
    "nn.conv3d": op.nn.conv3d(VOLUME, var("w", shape=(3, 4, 2, 2, 2))),
    "nn.conv3d_transpose": op.nn.conv3d_transpose(VOLUME, var("w", shape=(4, 2, 2, 2, 2))),
    "nn.max_pool2d": op.nn.max_pool2d(X, (2, 3), padding=(1, 0)),
    "nn.avg_pool2d": op.nn.avg_pool2d(X, (2, 3), padding=(1, 0)),
    "nn.max_pool3d": op.nn.max_pool3d(VOLUME, (2, 2, 3)),
    "nn.avg_pool3d": op.nn.avg_pool3d(VOLUME, (2, 2, 3)),
    "nn.global_avg_pool2d": op.nn.global_avg_pool2d(X),
    "nn.global_max_pool2d": op.nn.global_max_pool2d(X),
    "nn.adaptive_avg_pool2d": op.nn.adaptive_avg_pool2d(X, (4, 2)),
    "nn.adaptive_max_pool2d": op.nn.adaptive_max_pool2d(X, (4, 2)),
    "nn.depth_to_space": op.nn.depth_to_space(X, 2),
    "nn.space_to_depth": op.nn.space_to_depth(X, 3),
    "nn.upsampling": op.nn.upsampling(X, 2, 3, method="bilinear"),
    "image.resize2d": op.image.resize2d(X, (9, 4)),
    "dyn.image.resize2d": op.image.resize2d(X, SIZE),
    "dyn.image.resize3d": op.nn.upsampling3d(VOLUME, FACTOR, 1, FACTOR),
    "image.resize2d_scaled": op.image.resize2d(X, (9, 12), scales=SCALES),
    "image.crop_and_resize": op.image.crop_and_resize(
        X, var("boxes", shape=(2, 4)), const(np.array([0, 0], "int32")), (3, 2), "NCHW"
    ),
    "vision.roi_align": op.vision.roi_align(X, ROIS, (2, 2), 1.0),
}
OTHERS: dict[str, Call] = {
    "vision.roi_pool": op.vision.roi_pool(X, ROIS, (2, 2), 1.0),
    "image.dilation2d": op.image.dilation2d(X, var("w", shape=(4, 2, 2))),
    "nn.correlation": op.nn.correlation(X, X, 1, 1, 1, 1, 0, True),
}
"""Whose layout cannot be changed alone."""
FIELD = {"image.dilation2d": "data_layout"}


@pytest.mark.parametrize("name", [*LAYOUTS, *OTHERS])
def test_operators_of_images_after_a_convolution_keep_their_meaning(name: str) -> None:
    """Those that can follow the convolution do, and all give what they gave."""
    call = (LAYOUTS | OTHERS)[name]
    image = VOLUME if VOLUME in free_vars(call) else X
    rng = np.random.default_rng(0)
    convolve, axes = (op.nn.conv2d, 2) if image is X else (op.nn.conv3d, 3)
    weight = const(rng.normal(size=(4, 4, *[1] * axes)).astype("float32"))
    body = bind(call, {image: convolve(image, weight)})
    before = InferType()(IRModule.from_expr(Function(free_vars(body), body)))
    after = ConvertLayout()(before)
    result = [e for e in post_order(main_of(after)) if isinstance(e, Call) and e.op is call.op]
    layout = getattr(result[-1].attrs, OPS[name].layout or FIELD.get(name, "layout"))
    assert layout.endswith("C") == (name in LAYOUTS)
    special = {ROIS: np.array([[0, 1, 1, 4, 5], [0, 0, 0, 3, 3]], "float32"),
               SIZE: np.array([9, 5]), SCALES: np.array([1.5, 2], "float32"),
               FACTOR: np.array(2, "float32")}  # fmt: skip
    arrays = [
        special.get(p, rng.random(as_ints(p.checked_type.shape), np.float32))  # type: ignore[attr-defined]
        for p in main_of(before).params
    ]
    assert_same_meaning(before, after, arrays)


def test_every_layout_operator_has_a_case() -> None:
    assert {name for name, row in OPS.items() if row.layout} == set(LAYOUTS)
