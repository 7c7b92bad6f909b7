"""Separable resizing by rows and columns, and reductions over rows."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ekiden import kernels, te, topi
from ekiden.target import Target
from ekiden.tir import astext
from long_runs import share
from topi_cases import Array, Case, case, check, every_backend, normal


def resized(x: Array, size: Sequence[int], method: str) -> Array:
    """The last axes resized one after the other, in float64; coordinates of half pixels."""
    result = x.astype("float64")
    for axis, extent in zip(range(-len(size), 0), size, strict=True):
        old = result.shape[axis]
        place = (np.arange(extent) + 0.5) * old / extent - 0.5
        base = np.floor(place)
        if method == "nearest_neighbor":
            taps = [(base, np.ones(extent))]  # TVM: where no rounding is asked for
        elif method == "linear":
            taps = [(base, 1 - place + base), (base + 1, place - base)]
        else:
            taps = [(base + n, cubic(abs(place - base - n))) for n in range(-1, 3)]
        shape = [extent, *[1] * (-1 - axis)]
        result = sum(
            np.take(result, np.clip(at, 0, old - 1).astype(int), axis) * weight.reshape(shape)
            for at, weight in taps
        )
    return np.asarray(result if x.dtype.kind == "f" else np.round(result)).astype(x.dtype)


def cubic(d: Array) -> Array:
    """The convolution kernel of Keys with a = -0.5."""
    near, far = (1.5 * d - 2.5) * d * d + 1, ((-0.5 * d + 2.5) * d - 4) * d + 2
    return np.where(d <= 1, near, far)


def resizes() -> Iterator[Case]:
    """Larger and smaller, by rows and by columns."""
    for size in ((26, 34), (7, 9), (26, 9), (1, 17)):
        for method in ("linear", "cubic", "nearest_neighbor"):
            x = normal(2, 3, 13, 17)
            yield case(
                "image.resize2d", x, roi=None, size=size, method=method, symbolic=(2, 3),
                expected=resized(x, size, method), tolerance=2e-5,
            )  # fmt: skip
    x = normal(1, 2, 5, 6, 7)
    yield case(
        "image.resize3d", x, roi=None, size=(8, 9, 20), symbolic=False,
        expected=resized(x, (8, 9, 20), "linear"),
    )  # fmt: skip
    x = normal(2, 5, 17, dtype="int32")
    yield case(
        "image.resize1d", x, roi=None, size=34, symbolic=False, expected=resized(x, (34,), "linear")
    )
    x = normal(1, 2, 6, 18)
    yield case(
        "image.resize2d", x, symbolic=False, expected=np.maximum(
            resized(np.maximum(x, 0), (12, 36), "linear").reshape(2, -1) - 0.5, 0
        ),
        build=lambda t: topi.nn.relu(topi.reshape(topi.image.resize2d(
            topi.nn.relu(t), None, (12, 36)), (2, 432)) - 0.5),
    )  # fmt: skip


def columns() -> Iterator[Case]:
    """Widths of whole groups of vectors, of some, and with a rest; few and many rows."""
    for shape, axes in (
        ((20, 300), (0,)),
        ((3, 300), (0,)),
        ((9, 128), (0,)),
        ((2, 11, 40), (1,)),
        ((4, 5, 150), (0, 1)),
        ((17, 5), (0,)),
        ((0, 64), (0,)),
        ((16, 0), (0,)),
    ):
        for name, function in (("sum", np.sum), ("max", np.max)):
            if shape[0] == 0 and name == "max":
                continue
            x = normal(*shape)
            yield case(name, x, axis=axes, expected=function(x, axes), symbolic=shape[:1])
    for dtype in ("int8", "float64", "int64"):
        x = normal(30, 140, dtype=dtype)
        expected = x.min(0, keepdims=True)
        yield case("min", x, axis=0, keepdims=True, expected=expected, symbolic=(30,))
    x = normal(24, 170)
    exponents = np.exp(x.astype("float64") - x.max(0))
    softmax = (exponents / exponents.sum(0)).astype("float32")
    yield case("nn.softmax", x, axis=0, expected=softmax, symbolic=(24,))


def rows() -> Iterator[Case]:
    """Whole rows written at positions that repeat."""
    for width in (5, 16, 37):
        x, at, updates = normal(6, width), np.array([[4, 1, 4, -6]]), normal(4, width)
        for mode in ("update", "add"):
            expected = x.copy()
            for place, row in zip(at[0], updates, strict=True):
                expected[place] = row if mode == "update" else expected[place] + row
            yield case("scatter_nd", x, at, updates, mode=mode, expected=expected, symbolic=(6, 37))


CASES: dict[str, Sequence[Case]] = {f.__name__: list(f()) for f in (resizes, columns, rows)}


@share(4)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_separable_resize_matches_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_rows_are_resized_before_columns() -> None:
    x = te.placeholder((1, 8, 16, 16))
    for size, stored in ((40, "(16, 40)"), (5, "(5, 16)")):
        result = topi.image.resize2d(x, None, (size, size))
        text = astext(kernels.schedule([x], [result], Target.parse("llvm"), "f"))
        assert f"T.alloc_buffer({stored}" in text, size
