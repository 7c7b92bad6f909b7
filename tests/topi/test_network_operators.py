"""Operators of networks against NumPy: convolutions, pooling, normalisation, products, losses."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from ekiden import te, topi
from ekiden.ir.prim import SizeVar
from long_runs import share
from topi_cases import Array, Case, case, check, every_backend, integers, normal

Pads = Sequence[tuple[int, int]]


def convolution(
    x: Array,
    w: Array,
    strides: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
    groups: int = 1,
) -> Array:
    """[N, C, ...] with [O, C / groups, ...], over any number of axes."""
    rank = x.ndim - 2
    x = np.pad(x, ((0, 0), (0, 0), *padding))
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilation, strict=True)]
    windows = np.lib.stride_tricks.sliding_window_view(x, reach, tuple(range(2, 2 + rank)))
    take = (
        tuple(slice(None, None, s) for s in strides),
        tuple(slice(None, None, d) for d in dilation),
    )
    windows = windows[(slice(None), slice(None), *take[0], *take[1])]
    per_in, per_out = w.shape[1], w.shape[0] // groups
    result = []
    for g in range(groups):
        part = windows[:, g * per_in : (g + 1) * per_in]
        own = w[g * per_out : (g + 1) * per_out]
        axes = (1, *range(2 + rank, 2 + 2 * rank)), tuple(range(1, 2 + rank))
        result.append(np.moveaxis(np.tensordot(part, own, axes), -1, 1))
    return np.concatenate(result, 1)


def transposed(
    x: Array,
    w: Array,
    strides: Sequence[int],
    padding: Pads,
    extra: Sequence[int],
    groups: int = 1,
) -> Array:
    """[N, C, ...] with [C, O / groups, ...]: every element spreads its window."""
    rank, per = x.ndim - 2, x.shape[1] // groups
    full = [
        (d - 1) * s + k + e
        for d, s, k, e in zip(x.shape[2:], strides, w.shape[2:], extra, strict=True)
    ]
    out = np.zeros((x.shape[0], w.shape[1] * groups, *full), "float64")
    for place in itertools.product(*map(range, x.shape[2:])):
        for c in range(x.shape[1]):
            g = c // per
            window = tuple(
                slice(p * s, p * s + k) for p, s, k in zip(place, strides, w.shape[2:], strict=True)
            )
            rows = slice(g * w.shape[1], (g + 1) * w.shape[1])
            out[(slice(None), rows, *window)] += np.einsum(
                "n,o...->no...", x[(slice(None), c, *place)], w[c]
            )
    crop = tuple(slice(a, d - b) for d, (a, b) in zip(full, padding, strict=True))
    assert len(crop) == rank
    return out[(slice(None), slice(None), *crop)].astype("float32")


def convolutions() -> Iterator[Case]:
    """Every named layout."""
    x, w = normal(2, 4, 7, 6), normal(3, 4, 3, 2)
    for stride, padding, dilation in ((1, 0, 1), (2, 1, 1), ((1, 2), (0, 1, 2, 0), (2, 1))):
        sides = {0: [(0, 0)] * 2, 1: [(1, 1)] * 2}.get(padding, [(0, 2), (1, 0)])  # type: ignore[call-overload]
        both = (stride,) * 2 if isinstance(stride, int) else stride
        steps = (dilation,) * 2 if isinstance(dilation, int) else dilation
        result = convolution(x, w, both, sides, steps)
        options = {"stride": stride, "padding": padding, "dilation": dilation}
        yield case("nn.conv2d_nchw", x, w, **options, symbolic=(6, 7), expected=result)
        yield case(
            "nn.conv2d_nhwc",
            x.transpose(0, 2, 3, 1),
            w.transpose(2, 3, 1, 0),
            **options,
            symbolic=(6, 7),
            expected=result.transpose(0, 2, 3, 1),
        )
        yield case("nn.conv2d_hwcn", x.transpose(2, 3, 1, 0), w.transpose(2, 3, 1, 0), **options,
                   symbolic=False, expected=result.transpose(2, 3, 1, 0))  # fmt: skip
    plain = convolution(x, w, (1, 1), [(1, 1), (1, 0)], (1, 1))
    yield case(
        "nn.conv2d", x, w, strides=1, padding="SAME", dilation=1, symbolic=(6, 7), expected=plain
    )
    yield case(
        "nn.conv2d",
        x,
        w,
        strides=1,
        padding="VALID",
        dilation=1,
        out_dtype="float64",
        symbolic=False,
        expected=convolution(x.astype("float64"), w, (1, 1), [(0, 0)] * 2, (1, 1)),
    )
    grouped = normal(6, 2, 3, 3)
    result = convolution(x, grouped, (1, 1), [(1, 1)] * 2, (1, 1), 2)
    yield case("nn.group_conv2d_nchw", x, grouped, stride=1, padding=1, dilation=1, groups=2,
               symbolic=(7,), expected=result)  # fmt: skip
    yield case(
        "nn.group_conv2d_nhwc",
        x.transpose(0, 2, 3, 1),
        grouped.transpose(2, 3, 1, 0),
        stride=1,
        padding=1,
        dilation=1,
        groups=2,
        symbolic=(7,),
        expected=result.transpose(0, 2, 3, 1),
    )
    for multiplier in (1, 2):
        own = normal(4, multiplier, 3, 3)
        result = convolution(
            x, own.reshape(4 * multiplier, 1, 3, 3), (2, 2), [(1, 1)] * 2, (1, 1), 4
        )
        options = {"stride": 2, "padding": 1, "dilation": 1}
        yield case("nn.depthwise_conv2d_nchw", x, own, **options, symbolic=(6, 7), expected=result)
        yield case(
            "nn.depthwise_conv2d_nhwc",
            x.transpose(0, 2, 3, 1),
            own.transpose(2, 3, 0, 1),
            **options,
            symbolic=(6, 7),
            expected=result.transpose(0, 2, 3, 1),
        )
    line, taps, half = normal(2, 4, 9), normal(6, 4, 3), normal(6, 2, 3)
    for name, weight, groups in (("nn.conv1d", taps, 1), ("nn.group_conv1d", half, 2)):
        result = convolution(line, weight, (2,), [(1, 1)], (2,), groups)
        options = {
            "strides": 2,
            "padding": 1,
            "dilation": 2,
            **({"groups": 2} if groups == 2 else {}),
        }
        yield case(f"{name}_ncw", line, weight, **options, symbolic=(9,), expected=result)
        yield case(f"{name}_nwc", line.transpose(0, 2, 1), weight.transpose(2, 1, 0), **options,
                   symbolic=(9,), expected=result.transpose(0, 2, 1))  # fmt: skip
    yield case(
        "nn.conv1d",
        line,
        half,
        groups=2,
        symbolic=(9,),
        expected=convolution(line, half, (1,), [(0, 0)], (1,), 2),
    )
    volume, cube = normal(1, 4, 5, 4, 6), normal(2, 2, 2, 3, 3)
    result = convolution(volume, cube, (1, 2, 1), [(1, 1), (0, 0), (1, 1)], (1, 1, 1), 2)
    options = {"stride": (1, 2, 1), "padding": (1, 0, 1), "dilation": 1, "groups": 2}
    yield case("nn.conv3d_ncdhw", volume, cube, **options, symbolic=(5, 6), expected=result)
    yield case(
        "nn.conv3d_ndhwc",
        volume.transpose(0, 2, 3, 4, 1),
        cube.transpose(2, 3, 4, 1, 0),
        **options,
        symbolic=(5, 6),
        expected=result.transpose(0, 2, 3, 4, 1),
    )
    yield case(
        "nn.conv",
        volume,
        cube,
        stride=(1, 2, 1),
        padding=(1, 0, 1),
        groups=2,
        data_layout="NCDHW",
        symbolic=False,
        expected=result,
    )


def transposed_convolutions() -> Iterator[Case]:
    """Windows that spread."""
    for shape, kernel, stride, padding, extra in (
        ((2, 4, 5, 6), (3, 3), (2, 2), [(1, 1), (1, 1)], (1, 1)),
        ((1, 4, 3, 5), (2, 3), (1, 2), [(0, 0), (1, 0)], (0, 0)),
    ):
        x, w, half = normal(*shape), normal(4, 3, *kernel), normal(4, 2, *kernel)
        around = tuple(a for a, _ in padding) + tuple(b for _, b in padding)
        options = {"padding": around, "out_dtype": "float32", "output_padding": extra}
        yield case("nn.conv2d_transpose_nchw", x, w, strides=stride, **options, symbolic=(5, 6),
                   expected=transposed(x, w, stride, padding, extra))  # fmt: skip
        result = transposed(x, half, stride, padding, extra, 2)
        yield case("nn.group_conv2d_transpose_nchw", x, half, stride=stride, groups=2, **options,
                   symbolic=(5, 6), expected=result)  # fmt: skip
        yield case("nn.conv_transpose", x, half, stride=stride, groups=2, padding=around,
                   output_padding=extra, symbolic=False, expected=result)  # fmt: skip
    line, taps = normal(2, 4, 5), normal(4, 3, 4)
    options = {"padding": (1, 2), "out_dtype": "float32", "output_padding": 0, "stride": 3}
    yield case("nn.conv1d_transpose_ncw", line, taps, **options, symbolic=(5,),
               expected=transposed(line, taps, (3,), [(1, 2)], (0,)))  # fmt: skip
    yield case("nn.group_conv1d_transpose_ncw", line, taps, groups=2, **options, symbolic=(5,),
               expected=transposed(line, taps, (3,), [(1, 2)], (0,), 2))  # fmt: skip
    volume, cube = normal(1, 2, 3, 2, 3), normal(2, 2, 2, 3, 2)
    options = {"padding": 1, "out_dtype": "float32", "output_padding": 0, "strides": 2}
    sides = [(1, 1)] * 3
    yield case("nn.conv3d_transpose_ncdhw", volume, cube, **options, symbolic=False,
               expected=transposed(volume, cube, (2,) * 3, sides, (0,) * 3))  # fmt: skip
    yield case("nn.group_conv3d_transpose_ncdhw", volume, cube, groups=2, **options, symbolic=False,
               expected=transposed(volume, cube, (2,) * 3, sides, (0,) * 3, 2))  # fmt: skip


def deformable() -> Iterator[Case]:
    """Sampling between pixels."""
    x, w = normal(1, 4, 6, 5), normal(3, 2, 3, 3)
    still = np.zeros((1, 36, 6, 5), "float32")
    options = {"strides": 1, "padding": 1, "dilation": 1, "deformable_groups": 2, "groups": 2,
           "border": "zeros"}  # fmt: skip
    moved = still.copy()
    moved[:, 0::2], moved[:, 1::2] = 1.0, 0.5  # one row down, half a column right
    padded = np.pad(x, ((0, 0), (0, 0), (1, 2), (1, 2)))
    shifted = (padded[:, :, 1:, :-1] + padded[:, :, 1:, 1:]) / 2
    for offset, expected in (
        (still, _grouped_four(x, w, True)),
        (moved, _grouped_four(shifted[:, :, :8, :7], w, False)),
    ):
        four = np.concatenate([w, w[:1]])
        yield case(
            "nn.deformable_conv2d_nchw",
            x,
            offset,
            four,
            **options,
            symbolic=False,
            expected=expected,
        )
        yield case(
            "nn.deformable_conv2d_nhwc",
            *(t.transpose(0, 2, 3, 1) for t in (x, offset)),
            four.transpose(2, 3, 1, 0),
            **options,
            symbolic=False,
            expected=expected.transpose(0, 2, 3, 1),
        )
    a, b = normal(1, 3, 6, 6), normal(1, 3, 6, 6)
    for multiply in (True, False):
        yield case(
            "nn.correlation_nchw",
            a,
            b,
            kernel_size=1,
            max_displacement=2,
            stride1=1,
            stride2=1,
            padding=2,
            is_multiply=multiply,
            symbolic=False,
            expected=_correlation(a, b, multiply),
        )


def _grouped_four(x: Array, w: Array, pad: bool) -> Array:
    """The convolution with four results in two groups."""
    sides = [(1, 1)] * 2 if pad else [(0, 0)] * 2
    return convolution(x, np.concatenate([w, w[:1]]), (1, 1), sides, (1, 1), 2)


def _correlation(a: Array, b: Array, multiply: bool) -> Array:
    """Displacements up to two pixels, with two pixels of padding."""
    wide = np.pad(b, ((0, 0), (0, 0), (2, 2), (2, 2)))
    maps = []
    for dy, dx in itertools.product(range(5), range(5)):
        part = wide[:, :, dy : dy + 6, dx : dx + 6]
        maps.append((a * part if multiply else np.abs(a - part)).mean(1))
    return np.stack(maps, 1)


def pooled(
    x: Array, kernel: Sequence[int], stride: Sequence[int], pads: Pads, kind: str, counted: bool
) -> Array:
    """[N, C, ...] over windows."""
    fill = -np.inf if kind == "max" else 0
    around = ((0, 0), (0, 0), *pads)
    axes = tuple(range(2, x.ndim))
    view = np.lib.stride_tricks.sliding_window_view
    cut = (slice(None), slice(None), *(slice(None, None, s) for s in stride))
    windows = view(np.pad(x, around, constant_values=fill), kernel, axes)[cut]
    inner = tuple(range(x.ndim, windows.ndim))
    if kind == "max":
        return windows.max(inner)
    counts = view(np.pad(np.ones_like(x), around, constant_values=float(counted)), kernel, axes)[
        cut
    ]
    return windows.sum(inner) / counts.sum(inner)


def pools() -> Iterator[Case]:
    """Windows over one to three axes, divided axes, gradients."""
    for rank, shape in ((1, (2, 3, 9)), (2, (2, 3, 7, 6)), (3, (1, 2, 5, 4, 6))):
        x = normal(*shape)
        kernel, stride, pads = (3, 2, 3)[:rank], (2, 1, 2)[:rank], [(1, 1), (0, 1), (1, 0)][:rank]
        around = tuple(a for a, _ in pads) + tuple(b for _, b in pads)
        for kind, counted in (("max", True), ("avg", True), ("avg", False)):
            result = pooled(x, kernel, stride, pads, kind, counted)
            yield case(
                f"nn.pool{rank}d",
                x,
                kernel=kernel,
                stride=stride,
                dilation=1,
                padding=around,
                pool_type=kind,
                count_include_pad=counted,
                symbolic=shape[2:],
                expected=result,
            )
    x = normal(2, 3, 7, 6)
    last = x.transpose(0, 2, 3, 1)
    yield case(
        "nn.pool2d",
        last,
        kernel=2,
        stride=2,
        dilation=1,
        padding=0,
        pool_type="max",
        layout="NHWC",
        expected=pooled(x, (2, 2), (2, 2), [(0, 0)] * 2, "max", True).transpose(0, 2, 3, 1),
    )
    ceiled = pooled(x, (2, 2), (2, 2), [(0, 1), (0, 0)], "max", True)
    yield case(
        "nn.pool2d",
        x,
        kernel=2,
        stride=2,
        dilation=1,
        padding=0,
        pool_type="max",
        ceil_mode=True,
        expected=ceiled,
    )
    for kind, function in (("max", np.max), ("avg", np.mean)):
        yield case("nn.global_pool", x, pool_type=kind, expected=function(x, (2, 3), keepdims=True))
        for name, data, size in (
            ("adaptive_pool1d", normal(2, 3, 7), (3,)),
            ("adaptive_pool", x, (3, 4)),
            ("adaptive_pool3d", normal(1, 2, 5, 4, 6), (2, 3, 4)),
        ):
            result = data
            for axis, extent in enumerate(size, 2):
                n = data.shape[axis]
                parts = [(i * n // extent, -(-(i + 1) * n // extent)) for i in range(extent)]
                result = np.stack(
                    [function(result.take(range(a, b), axis), axis) for a, b in parts], axis
                )
            yield case(
                f"nn.{name}",
                data,
                output_size=size,
                pool_type=kind,
                symbolic=False,
                expected=result,
            )
    data = normal(1, 2, 6, 5)
    for kind in ("max", "avg"):
        grads = normal(*pooled(data, (3, 2), (2, 1), [(1, 1), (0, 0)], kind, True).shape)
        yield case(
            "nn.pool_grad",
            grads,
            data,
            kernel=(3, 2),
            stride=(2, 1),
            padding=(1, 0),
            pool_type=kind,
            symbolic=False,
            expected=_pool_grad(grads, data, kind),
        )


def _pool_grad(grads: Array, data: Array, kind: str) -> Array:
    """Windows of 3 x 2, strides 2 x 1, a row of padding on either side."""
    result = np.zeros((1, 2, 8, 5))
    padded = np.pad(data, ((0, 0), (0, 0), (1, 1), (0, 0)), constant_values=-np.inf)
    for c, y, x in np.ndindex(*grads.shape[1:]):
        window = padded[0, c, 2 * y : 2 * y + 3, x : x + 2]
        if kind == "max":
            i, j = np.unravel_index(window.argmax(), window.shape)
            result[0, c, 2 * y + i, x + j] += grads[0, c, y, x]
        else:
            result[0, c, 2 * y : 2 * y + 3, x : x + 2] += grads[0, c, y, x] / 6
    return result[:, :, 1:-1].astype("float32")


def standard(x: Array, axes: Sequence[int]) -> Array:
    """Mean 0 and variance 1 along axes."""
    mean, var = x.mean(tuple(axes), keepdims=True), x.var(tuple(axes), keepdims=True)
    return (x - mean) / np.sqrt(var + 1e-5)


def norms() -> Iterator[Case]:
    """Normalisations and softmax."""
    x = normal(2, 6, 4, 5)
    gamma, beta, mean, var = normal(6), normal(6), normal(6), np.abs(normal(6)) + 0.1
    c = (slice(None), None, None)
    plain = (x - mean[c]) / np.sqrt(var[c] + 1e-5)
    yield case(
        "nn.batch_norm", x, gamma, beta, mean, var, expected=(plain * gamma[c] + beta[c], mean, var)
    )
    yield case("nn.batch_norm", x, gamma, beta, mean, var, center=False, scale=False, epsilon=1e-5,
               expected=(plain, mean, var))  # fmt: skip
    new = x.mean((0, 2, 3)), x.var((0, 2, 3))
    yield case(
        "nn.batch_norm",
        x,
        gamma,
        beta,
        mean,
        var,
        training=True,
        expected=(
            standard(x, (0, 2, 3)) * gamma[c] + beta[c],
            mean * 0.9 + new[0] * 0.1,
            var * 0.9 + new[1] * 0.1,
        ),
    )
    own, shift = normal(4, 5), normal(4, 5)
    yield case(
        "nn.layer_norm", x, own, shift, axis=(-2, -1), expected=standard(x, (2, 3)) * own + shift
    )
    yield case(
        "nn.layer_norm",
        x,
        build=lambda t: topi.nn.layer_norm(t, None, None, 3),
        expected=standard(x, (3,)),
    )
    yield case(
        "nn.rms_norm",
        x,
        normal(5),
        axis=-1,
        expected=lambda x, w: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * w,
    )
    yield case(
        "nn.instance_norm",
        x,
        gamma,
        beta,
        axis=(2, 3),
        expected=standard(x, (2, 3)) * gamma[c] + beta[c],
    )
    grouped = standard(x.reshape(2, 3, 2, 4, 5), (2, 3, 4)).reshape(x.shape)
    yield case(
        "nn.group_norm",
        x,
        gamma,
        beta,
        num_groups=3,
        channel_axis=1,
        axes=(2, 3),
        symbolic=(4, 5),
        expected=grouped * gamma[c] + beta[c],
    )
    yield case(
        "nn.l2_normalize",
        x,
        eps=1e-6,
        axis=(1,),
        expected=lambda x: x / np.sqrt((x**2).sum(1, keepdims=True)),
    )
    squares = np.pad(x**2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    total = sum(squares[:, n : n + 6] for n in range(5))
    for power in (0.75, 0.6):
        yield case("nn.lrn", x, size=5, beta=power, expected=x / (2 + 1e-4 / 5 * total) ** power)
    yield case("nn.scale_shift_nchw", x, gamma, beta, expected=x * gamma[c] + beta[c])
    yield case("nn.scale_shift_nhwc", x, normal(5), normal(5), expected=lambda x, a, b: x * a + b)
    for axis in (-1, 1, 0):
        e = np.exp(x - x.max(axis, keepdims=True))
        total = e.sum(axis, keepdims=True)
        yield case("nn.softmax", x, axis=axis, expected=e / total)
        yield case("nn.log_softmax", x, axis=axis, expected=np.log(e / total))
    yield case("nn.fast_softmax", x, expected=np.exp(x) / np.exp(x).sum(-1, keepdims=True))


def products() -> Iterator[Case]:
    """Matrix products."""
    x, w, b = normal(3, 7), normal(5, 7), normal(5)
    yield case("nn.dense", x, w, expected=lambda x, w: x @ w.T)
    yield case("nn.dense", x, w, b, expected=lambda x, w, b: x @ w.T + b)
    small = integers(-9, 9, 3, 7, dtype="int8"), integers(-9, 9, 5, 7, dtype="int8")
    yield case("nn.dense", *small, out_dtype="int32", expected=lambda x, w: x.astype("int32") @ w.T)
    yield case("nn.matmul", normal(2, 3, 7), normal(7, 5), expected=np.matmul)
    for ta, tb in itertools.product((False, True), repeat=2):
        a, m = normal(7, 3) if ta else x, normal(5, 7) if tb else normal(7, 5)
        expected = (a.T if ta else a) @ (m.T if tb else m)
        yield case("nn.matmul", a, m, b, transpose_a=ta, transpose_b=tb, expected=expected + b)
        batch = np.stack([a, -a]), np.stack([m, m])
        yield case(
            "nn.batch_matmul",
            *batch,
            transpose_a=ta,
            transpose_b=tb,
            expected=np.stack([expected, -expected]),
        )
    yield case(
        "nn.batch_matmul",
        normal(4, 3, 7),
        normal(1, 5, 7),
        expected=lambda a, b: a @ b.swapaxes(1, 2),
    )
    for shape in ((0, 7), (3, 0)):
        a, m = normal(*shape), normal(5, shape[1])
        yield case("nn.dense", a, m, expected=lambda x, w: x @ w.T)
    packed = np.pad(w, ((0, 3), (0, 0))).reshape(2, 4, 7).transpose(0, 2, 1)
    yield case("nn.dense_pack", x, packed, units=5, tile=4, symbolic=(3,), expected=x @ w.T)
    yield case("nn.pack_weight", w, kind="dense", tile=4, groups=1, symbolic=False, expected=packed)


def spaces() -> Iterator[Case]:
    """Padding, blocks of pixels, buffers."""
    x = normal(2, 3, 4)
    yield case("nn.pad", x, pad_before=(0, 1, 2), pad_after=(1, 0, 3), pad_value=2.5,
               expected=np.pad(x, ((0, 1), (1, 0), (2, 3)), constant_values=2.5))  # fmt: skip
    yield case(
        "nn.pad",
        x,
        np.asarray(-1, "float32"),
        build=lambda t, v: topi.nn.pad(t, (1, 0, 0), pad_value=v),
        expected=np.pad(x, ((1, 1), (0, 0), (0, 0)), constant_values=-1),
    )
    for mode in ("SYMMETRIC", "REFLECT"):
        width = ((0, 1), (2, 1), (2, 3))
        yield case(
            "nn.mirror_pad",
            x,
            pad_before=[a for a, _ in width],
            pad_after=[b for _, b in width],
            mode=mode,
            expected=np.pad(x, width, mode.lower()),
        )
    blocks = normal(2, 8, 3, 2)
    parts = blocks.reshape(2, 2, 2, 2, 3, 2)
    dcr = parts.transpose(0, 3, 4, 1, 5, 2).reshape(2, 2, 6, 4)
    crd = parts.transpose(0, 1, 4, 2, 5, 3).reshape(2, 2, 6, 4)
    yield case("nn.depth_to_space", blocks, block_size=2, expected=dcr, symbolic=(3,))
    yield case("nn.depth_to_space", blocks, block_size=2, mode="CRD", expected=crd, symbolic=False)
    yield case(
        "nn.depth_to_space",
        blocks.transpose(0, 2, 3, 1),
        block_size=2,
        layout="NHWC",
        symbolic=False,
        expected=dcr.transpose(0, 2, 3, 1),
    )
    yield case("nn.space_to_depth", dcr, block_size=2, expected=blocks, symbolic=False)
    image = normal(2, 4, 6, 3)
    cut = np.pad(image, ((0, 0), (0, 0), (1, 2), (0, 0)))
    batches = cut.reshape(2, 2, 2, 3, 3, 3).transpose(2, 4, 0, 1, 3, 5).reshape(12, 2, 3, 3)
    options = {"block_shape": (2, 3), "symbolic": False}
    yield case(
        "nn.space_to_batch_nd",
        image,
        pad_before=(0, 1),
        pad_after=(0, 2),
        **options,
        expected=batches,
    )
    yield case(
        "nn.batch_to_space_nd",
        batches,
        crop_begin_list=(0, 1),
        crop_end_list=(0, 2),
        **options,
        expected=image,
    )
    yield case("nn.flatten", x, expected=lambda x: x.reshape(2, 12))
    spread = np.full((2, 7, 10), -1, "float32")
    spread[:, ::3, ::3] = normal(2, 3, 4)
    yield case(
        "nn.dilate",
        spread[:, ::3, ::3].copy(),
        strides=(1, 3, 3),
        dilation_value=-1.0,
        expected=spread,
    )
    data, buffer = normal(2, 2, 4), normal(2, 5, 4)
    yield case(
        "nn.fifo_buffer", data, buffer, axis=1, expected=np.concatenate([buffer[:, 2:], data], 1)
    )
    for factor in (2, 3):
        yield case(
            "nn.upsampling",
            image,
            scale_h=factor,
            scale_w=factor,
            layout="NHWC",
            symbolic=(4, 6),
            expected=image.repeat(factor, 1).repeat(factor, 2),
        )
    volume = normal(1, 2, 2, 3, 2)
    yield case(
        "nn.upsampling3d",
        volume,
        scale_d=2,
        scale_h=2,
        scale_w=2,
        coordinate_transformation_mode="asymmetric",
        symbolic=(3,),
        expected=volume.repeat(2, 2).repeat(2, 3).repeat(2, 4),
    )


def losses() -> Iterator[Case]:
    """Losses and a recurrent cell."""
    x, at, w = normal(4, 5, 3), integers(0, 5, 4, 3, dtype="int32"), np.abs(normal(5))
    weight = np.where(at == 2, 0, w[at])
    item = -np.take_along_axis(x, at[:, None].astype("int64"), 1)[:, 0] * weight
    for reduction, expected in (
        ("none", item),
        ("sum", item.sum()),
        ("mean", item.sum() / weight.sum()),
    ):
        yield case(
            "nn.nll_loss",
            x,
            at,
            w,
            reduction=reduction,
            ignore_index=2,
            expected=expected.astype("float32"),
        )
    p, y = np.abs(normal(4, 5)) + 0.1, normal(4, 5)
    yield case("nn.cross_entropy", p, y, expected=np.float32(-(np.log(p) * y).sum() / 4))
    yield case("nn.cross_entropy_with_logits", p, y, expected=np.float32(-(p * y).sum() / 4))
    for reverse, order in ((False, "IFGO"), (True, "OIGF")):
        xs, wi, wh, bias = normal(4, 2, 3), normal(20, 3), normal(20, 5), normal(20)
        start = normal(2, 5), normal(2, 5)
        expected = _lstm(xs[::-1] if reverse else xs, wi, wh, bias, start, order)
        yield case(
            "nn.lstm",
            xs,
            wi,
            wh,
            bias,
            *start,
            symbolic=(4,),
            expected=expected,
            tolerance=1e-4,
            build=lambda x, i, h, b, h0, c0, r=reverse, o=order: topi.nn.lstm(
                x, i, h, b, None, h0, c0, reverse=r, weight_layout=o
            ),
        )


def _lstm(
    xs: Array, wi: Array, wh: Array, bias: Array, start: tuple[Array, Array], order: str
) -> tuple[Array, Array]:
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    h, c = start
    hs, cs = [], []
    for x in xs:
        parts = np.split(x @ wi.T + h @ wh.T + bias, 4, 1)
        gates = dict(zip(order, parts, strict=True))
        c = sigmoid(gates["F"]) * c + sigmoid(gates["I"]) * np.tanh(gates["G"])
        h = sigmoid(gates["O"]) * np.tanh(c)
        hs.append(h)
        cs.append(c)
    return np.stack(hs).astype("float32"), np.stack(cs).astype("float32")


CASES: dict[str, list[Case]] = {
    f.__name__: list(f())
    for f in (
        convolutions,
        transposed_convolutions,
        deformable,
        pools,
        norms,
        products,
        spaces,
        losses,
    )
}


@share(3)
@every_backend
@pytest.mark.parametrize("family", CASES)
def test_network_operators_match_numpy(family: str, backend: str) -> None:
    check(CASES[family], backend)


def test_network_operators_refuse_invalid_arguments() -> None:
    x, n = te.placeholder((1, 4, 6, 6)), SizeVar("n")
    for make, message in (
        (
            lambda: topi.nn.conv2d(x, x, (1, 1, 1), 0, 1),
            r"stride must be a number or 2 of them, got \(1, 1, 1\)",
        ),
        (lambda: topi.nn.conv2d(x, x, 1, (1, 1, 1), 1), "padding must be 1, 2 or 4 numbers"),
        (
            lambda: topi.nn.conv2d(x, x, 1, "FULL", 1),
            "padding must be numbers, 'SAME' or 'VALID', got 'FULL'",
        ),
        (
            lambda: topi.nn.pool2d(x, 2, 2, 1, 0, "sum"),
            "pool2d: pool_type must be 'max' or 'avg', got 'sum'",
        ),
        (lambda: topi.nn.mirror_pad(x, (0,) * 4, mode="WRAP"), "mode must be SYMMETRIC or REFLECT"),
        (lambda: topi.nn.pad(x, (1, 1)), "pad: expected 4 widths, got 2 before, 2 after"),
        (
            lambda: topi.nn.depth_to_space(x, 2, mode="X"),
            "of DCR, CRD, CDR, got 'X'",
        ),
        (lambda: topi.nn.dilate(x, (1,)), r"dilate: expected 4 strides, got \(1,\)"),
        (lambda: topi.nn.nll_loss(x, x, x, "max", 0), "reduction must be one of none, sum, mean"),
        (
            lambda: topi.nn.upsampling(te.placeholder((1, 1, n, 4)), 1.5, 1.5),
            "needs an integer factor, got 1.5",
        ),
        (
            lambda: topi.nn.lstm(te.placeholder((1, 1, 1)), x, x, weight_layout="IFG"),
            "must order the letters IFGO",
        ),
        (
            lambda: topi.nn.batch_matmul(te.placeholder((2, 3, 4)), te.placeholder((3, 3, 4))),
            "do not broadcast",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()
