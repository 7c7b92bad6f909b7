"""`topi.testing` against explicit sums and NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden.topi import testing

pytestmark = pytest.mark.quick


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


@pytest.mark.parametrize(
    ("padding", "around"),
    [
        (0, (0, 0, 0, 0)),
        ((1, 0), (1, 0, 1, 0)),
        ("SAME", (1, 1, 1, 1)),
        ((0, 1, 2, 0), (0, 1, 2, 0)),
    ],
)
def test_reference_convolution_matches_sum(padding: object, around: tuple[int, ...]) -> None:
    x, w = normal(2, 3, 5, 6), normal(4, 3, 3, 3)
    top, left, bottom, right = around
    wide = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))[:, :, ::2, ::1]
    expected = np.einsum("nchwij,ocij->nohw", windows, w)
    for actual in (
        testing.conv2d_nchw_python(x, w, (2, 1), padding),
        testing.conv2d_nhwc_python(
            x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), (2, 1), padding
        ).transpose(0, 3, 1, 2),
        testing.conv2d_hwcn_python(
            x.transpose(2, 3, 1, 0), w.transpose(2, 3, 1, 0), (2, 1), padding
        ).transpose(3, 2, 0, 1),
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


def test_reference_matmuls_and_norms_match_numpy() -> None:
    x, y = normal(2, 3, 4), normal(2, 5, 4)
    np.testing.assert_allclose(
        testing.batch_matmul(x, y), np.einsum("bmk,bnk->bmn", x, y), rtol=1e-5, atol=1e-6
    )
    soft = testing.softmax_python(x)
    np.testing.assert_allclose(soft.sum(1), np.ones((2, 4)), rtol=1e-6)
    np.testing.assert_allclose(testing.log_softmax_python(x), np.log(soft), atol=1e-5)
    result = testing.layer_norm_python(x, np.ones(4, "float32"), np.zeros(4, "float32"), 2)
    np.testing.assert_allclose(result.std(2), np.ones((2, 3)), rtol=1e-3)


def test_reference_pooling_and_movement_match_numpy() -> None:
    x = normal(1, 2, 4, 6)
    blocks = x.reshape(1, 2, 2, 2, 3, 2)
    args = ([2, 2], [2, 2], [1, 1], [0, 0], [0, 0])
    np.testing.assert_array_equal(testing.poolnd_python(x, *args, "max"), blocks.max((3, 5)))
    np.testing.assert_allclose(
        testing.poolnd_python(x, *args, "avg"), blocks.mean((3, 5)), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_array_equal(testing.adaptive_pool(x, (2, 3), "max"), blocks.max((3, 5)))
    again = testing.depth_to_space_python(testing.space_to_depth_python(x, 2), 2)
    np.testing.assert_array_equal(again, x)
    ones = testing.one_hot(np.array([2, 0]), 1, 0, 3, -1, "int32")
    assert ones.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert testing.dilate_python(np.arange(3.0), (2,)).tolist() == [0, 0, 1, 0, 2]
    larger = testing.resize2d_python(x, (2, 2), "NCHW", "nearest_neighbor", "asymmetric")
    np.testing.assert_array_equal(larger, x.repeat(2, 2).repeat(2, 3))


def test_padding_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="'VALID', 'SAME' or numbers expected, got 'FULL'"):
        testing.conv2d_nchw_python(normal(1, 1, 3, 3), normal(1, 1, 2, 2), 1, "FULL")
