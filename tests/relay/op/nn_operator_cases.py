"""Sample calls of neural-network operators, each against plain loops or an independent formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product

import numpy as np
from operator_cases import Case, all_of, case, integers, normal, positive

import ekiden.relay.op as op
from ekiden.ir.op import Array
from ekiden.topi.layout import transform_array
from ekiden.topi.nn.block_formats import BLOCK_FORMATS_BY_NAME
from ekiden.topi.nn.block_quantized import pack_blocks
from ekiden.topi.nn.int4_dense import pack_nibbles
from ekiden.topi.nn.winograd import transform_weight


def conv_loops(
    x: Array,
    w: Array,
    strides: Sequence[int],
    pads: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Array:
    """A convolution in NCHW and OIHW, tap by tap."""
    top, left, bottom, right = pads
    n, _c, _, _ = x.shape
    o, per_group, kh, kw = w.shape
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right))).astype(np.float64)
    rows = (padded.shape[2] - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    columns = (padded.shape[3] - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((n, o, rows, columns))
    for channel, y, i, j in product(range(o), range(rows), range(kh), range(kw)):
        first = channel // (o // groups) * per_group
        line = padded[:, first : first + per_group, y * strides[0] + i * dilation[0]]
        taps = line[
            :, :, j * dilation[1] : j * dilation[1] + (columns - 1) * strides[1] + 1 : strides[1]
        ]
        out[:, channel, y] += np.einsum("ncx,c->nx", taps, w[channel, :, i, j])
    return out


CONVS = (  # channels in, out, kernel, strides, pads, dilation, groups
    (3, 4, (3, 3), (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (4, 6, (1, 1), (1, 1), (0, 0, 0, 0), (1, 1), 1),
    (4, 6, (3, 2), (2, 1), (1, 0, 2, 1), (1, 1), 2),
    (4, 4, (3, 3), (2, 2), (1, 1, 1, 1), (1, 1), 4),
    (2, 3, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 1),
    (3, 5, (5, 3), (2, 2), (0, 1, 0, 1), (1, 2), 1),
)


def convolutions() -> Iterator[Case]:
    """conv2d in every layout, plain and packed."""
    for c, o, kernel, strides, pads, dilation, groups in CONVS:
        x, w = normal(2, c, 9, 8), normal(o, c // groups, *kernel)
        expected = conv_loops(x, w, strides, pads, dilation, groups)
        geometry = {
            "strides": strides,
            "padding": pads,
            "dilation": dilation,
            "groups": groups,
            "channels": o,
        }
        for data_layout, kernel_layout in (("NCHW", "OIHW"), ("NHWC", "HWIO"), ("NHWC", "OHWI")):
            layouts = {"data_layout": data_layout, "kernel_layout": kernel_layout}
            yield case(
                lambda a, b, g=geometry, ls=layouts: op.nn.conv2d(a, b, **g, **ls),
                transform_array(x, "NCHW", data_layout), transform_array(w, "OIHW", kernel_layout),
                expected=lambda a, b, e=expected, to=data_layout: transform_array(e, "NCHW", to),
                tolerance=2e-5,
            )  # fmt: skip
        yield from packed(x, w, geometry, groups, expected)
    empty = normal(0, 3, 5, 5)
    yield case(
        lambda a, b: op.nn.conv2d(a, b),
        empty,
        normal(2, 3, 3, 3),
        expected=lambda a, b: np.zeros((0, 2, 3, 3)),
    )


def packed(
    x: Array, w: Array, geometry: dict[str, object], groups: int, expected: Array
) -> Iterator[Case]:
    """The layouts of the tiled kernels."""
    rows = transform_array(x, "NCHW", "NHWC")
    depthwise = groups == x.shape[1] and w.shape[1] == 1
    layout = "HWOI" if depthwise else "GOHWI4o" if groups > 1 else "OHWI4o"
    kind = "group_conv2d" if groups > 1 else "conv2d"
    weight = transform_array(w, "OIHW", "HWOI") if depthwise else _pack_loops(w, kind, 4, groups)
    yield case(
        lambda a, b: op.nn.conv2d(a, b, **geometry, data_layout="NHWC", kernel_layout=layout),  # type: ignore[arg-type]
        rows,
        weight,
        expected=lambda a, b: transform_array(expected, "NCHW", "NHWC"),
        tolerance=2e-5,
        symbolic=(9, 8),
    )
    if not depthwise:
        yield case(
            lambda b: op.nn.contrib_pack_weight(b, kind, 4, groups),
            w,
            expected=lambda b: weight,
            symbolic=False,
        )


def winograd_convolutions() -> Iterator[Case]:
    """3x3 convolutions by Winograd's method, against the direct sum."""
    x, w = normal(2, 5, 6, 3), normal(5, 3, 3, 3)
    pads = (1, 0, 1, 2)
    geometry = {"padding": ((1, 1), (0, 2))}
    for m in (2, 4):
        result = transform_weight(w, m, 4)
        yield case(
            lambda b, m=m: op.nn.contrib_conv2d_winograd_weight_transform(b, m, 4),
            w, expected=lambda b, result=result: result, tolerance=2e-5, symbolic=False,
        )  # fmt: skip
        yield case(
            lambda a, b, m=m: op.nn.contrib_conv2d_winograd_without_weight_transform(
                a, b, m, 5, pads
            ),
            x, result, expected=lambda a, b: _sliding(a, w, geometry["padding"]),
            tolerance=2e-4, symbolic=False,
        )  # fmt: skip
    around = geometry["padding"]
    levels = integers(0, 255, 2, 5, 6, 3, dtype="uint8")
    kernel = integers(-128, 127, 5, 3, 3, 3, dtype="int8")
    for m in (2, 4):
        packed = transform_weight(kernel, m, 4)
        yield case(
            lambda b, m=m: op.nn.contrib_conv2d_winograd_weight_transform(b, m, 4),
            kernel, expected=lambda b, packed=packed: packed, symbolic=False,
        )  # fmt: skip
        yield case(
            lambda a, b, m=m: op.nn.contrib_conv2d_winograd_without_weight_transform(
                a, b, m, 5, pads
            ),
            levels, packed,
            expected=lambda a, b: _sliding(a.astype("int32"), kernel.astype("int32"), around),
            symbolic=False,
        )  # fmt: skip


