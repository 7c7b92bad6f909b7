"""Windows, borders and strides along rows of many vectors: where loops are cut, and what is loaded
under masks or by neighbours.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from ekiden import kernels, te, topi
from ekiden.target import Target
from ekiden.tir import astext
from ekiden.topi.nn.padding import pad_by_mode
from long_runs import share
from topi_cases import Array, Case, case, check, every_backend, normal


def pooled(x: Array, kernel: int, stride: int, pad: int, dilation: int, kind: str) -> Array:
    """Windows over the last two axes; padding is the lowest number, or 0 and counts."""
    fill = -np.inf if kind == "max" else 0
    sides = ((0, 0),) * (x.ndim - 2) + ((pad, pad),) * 2
    reach = (kernel - 1) * dilation + 1
    wide = np.pad(x.astype("float64"), sides, constant_values=fill)
    windows = sliding_window_view(wide, (reach, reach), (-2, -1))
    windows = windows[..., ::stride, ::stride, ::dilation, ::dilation]
    result = windows.max((-2, -1)) if kind == "max" else windows.mean((-2, -1))
    return np.asarray(result.astype(x.dtype))


def pool(width: int, kernel: int, stride: int, pad: int, dilation: int, kind: str) -> Case:
    """A case of pool2d on rows of some width."""
    x = normal(2, 5, width)[None]
    expected = pooled(x, kernel, stride, pad, dilation, kind)
    return case(
        "nn.pool2d", x, kernel=kernel, stride=stride, dilation=dilation, padding=pad,
        pool_type=kind, expected=expected, symbolic=(width,),
    )  # fmt: skip


def pools() -> Iterator[Case]:
    """Widths below, of and above whole vectors; windows that border parts are narrower than."""
    for width, kernel, stride, pad, dilation in (
        (7, 3, 1, 1, 1),
        (16, 3, 1, 1, 1),
        (33, 4, 1, 1, 1),
        (34, 2, 2, 0, 1),
        (65, 4, 2, 1, 1),
        (40, 5, 1, 2, 1),
        (70, 3, 3, 1, 1),
        (90, 3, 4, 1, 1),
        (95, 3, 5, 1, 1),
        (50, 2, 2, 1, 2),
    ):
        yield pool(width, kernel, stride, pad, dilation, "avg" if kernel == 3 else "max")


def pads() -> Iterator[Case]:
    """Every border, narrower and wider than the data; negative widths crop."""
    for mode in ("edge", "reflect", "wrap"):
        for width, before, after in ((40, 3, 3), (17, 16, 1), (9, 0, 25), (33, 20, 0), (50, -2, 4)):
            x = normal(2, 4, width)
            inner = x[..., max(0, -before) :]
            sides = ((0, 0), (1, 2), (max(0, before), after))
            yield case(
                "nn.pad",
                x,
                build=lambda t, m=mode, b=before, a=after: pad_by_mode(
                    t, te.placeholder((), t.dtype), [(0, 0), (1, 2), (b, a)], m
                ),
                expected=np.pad(inner, sides, mode=mode),
                symbolic=(width,),
            )
    for dtype in ("int8", "float64", "bool"):
        x = normal(3, 21, dtype=dtype)
        expected = np.pad(x, ((0, 0), (2, 5)), mode="symmetric")
        yield case(
            "nn.mirror_pad", x, pad_before=(0, 2), pad_after=(0, 5), mode="SYMMETRIC",
            expected=expected,
        )  # fmt: skip
    x = normal(0, 20)
    none = np.zeros((0, 24), "float32")
    yield case("nn.mirror_pad", x, pad_before=(0, 2), mode="REFLECT", expected=none)


def strides() -> Iterator[Case]:
    """Elements a few places apart, forwards and backwards, with a rest under a mask."""
    for dtype in ("float32", "int8", "float64", "bool"):
        for step in (2, 3, 4, 5, -1, -2):
            x = normal(3, 131, dtype=dtype)
            result = x[:, ::step]
            begin, end = (0, 131) if step > 0 else (130, -200)
            yield case(
                "strided_slice", x, begin=(0, begin), end=(3, end), strides=(1, step),
                expected=result, symbolic=False,
            )  # fmt: skip
            yield case(
                "strided_slice",
                x,
                build=lambda t, b=begin, e=end, s=step: topi.add(
                    topi.cast(topi.strided_slice(t, (0, b), (3, e), (1, s)), "float32"), 1.0
                ),
                expected=(result.astype("float32") + 1),
                symbolic=(3,),
            )


def joined() -> Iterator[Case]:
    """Concatenations along the rows, of parts shorter and longer than vectors."""
    for widths in ((3, 5), (4, 1, 80), (17, 16, 40), (1, 30, 1), (100, 2)):
        parts = [normal(3, w) for w in widths]
        yield case(
            "concatenate", *parts, build=lambda *t: topi.concatenate(t, 1),
            expected=np.concatenate(parts, 1), symbolic=False,
        )  # fmt: skip


CASES: dict[str, Sequence[Case]] = {f.__name__: list(f()) for f in (pools, pads, strides, joined)}


@share(3)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_row_windows_match_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_rows_are_split_into_whole_vectors() -> None:
    x = te.placeholder((1, 4, 9, 56))
    result = topi.nn.pool2d(x, 3, 1, 1, 1, "max")
    text = astext(kernels.schedule([x], [result], Target.parse("llvm -mcpu=znver4"), "f"))
    assert text.count("T.vectorized(16") == text.count("T.vectorized(8") == 3  # per part of rows
    assert text.count("T.vectorized(32") == 3