def _sliding(x: Array, w: Array, pads: tuple[tuple[int, int], tuple[int, int]]) -> Array:
    """A 3x3 convolution of NHWC data."""
    wide = np.pad(x, ((0, 0), *pads, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
    return np.einsum("nyxcij,ocij->nyxo", windows, w)


def _pack_loops(w: Array, kind: str, tile: int, groups: int) -> Array:
    if kind == "group_conv2d":
        return np.stack([_pack_loops(part, "conv2d", tile, 1) for part in np.split(w, groups)])
    o, i, kh, kw = w.shape
    out = np.zeros((-(-o // tile), kh, kw, i, tile), w.dtype)
    for n in range(o):
        out[n // tile, :, :, :, n % tile] = w[n].transpose(1, 2, 0)
    return out


def transposed_convolutions() -> Iterator[Case]:
    """conv2d_transpose and conv1d."""
    for strides, pads, dilation, extra, groups in (
        ((1, 1), (0, 0, 0, 0), (1, 1), (0, 0), 1),
        ((2, 2), (1, 1, 1, 1), (1, 1), (1, 1), 1),
        ((2, 3), (1, 0, 0, 1), (1, 1), (0, 2), 2),
        ((2, 1), (1, 1, 1, 1), (2, 2), (0, 0), 1),
    ):
        x, w = normal(2, 4, 5, 4), normal(4, 3, 3, 3)
        yield case(
            lambda a, b, s=strides, p=pads, d=dilation, e=extra, g=groups: op.nn.conv2d_transpose(
                a, b, s, p, d, g, output_padding=e
            ),
            x, w, expected=lambda a, b, s=strides, p=pads, d=dilation, e=extra,
            g=groups: _deconv(a, b, s, p, d, e, g),
            tolerance=2e-5,
        )  # fmt: skip
        yield case(
            lambda a, b, s=strides, p=pads, d=dilation, e=extra, g=groups: op.nn.conv2d_transpose(
                a, b, s, p, d, g, output_padding=e, data_layout="NHWC"
            ),
            transform_array(x, "NCHW", "NHWC"), w, tolerance=2e-5,
        )  # fmt: skip
    yield case(  # negative padding adds a border of zeros
        lambda a, b: op.nn.conv2d_transpose(a, b, (2, 1), (-1, 2, 3, -2)),
        normal(1, 3, 5, 6), normal(3, 2, 3, 2), tolerance=2e-5,
    )  # fmt: skip
    for stride, pads1, dilation1, groups in ((1, (1, 1), 1, 1), (2, (0, 2), 2, 2)):
        yield case(
            lambda a, b, s=stride, p=pads1, d=dilation1, g=groups: op.nn.conv1d(a, b, s, p, d, g),
            normal(2, 4, 11), normal(6, 4 // groups, 3), tolerance=2e-5,
            expected=lambda a, b, s=stride, p=pads1, d=dilation1, g=groups: conv_loops(
                a[:, :, None], b[:, :, None], (1, s), (0, p[0], 0, p[1]), (1, d), g
            )[:, :, 0],
        )  # fmt: skip


def _deconv(
    x: Array, w: Array, strides: Sequence[int], pads: Sequence[int], dilation: Sequence[int], extra:
    Sequence[int], groups: int
) -> Array:  # fmt: skip
    """A convolution with the data spread out, padded and the kernel turned round."""
    n, c, h, width = x.shape
    spread = np.zeros((n, c, (h - 1) * strides[0] + 1, (width - 1) * strides[1] + 1))
    spread[:, :, :: strides[0], :: strides[1]] = x
    reach = [(k - 1) * d for k, d in zip(w.shape[2:], dilation, strict=True)]
    border = (
        reach[0] - pads[0],
        reach[1] - pads[1],
        reach[0] - pads[2] + extra[0],
        reach[1] - pads[3] + extra[1],
    )
    turned = np.concatenate([part.transpose(1, 0, 2, 3) for part in np.split(w, groups)])[
        :, :, ::-1, ::-1
    ]
    return conv_loops(spread, turned, (1, 1), border, dilation, groups)


def recurrent_layers() -> Iterator[Case]:
    """The loop over time; results are checked in tests/backend/test_recurrent_layers.py."""
    for kind, gates in (("rnn", 1), ("lstm", 4), ("gru", 3)):
        yield case(
            lambda x, w, k=kind: op.nn.recurrent(x, w, k),
            normal(3, 2, gates * 5),
            normal(gates * 5, 5),
            symbolic=(3, 2),
            tolerance=1e-5,
        )
    w = normal(12, 3)
    panels = np.zeros((2, 3, 4, 2), "float32")
    for gate, unit in product(range(4), range(3)):
        panels[unit // 2, :, gate, unit % 2] = w[gate * 3 + unit]
    yield case(
        lambda b: op.nn.contrib_pack_recurrent(b, 4, 2),
        w,
        expected=lambda b, p=panels: p.reshape(2, 3, 8),
        symbolic=False,
    )


def attention() -> Iterator[Case]:
    """Heads; results are checked in tests/backend/test_attention.py."""
    shapes = (2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, 16), (2, 1, 1, 5)
    inputs = [normal(*shape) for shape in shapes]
    yield case(lambda q, k, v: op.nn.attention(q, k, v, causal="end"), *inputs[:3],
               symbolic=(2, 3, 5), tolerance=1e-5)  # fmt: skip
    yield case(op.nn.attention, *inputs, symbolic=(2, 3, 5), tolerance=1e-5)


def pages() -> Iterator[Case]:
    """A cache in pages, also of bytes and of halves of them; whole decoders are checked in
    tests/llm/test_generate.py."""
    cache, tokens = normal(5, 2, 2, 2, 8 * 4), normal(3, 8, 4)
    places = (np.array(item, "int32") for item in ([1], [[3, 0], [1, 4]], [0, 0, 1], [8, 9, -1]))
    places = tuple(places)
    write, attend = op.nn.contrib_write_pages, op.nn.contrib_paged_attention
    yield case(partial(write, page=8), cache, tokens, *places, symbolic=(3, 5))
    yield case(partial(attend, page=8), tokens, cache, *places, symbolic=(3, 5), tolerance=1e-5)
    halves = np.zeros((5, 2, 2, 2, 8 * (4 + 2)), "int8")
    yield case(partial(write, page=8), halves, tokens, *places, symbolic=(3, 5))
    halves[...] = np.arange(halves.size).reshape(halves.shape) % 51
    yield case(partial(attend, page=8), tokens, halves, *places, symbolic=(3, 5), tolerance=1e-4)
    sinking = partial(op.nn.contrib_paged_attention_with_sinks, page=8)
    for stored in (cache, halves):
        yield case(sinking, tokens, stored, *places, normal(4), symbolic=(3, 5), tolerance=1e-4)
    yield from pages_of_halves(*places)
    rows, places = normal(2, 2, 2, 2, 3 * 8 * 4), (places[0], places[1] % 6, *places[2:])
    yield case(partial(write, page=8), rows, tokens, *places, symbolic=(3, 5))
    yield case(partial(attend, page=8), tokens, rows, *places, symbolic=(3, 5), tolerance=1e-5)


def pages_of_halves(*places: Array) -> Iterator[Case]:
    """Of heads of 40 numbers, so that there are several scales, which differ; numbers that are
    there already stay. Each share of two pages of 8 tokens may be half a step away, of 255 of its
    page's greatest."""
    tokens = normal(3, 8, 40)
    cache = integers(0, 255, 5, 2, 2, 2, 8 * (20 + 2 * 5), dtype="uint8")
    write = partial(op.nn.contrib_write_pages, page=8)
    yield case(write, cache, tokens, *places, symbolic=(3, 5))
    scales = cache[..., 8 * 20 :].reshape(5, 2, 2, 2, 5, 8, 2)
    scales[...] = positive(5, 2, 2, 2, 5, 8).astype("<f2")[..., None].view("uint8")
    attend = partial(op.nn.contrib_paged_attention, page=8)
    yield case(attend, tokens, cache, *places, symbolic=(3, 5), tolerance=2 * 8 * 0.5 / 255)


def products_of_nibbles(x: Array, n: int, block: int) -> Iterator[Case]:
    """Of weights of four bits, as they come and packed."""
    blocks = -(-x.shape[1] // block)
    weight = integers(0, 255, n, blocks, block // 2, dtype="uint8")
    scale, point = positive(n, blocks), integers(0, 15, n, blocks, dtype="uint8")
    low, high = weight & 15, weight >> 4
    levels = np.stack((low, high), -1).reshape(n, blocks, block).astype("float64")
    plain = ((levels - point[..., None]) * scale[..., None]).reshape(n, -1)
    yield case(
        op.nn.contrib_dense_nibbles, x, weight, scale, point,
        expected=lambda a, *_: a @ plain[:, : a.shape[1]].T, symbolic=(len(x),), tolerance=1e-4,
    )  # fmt: skip
    data = integers(-127, 127, len(x), blocks * block, dtype="int8")
    step = positive(len(x), blocks)
    total = data.reshape(len(x), blocks, block).sum(-1, dtype="int32")
    yield case(
        lambda *args: op.nn.contrib_dense_nibbles_pack(*args, units=n),
        data, step, total, *pack_nibbles(weight, scale, point),
        expected=lambda a, s, *_: (a * np.repeat(s, block, -1).astype("float64")) @ plain.T,
        symbolic=(len(x),), tolerance=1e-4,
    )  # fmt: skip


def products_of_blocks(name: str, panel: int) -> Iterator[Case]:
    """Of weights in blocks, as they come and packed; data that are whole bytes, and rows."""
    row = BLOCK_FORMATS_BY_NAME[name]
    plain = normal(5, 2 * row.values_per_block)
    weight = row.encode(plain)
    x = integers(-126, 127, 3, 2 * row.values_per_block, dtype="float32")
    x[:, ::32] = 127
    exact = row.decode(weight).astype("float64")
    expected = lambda a, *_: a @ exact.T  # noqa: E731
    yield case(
        lambda a, b: op.nn.dense_blocks(a, b, name), x, weight, expected=expected,
        symbolic=(len(x),), tolerance=1e-4,
    )  # fmt: skip
    yield case(
        lambda a, b: op.nn.contrib_dense_blocks_pack(a, b, name, len(weight), panel),
        x, pack_blocks(weight, name, panel), expected=expected, symbolic=(len(x),), tolerance=1e-4,
    )  # fmt: skip
    yield case(
        lambda a, b: op.nn.take_blocks(a, b, name), weight, integers(-5, 5, 2, 3, dtype="int64"),
        expected=lambda a, b: row.decode(a)[b], symbolic=(2, 3),
    )  # fmt: skip
    yield case(
        lambda a, b: op.nn.contrib_take_blocks_pack(a, b, name, len(weight), panel),
        pack_blocks(weight, name, panel), integers(-5, 5, 2, 3, dtype="int64"),
        expected=lambda a, b: row.decode(weight)[b], symbolic=(2, 3),
    )  # fmt: skip


def products() -> Iterator[Case]:
    """Matrix products."""
    for m, k, n in ((3, 5, 7), (1, 1, 1), (0, 4, 3), (4, 0, 3), (17, 33, 20)):
        x, w = normal(m, k), normal(n, k)
        yield case(op.nn.dense, x, w, expected=lambda a, b: a @ b.T, tolerance=1e-5)
        tiled = np.zeros((-(-n // 8), k, 8), "float32")
        for i in range(n):
            tiled[i // 8, :, i % 8] = w[i]
        yield case(
            lambda a, b, n=n: op.nn.contrib_dense_pack(a, b, n, 8), x, tiled,
            expected=lambda a, b, w=w: a @ w.T, tolerance=1e-5,
        )  # fmt: skip
        yield case(
            lambda b: op.nn.contrib_pack_weight(b, "dense", 8),
            w,
            expected=lambda b, t=tiled: t,
            symbolic=False,
        )
    yield case(
        op.nn.dense, normal(2, 3, 5), normal(4, 5), expected=lambda a, b: a @ b.T, tolerance=1e-5
    )
    yield case(op.nn.dense, normal(5), normal(4, 5), expected=lambda a, b: a @ b.T, tolerance=1e-5)
    yield case(
        op.nn.dense, integers(-9, 9, 3, 5, dtype="int32"), integers(-9, 9, 4, 5, dtype="int32")
    )
    wide = lambda a, b: op.nn.dense(a, b, out_dtype="int32")  # noqa: E731
    yield case(
        wide, normal(3, 50, dtype="int8"), normal(4, 50, dtype="int8"),
        expected=lambda a, b: a.astype("int32") @ b.T.astype("int32"),
    )  # fmt: skip
    for m, k, n in ((3, 32, 5), (1, 20, 70), (0, 16, 3)):
        yield from products_of_nibbles(normal(m, k), n, 16)
    for name, panel in (("q4_0", 16), ("q6_k", 32)):
        yield from products_of_blocks(name, panel)
    for ta, tb in product((False, True), repeat=2):
        a, b = normal(*((5, 3) if ta else (3, 5))), normal(*((4, 5) if tb else (5, 4)))
        yield case(
            lambda x, y, ta=ta, tb=tb: op.nn.matmul(x, y, transpose_a=ta, transpose_b=tb), a, b,
            tolerance=1e-5,
            expected=lambda x, y, ta=ta, tb=tb: (x.T if ta else x) @ (y.T if tb else y),
        )  # fmt: skip
        for batches in ((6, 6), (6, 1), (1, 6)):
            batch_a, batch_b = np.stack([a] * batches[0]), np.stack([b] * batches[1])
            yield case(
                lambda x, y, ta=ta, tb=tb: op.nn.batch_matmul(x, y, transpose_a=ta, transpose_b=tb),
                batch_a + normal(batches[0], 1, 1), batch_b, tolerance=1e-5,
                expected=lambda x, y, ta=ta, tb=tb: (x.mT if ta else x) @ (y.mT if tb else y),
            )  # fmt: skip


def pool_loops(
    x: Array, size: Sequence[int], strides: Sequence[int], pads: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool, mean: bool, include_pad: bool = False,
) -> Array:  # fmt: skip
    """Pooling in NCHW, window by window."""
    extents = []
    for n in range(2):
        length = x.shape[2 + n] + pads[n] + pads[n + 2] - (size[n] - 1) * dilation[n] - 1
        count = (-(-length // strides[n]) if ceil_mode else length // strides[n]) + 1
        if ceil_mode and (count - 1) * strides[n] >= x.shape[2 + n] + pads[n]:
            count -= 1
        extents.append(count)
    out = np.zeros((*x.shape[:2], *extents))
    for y, z in product(*map(range, extents)):
        starts = y * strides[0] - pads[0], z * strides[1] - pads[1]
        taps = [
            (starts[0] + i * dilation[0], starts[1] + j * dilation[1])
            for i, j in product(range(size[0]), range(size[1]))
        ]
        values = [x[:, :, a, b] for a, b in taps if 0 <= a < x.shape[2] and 0 <= b < x.shape[3]]
        counted = len(values)
        if include_pad:
            counted = sum(a < x.shape[2] + pads[2] and b < x.shape[3] + pads[3] for a, b in taps)
        out[:, :, y, z] = sum(values) / counted if mean else np.max(values, axis=0)
    return out


POOLS = (  # size, strides, pads, dilation, ceil_mode
    ((2, 2), (2, 2), (0, 0, 0, 0), (1, 1), False),
    ((3, 3), (2, 2), (1, 1, 1, 1), (1, 1), False),
    ((3, 3), (2, 2), (0, 0, 0, 0), (1, 1), True),
    ((3, 2), (2, 1), (1, 0, 2, 1), (1, 1), True),
    ((2, 3), (1, 2), (1, 1, 0, 1), (2, 1), False),
    ((3, 3), (3, 3), (1, 1, 1, 1), (1, 2), True),
)


def pooling() -> Iterator[Case]:
    """Pooling in both layouts."""
    x = normal(2, 3, 8, 9)
    for size, strides, pads, dilation, ceil_mode in POOLS:
        for layout in ("NCHW", "NHWC"):
            for pad in (None, False, True):
                expected = pool_loops(
                    x, size, strides, pads, dilation, ceil_mode, pad is not None, bool(pad)
                )
                yield _pool(x, layout, size, strides, pads, dilation, ceil_mode, pad, expected)
    yield case(lambda v: op.nn.max_pool2d(v, 2, 2), integers(-99, 99, 1, 2, 5, 5, dtype="int8"))
    yield case(lambda v: op.nn.max_pool1d(v, 3, 2, padding=1), normal(2, 3, 10))
    yield case(lambda v: op.nn.avg_pool1d(v, 3, 2, padding=1), normal(2, 3, 10))
    alone = {"padding": (3, 0, 1, 2), "layout": "NHWC"}  # some windows lie in the padding
    for pool in (op.nn.max_pool2d, op.nn.avg_pool2d):
        yield case(lambda v, f=pool: f(v, 2, 2, (1, 2), **alone), normal(2, 5, 6, 3))
    yield case(op.nn.global_avg_pool2d, x, expected=lambda v: v.mean((2, 3), keepdims=True))
    yield case(
        lambda v: op.nn.global_max_pool2d(v, "NHWC"),
        x,
        expected=lambda v: v.max((1, 2), keepdims=True),
    )
    blocks = lambda v: v.reshape(2, 3, 4, 2, 3, 3).mean((3, 5))  # noqa: E731
    yield case(lambda v: op.nn.adaptive_avg_pool2d(v, (4, 3)), x, expected=blocks)
    yield case(lambda v: op.nn.adaptive_avg_pool2d(v, (3, 5)), x)
    yield case(lambda v: op.nn.adaptive_avg_pool2d(v, (1, 2), "NHWC"), normal(2, 5, 7, 3))


def _pool(
    x: Array, layout: str, size: Sequence[int], strides: Sequence[int], pads: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool, include_pad: bool | None, expected: Array,
) -> Case:  # fmt: skip
    """A max pooling if `include_pad` is None, else an average."""
    geometry = {
        "pool_size": size, "strides": strides, "dilation": dilation, "padding": pads,
        "ceil_mode": ceil_mode, "layout": layout,
    }  # fmt: skip
    function = op.nn.max_pool2d if include_pad is None else op.nn.avg_pool2d
    extra = {} if include_pad is None else {"count_include_pad": include_pad}
    return case(
        lambda v: function(v, **geometry, **extra),  # type: ignore[operator]
        transform_array(x, "NCHW", layout),
        expected=lambda v: transform_array(expected, "NCHW", layout),
        tolerance=1e-5,
    )


def _shares(v: Array, axis: int) -> Array:
    exponents = np.exp(v.astype(np.float64) - v.max(axis, keepdims=True, initial=-1e9))
    return np.asarray(exponents / exponents.sum(axis, keepdims=True))


def activations() -> Iterator[Case]:
    """Softmax, bias, and per-channel activations."""
    for shape, axis in (
        ((3, 17), -1),
        ((2, 5, 4), 1),
        ((0, 3), -1),
        ((1, 1), 0),
        ((7,), 0),
        ((4, 1000), 1),
    ):
        share = partial(_shares, axis=axis)
        for softmax in (op.nn.softmax, op.nn.fast_softmax):
            yield case(
                lambda v, f=softmax, a=axis: f(v, a), normal(*shape), expected=share, tolerance=1e-5
            )
        yield case(
            lambda v, a=axis: op.nn.log_softmax(v, a),
            normal(*shape),
            expected=lambda v, s=share: np.log(s(v)),
            tolerance=1e-5,
        )
    x, c = normal(2, 3, 4), normal(3)
    slope = lambda v, a: np.where(v > 0, v, v * a[:, None])  # noqa: E731
    yield case(op.nn.prelu, x, c, expected=slope)
    yield case(op.nn.bias_add, x, c, expected=lambda v, b: v + b[:, None])
    yield case(lambda v, b: op.nn.bias_add(v, b, -1), x, normal(4), expected=lambda v, b: v + b)
    yield case(op.nn.dropout_raw, x, expected=lambda v: (v, np.ones_like(v)))


def _normal_rows(v: Array, axes: tuple[int, ...]) -> Array:
    return (v - v.mean(axes, keepdims=True)) / np.sqrt(v.var(axes, keepdims=True) + 1e-5)


def normalisations() -> Iterator[Case]:
    """Normalisations."""
    x = normal(2, 6, 4, 5)
    c, wide = (normal(6), normal(6)), (slice(None), None, None)
    stats = (normal(6), positive(6))
    yield case(
        op.nn.batch_norm, x, *c, *stats, tolerance=1e-5,
        expected=lambda v, g, b, m, s: (
            (v - m[wide]) / np.sqrt(s[wide] + 1e-5) * g[wide] + b[wide], m, s,
        ),
    )  # fmt: skip
    yield case(
        lambda v, g, b: op.nn.layer_norm(v, g, b), x, normal(5), normal(5), tolerance=1e-5,
        expected=lambda v, g, b: _normal_rows(v, (3,)) * g + b,
    )  # fmt: skip
    yield case(op.nn.rms_norm, x, normal(5), tolerance=1e-5)
    yield case(lambda v, w: op.nn.rms_norm(v, w, axis=1), x, c[0], tolerance=1e-5)
    yield case(lambda v, g, b: op.nn.layer_norm(v, g, b, axis=1), x, *c, tolerance=1e-5)
    yield case(
        op.nn.instance_norm,
        x,
        *c,
        tolerance=1e-5,
        expected=lambda v, g, b: _normal_rows(v, (2, 3)) * g[wide] + b[wide],
    )
    yield case(
        lambda v, g, b: op.nn.group_norm(v, g, b, 3), x, *c, tolerance=1e-5, symbolic=False,
        expected=lambda v, g,
        b: _normal_rows(v.reshape(2, 3, 2, 4, 5), (2, 3, 4)).reshape(v.shape) * g[wide] + b[wide],
    )  # fmt: skip
    for size, axis, beta in ((5, 1, 0.75), (2, 3, 0.5), (3, -1, 0.6)):
        yield case(
            lambda v, n=size, a=axis, b=beta: op.nn.lrn(v, n, a, 1.0, 0.1, b), x, tolerance=1e-5
        )
    yield case(lambda v: op.nn.lrn(v, 3, 1, 1.0, 3.0, 1.0), x, expected=_lrn, tolerance=1e-5)


def _lrn(x: Array) -> Array:
    out = np.zeros_like(x)
    for c in range(x.shape[1]):
        out[:, c] = x[:, c] / (1 + (x[:, max(0, c - 1) : c + 2] ** 2).sum(1))
    return out


def padding() -> Iterator[Case]:
    """Borders, also negative ones."""
    x = normal(3, 4)
    for width in (((1, 2), (0, 3)), ((0, 0), (2, 1)), ((2, 2), (3, 3))):
        yield case(
            lambda v, w=width: op.nn.pad(v, w, 1.5),
            x,
            expected=lambda v, w=width: np.pad(v, w, constant_values=1.5),
        )
        yield case(
            lambda v, w=width: op.nn.pad(v, w, pad_mode="edge"),
            x,
            expected=lambda v, w=width: np.pad(v, w, "edge"),
        )
        yield case(
            lambda v, w=width: op.nn.pad(v, w, pad_mode="reflect"),
            x,
            expected=lambda v, w=width: np.pad(v, w, "reflect"),
        )
    yield case(
        lambda v: op.nn.pad(v, ((-1, 2), (1, -2))),
        x,
        expected=lambda v: np.pad(v[1:, :2], ((0, 2), (1, 0))),
    )
    far = lambda v: np.pad(v, ((7, 9), (0, 0)), "reflect")  # noqa: E731
    yield case(lambda v: op.nn.pad(v, ((7, 9), (0, 0)), pad_mode="reflect"), x, expected=far)
    yield case(
        lambda v: op.nn.pad(v, ((1, 1),), 0, dtype="int64"),
        integers(0, 5, 0),
        expected=lambda v: np.zeros(2),
    )


def fills() -> Iterator[Case]:
    """Values of another dtype than the data's, which they are converted to."""
    for dtype in ("int8", "uint8", "int64", "float64", "float16", "bool"):
        yield case(
            lambda v: op.nn.pad(v, ((1, 0), (0, 2)), 1),
            normal(2, 3, dtype=dtype),
            expected=lambda v: np.pad(v, ((1, 0), (0, 2)), constant_values=1),
        )


def resizing() -> Iterator[Case]:
    """Resizes whose values are easy to tell; the rest is compared with ONNX Runtime in
    test_resize.py."""
    x = normal(1, 2, 4, 6)
    modes = (
        "half_pixel",
        "align_corners",
        "asymmetric",
        "pytorch_half_pixel",
        "tf_half_pixel_for_nn",
    )
    for mode, method, size in product(
        modes, ("nearest_neighbor", "linear", "cubic"), ((8, 12), (3, 5), (1, 1), (7, 6))
    ):
        yield case(
            lambda v, m=mode, k=method, s=size: op.image.resize2d(v, s, None, "NCHW", k, m),
            x,
            tolerance=1e-4,
            symbolic=False,
        )
    for rounding in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"):
        yield case(
            lambda v, r=rounding: op.image.resize2d(
                v, (7, 9), None, "NHWC", "nearest_neighbor", "asymmetric", r
            ),
            normal(1, 4, 6, 3),
            symbolic=False,
        )
    yield case(
        lambda v: op.image.resize2d(
            v, (5, 5), method="cubic", cubic_alpha=-0.75, cubic_exclude=True
        ),
        x,
        tolerance=1e-4,
    )
    yield case(lambda v: op.image.resize2d(v, (10, 15), scales=(2.6, 2.6)), x, tolerance=1e-4)
    yield case(
        lambda v, s: op.image.resize2d(v, (10, 15), scales=s),
        x, np.array([2.6, 2.6], "float32"), tolerance=1e-4, symbolic=False,
    )  # fmt: skip
    corners = partial(
        op.image.resize2d, coordinate_transformation_mode="align_corners", size=(6, 3)
    )
    scales = np.array([1.7, 0.7], "float32")
    yield case(lambda v: corners(v, scales=tuple(scales.tolist())), x, tolerance=1e-4)
    yield case(lambda v, s: corners(v, scales=s), x, scales, symbolic=(4, 6), tolerance=1e-4)
    for extents in ((4, 3), (1, 5)):
        yield case(
            lambda v, s=extents: op.image.resize2d(
                v, s, (0.25, -0.5, 0.75, 0.5), extrapolation_value=2.5,
                coordinate_transformation_mode="tf_crop_and_resize",
            ),
            x, tolerance=1e-4,
        )  # fmt: skip
    yield case(
        lambda v: op.nn.upsampling(v, 2, 3), x, expected=lambda v: v.repeat(2, 2).repeat(3, 3)
    )
    yield case(lambda v: op.nn.upsampling(v, 2, 2, "NHWC", "bilinear", True), x, tolerance=1e-5)


CASES = all_of(
    (
        convolutions,
        transposed_convolutions,
        winograd_convolutions,
        products,
        recurrent_layers,
        attention,
        pages,
        pooling,
        activations,
        normalisations,
        padding,
        fills,
        resizing,
    )
)
