"""Sizes that are data flow on: whatever stands after them runs, interpreted and compiled, as in
ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx_models import Array, Feed, expected, graph_model, ints, normal

import ekiden
from ekiden.frontend.common.dim_facts import DimFacts, RestartImport
from ekiden.frontend.onnx import from_onnx
from ekiden.frontend.onnx.graph import GraphImporter
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import RunError
from long_runs import alike

pytestmark = pytest.mark.quick
F = np.float32
Case = tuple[onnx.ModelProto, Feed]
CASES: dict[str, Callable[[], Case]] = {}


def case(function: Callable[[], Case]) -> Callable[[], Case]:
    CASES[function.__name__] = function
    return function


def text_model(
    nodes: str,
    inputs: Feed,
    outputs: list[str],
    weights: Feed,
    symbolic: bool = False,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model of nodes in ONNX's text."""
    graph = onnx.parser.parse_graph(f"test () => () {{ {nodes} }}")
    for item in graph.node:
        item.name = f"{item.op_type}_{item.output[0]}"
    return graph_model(list(graph.node), inputs, outputs, weights, opset, symbolic)


@case
def nonzero_gathernd_topk() -> Case:
    text = """
        nz = NonZero (m)
        ix = Transpose <perm=[1, 0]> (nz)
        v = GatherND (x, ix)
        sv = Shape (v)
        k = Min (sv, ten)
        t, ti = TopK (v, k)
        y = Gather <axis=0> (ix, ti)
    """
    x = normal(5, 7)
    feed = {"x": x, "m": x > 0}
    return text_model(text, feed, ["t", "y"], {"ten": ints(10)}), feed


@case
def boxes_of_nms() -> Case:
    text = """
        sel = NonMaxSuppression (b, s, mx, iou, sc)
        col = Slice (sel, c2, c3, c1)
        idx = Squeeze (col, c1)
        b2 = Squeeze (b, zero)
        y = Gather <axis=0> (b2, idx)
        sh = Shape (y)
        cnt = Gather (sh, z)
        r = Range (z, cnt, one)
    """
    b = np.abs(normal(1, 20, 4))
    b[..., 2:] += b[..., :2]
    s = np.abs(normal(1, 1, 20, seed=2))
    feed = {"b": b, "s": s}
    return text_model(
        text,
        feed,
        ["y", "r"],
        {
            "mx": ints(8),
            "iou": np.array([0.5], F),
            "sc": np.array([0.3], F),
            "c1": ints(1),
            "c2": ints(2),
            "c3": ints(3),
            "zero": ints(0),
            "z": np.array(0),
            "one": np.array(1),
        },
    ), feed


@case
def nonzero_gather_arange() -> Case:
    text = """
        g = Greater (x, zf)
        nz = NonZero (g)
        t = Transpose (nz)
        i0 = Gather <axis=1> (t, z)
        yy = Gather <axis=0> (x, i0)
        r = Range (z, one, one)
        y = Gather <axis=0> (yy, r)
    """
    x = normal(5, 3)
    feed = {"x": x}
    return text_model(
        text, feed, ["y"], {"zf": np.array(0, F), "z": np.array(0), "one": np.array(1)}
    ), feed


@case
def durations() -> Case:
    text = """
        tot = ReduceSum <keepdims=0> (d, ax1)
        mx = ReduceMax <keepdims=0> (tot)
        cs = CumSum (d, one)
        t = Range (z, mx, one)
        tt = Unsqueeze (t, axs)
        cc = Unsqueeze (cs, ax2)
        lt = Less (tt, cc)
        lf = Cast <to=1> (lt)
        pd = Pad (lf, pads)
        prev = Slice (pd, s0, em1, ax1)
        path = Sub (lf, prev)
        pt = Transpose <perm=[0, 2, 1]> (path)
        e = MatMul (pt, h)
        ec = Transpose <perm=[0, 2, 1]> (e)
        c = Conv <pads=[1, 1]> (ec, w)
        y = ConvTranspose <pads=[2, 2], strides=[4]> (c, w2)
    """
    d = np.array([[1, 2, 3, 0], [2, 2, 0, 1]])
    h = normal(2, 4, 6)
    feed = {"d": d, "h": h}
    return text_model(
        text,
        feed,
        ["y"],
        {
            "ax1": ints(1),
            "one": np.array(1),
            "z": np.array(0),
            "axs": ints(0, 1),
            "ax2": ints(2),
            "pads": ints(0, 1, 0, 0, 0, 0),
            "s0": ints(0),
            "em1": ints(-1),
            "w": normal(5, 6, 3),
            "w2": normal(5, 2, 8),
        },
    ), feed


@case
def range_float_symbolic() -> Case:
    text = """
        s = Shape (x)
        h = Gather (s, two)
        hf = Cast <to=1> (h)
        r = Range (zf, hf, onef)
        y = Add (r, half)
    """
    x = normal(1, 3, 5, 7)
    feed = {"x": x}
    return text_model(
        text,
        feed,
        ["y"],
        {
            "two": np.array(2),
            "zf": np.array(0, F),
            "onef": np.array(1, F),
            "half": np.array(0.5, F),
        },
        symbolic=True,
    ), feed


@case
def range_float_symbolic_halved() -> Case:
    text = """
        s = Shape (x)
        h = Gather (s, two)
        hf = Cast <to=1> (h)
        hh = Div (hf, twof)
        hg = Floor (hh)
        r = Range (zf, hg, onef)
        y = Add (r, half)
    """
    x = normal(1, 3, 5, 7)
    feed = {"x": x}
    return text_model(
        text,
        feed,
        ["y"],
        {
            "two": np.array(2),
            "twof": np.array(2, F),
            "zf": np.array(0, F),
            "onef": np.array(1, F),
            "half": np.array(0.5, F),
        },
        symbolic=True,
    ), feed


@case
def topk_k_data() -> Case:
    text = """
        k = ReduceSum <keepdims=1> (m)
        v, i = TopK (x, k)
        y = Softmax <axis=-1> (v)
    """
    x = normal(12)
    m = ints(1, 0, 1, 1)
    feed = {"x": x, "m": m}
    return text_model(text, feed, ["y", "i"], {}), feed


@case
def conv_over_data_length() -> Case:
    text = """
        xs = Slice (x, s0, k, ax)
        c = Conv <pads=[1, 1], strides=[2]> (xs, w)
        r = Relu (c)
        g = GlobalAveragePool (r)
        sh = Shape (r)
        k2 = Mul (k, twoi)
        sz = Concat <axis=0> (one, one3, k2)
        y = Resize <mode="nearest"> (r, "", "", sz)
    """
    x = normal(1, 4, 20)
    k = ints(9)
    feed = {"x": x, "k": k}
    return text_model(
        text,
        feed,
        ["g", "y", "sh"],
        {
            "s0": ints(0),
            "ax": ints(2),
            "w": normal(3, 4, 3),
            "one": ints(1),
            "one3": ints(3),
            "twoi": ints(2),
        },
    ), feed


@case
def reshape_by_data() -> Case:
    text = """
        nz = NonZero (x)
        s = Shape (nz)
        c = Gather (s, onei)
        sh = Concat <axis=0> (c, four)
        z = ConstantOfShape <value=float[1] v {2}> (sh)
        y = MatMul (z, w)
    """
    x = normal(6)
    x[2] = 0
    feed = {"x": x}
    return text_model(
        text, feed, ["y"], {"onei": ints(1), "four": ints(4), "w": normal(4, 3)}
    ), feed


@case
def reshape_data_channels() -> Case:
    text = """
        sh = Concat <axis=0> (k, chans)
        r = Reshape (x, sh)
        y = Conv (r, w)
    """
    x = normal(2 * 3 * 4 * 5)
    k = ints(2)
    feed = {"x": x, "k": k}
    return text_model(text, feed, ["y"], {"chans": ints(3, 4, 5), "w": normal(7, 3, 3, 3)}), feed


@case
def split_by_data() -> Case:
    text = """
        a, b = Split <axis=0> (x, sp)
        ya = MatMul (a, w)
        yb = MatMul (b, w)
    """
    x = normal(7, 4)
    sp = ints(3, 4)
    feed = {"x": x, "sp": sp}
    return text_model(text, feed, ["ya", "yb"], {"w": normal(4, 2)}), feed


@case
def resize_sizes_data() -> Case:
    text = """
        y = Resize <mode="linear"> (x, "", "", sz)
    """
    x = normal(1, 2, 5, 6)
    sz = ints(1, 2, 9, 11)
    feed = {"x": x, "sz": sz}
    return text_model(text, feed, ["y"], {}), feed


@case
def pad_by_data() -> Case:
    text = """
        q = Pad (x, p)
        y = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (q)
    """
    x = normal(1, 2, 5, 6)
    p = ints(0, 0, 1, 0, 0, 0, 2, 3)
    feed = {"x": x, "p": p}
    return text_model(text, feed, ["y"], {}), feed


@case
def onehot_depth_data() -> Case:
    text = """
        o = OneHot (i, d, v)
        y = ReduceSum <keepdims=0> (o, a)
    """
    i = ints(0, 2, 1)
    d = np.array(4)
    feed = {"i": i, "d": d}
    return text_model(text, feed, ["y"], {"v": np.array([0, 1], F), "a": ints(0)}), feed


@case
def expand_by_data() -> Case:
    text = """
        e = Expand (x, sh)
        y = Add (e, x)
    """
    x = normal(1, 4)
    sh = ints(3, 1)
    feed = {"x": x, "sh": sh}
    return text_model(text, feed, ["y"], {}), feed


@case
def tile_by_data() -> Case:
    text = """
        e = Tile (x, r)
        s = Shape (e)
        y = ReduceMean <axes=[0]> (e)
    """
    x = normal(2, 4)
    r = ints(3, 1)
    feed = {"x": x, "r": r}
    return text_model(text, feed, ["y", "s"], {}), feed


@case
def squeeze_data() -> Case:
    text = """
        nz = NonZero (x)
        i = Squeeze (nz, z)
        y = Gather (x, i)
    """
    x = normal(6)
    x[1] = 0
    feed = {"x": x}
    return text_model(text, feed, ["y"], {"z": ints(0)}), feed


@case
def empty_nonzero() -> Case:
    text = """
        nz = NonZero (x)
        i = Squeeze (nz, z)
        y = Gather (v, i)
        t = ReduceSum <keepdims=0> (y)
        c = Concat <axis=0> (y, v)
    """
    x = np.zeros(6, F)
    feed = {"x": x, "v": normal(6)}
    return text_model(text, feed, ["y", "t", "c"], {"z": ints(0)}), feed


@case
def two_ranges() -> Case:
    text = """
        r = Range (z, k, one)
        f = ConstantOfShape <value=int64[1] v {2}> (k1)
        a = Add (r, f)
        c = Concat <axis=0> (r, f)
        y = Mul (a, r)
    """
    k = np.array(5)
    feed = {"k": k, "k1": ints(5)}
    return text_model(text, feed, ["y", "c"], {"z": np.array(0), "one": np.array(1)}), feed


@case
def loop_growing() -> Case:
    text = """
        g, ss = Loop (n, t, x) <body=b (int64 i, bool c, float[m] acc)
            => (bool c2, float[l] acc2, float[1] s) {
        acc2 = Concat <axis=0> (acc, v)
        c2 = Identity (c)
        s = ReduceSum <keepdims=1> (acc2)
        }>
        sh = Shape (g)
        o = ConstantOfShape <value=float[1] v {1}> (sh)
        y = Add (g, o)
        k = Gather (sh, z)
        r = Range (z0, k, one)
    """
    x = normal(2)
    feed = {"n": np.array(3), "x": x, "v": normal(2, seed=3)}
    return text_model(
        text,
        feed,
        ["y", "ss", "r"],
        {"t": np.array(True), "z": np.array(0), "z0": np.array(0), "one": np.array(1)},
    ), feed


@case
def roialign_data() -> Case:
    text = """
        nz = NonZero (m)
        i = Squeeze (nz, z)
        rois = Gather (b, i)
        s = Shape (rois)
        k = Gather (s, z)
        bi = ConstantOfShape <value=int64[1] v {0}> (k)
        p = RoiAlign <output_height=3, output_width=3, sampling_ratio=2> (x, rois, bi)
        f = Flatten (p)
        y = Gemm (f, w)
    """
    b = np.abs(normal(6, 4)) * 3
    b[:, 2:] += b[:, :2] + 1
    m = np.array([1, 0, 1, 1, 0, 0], F)
    feed = {"x": normal(1, 2, 8, 8), "b": b, "m": m}
    return text_model(text, feed, ["y"], {"z": ints(0), "w": normal(18, 4)}), feed


@case
def unique_scatter() -> Case:
    text = """
        u, f, inv, c = Unique (x)
        s = Shape (u)
        z = ConstantOfShape <value=float[1] v {0}> (s)
        y = ScatterElements <axis=0, reduction="add"> (z, inv, w)
    """
    x = ints(3, 1, 3, 2)
    feed = {"x": x, "w": normal(4)}
    return text_model(text, feed, ["y", "u"], {}, opset=18), feed


@case
def lstm_over_data() -> Case:
    text = """
        xs = Slice (x, s0, k, a0)
        y, h, c = LSTM <hidden_size=3> (xs, w, r)
    """
    feed = {"x": normal(7, 1, 4), "k": ints(5)}
    return text_model(
        text,
        feed,
        ["y", "h"],
        {"s0": ints(0), "a0": ints(0), "w": normal(1, 12, 4), "r": normal(1, 12, 3)},
    ), feed


@case
def stft_like() -> Case:
    text = """
        nz = NonZero (m)
        i = Squeeze (nz, z)
        s = Gather <axis=1> (x, i)
        s3 = Unsqueeze (s, a1)
        y = STFT <onesided=1> (s, step, win)
    """
    x = normal(1, 64)
    m = np.ones(64, F)
    m[::7] = 0
    feed = {"x": x, "m": m}
    return text_model(
        text,
        feed,
        ["y"],
        {"z": ints(0), "a1": ints(1), "step": np.array(4), "win": np.hanning(16).astype(F)},
    ), feed


@case
def gathernd_data_last() -> Case:
    text = """
        nz = NonZero (x)
        t = Transpose <perm=[1, 0]> (nz)
        v = GatherND (x, t)
        v2 = Mul (v, two)
        y = ScatterND (x, t, v2)
    """
    x = normal(4, 3)
    x[1] = 0
    feed = {"x": x}
    return text_model(text, feed, ["y"], {"two": np.array(2, F)}), feed


@case
def if_of_data_size() -> Case:
    text = """
        nz = NonZero (x)
        i = Squeeze (nz, z)
        g = Gather (x, i)
        n = Size (g)
        c = Greater (n, zi)
        y = If (c) <else_branch=e () => (float ee) {
        ee = Identity (zf)
        }, then_branch=t () => (float tt) {
        tt = ReduceMax <keepdims=0> (g)
        }>
    """
    x = normal(6)
    feed = {"x": x}
    return text_model(
        text, feed, ["y"], {"z": ints(0), "zi": np.array(0), "zf": np.array(-1, F)}
    ), feed


@case
def einsum_data() -> Case:
    text = """
        nz = NonZero (m)
        i = Squeeze (nz, z)
        a = Gather (x, i)
        y = Einsum <equation="ij,kj->ik"> (a, a)
        u = Trilu <upper=1> (y)
        am = ArgMax <axis=1> (y)
    """
    feed = {"x": normal(5, 3), "m": np.array([1, 0, 1, 1, 0], F)}
    return text_model(text, feed, ["y", "u", "am"], {"z": ints(0)}), feed


@case
def compress_norm() -> Case:
    text = """
        a = Compress <axis=0> (x, c)
        l = LayerNormalization <axis=-1> (a, s, b)
        t = Transpose (l)
        u = Unsqueeze (t, z)
        q = InstanceNormalization (u, is, ib)
    """
    feed = {"x": normal(5, 3), "c": np.array([1, 0, 1, 1, 0], bool)}
    return text_model(
        text,
        feed,
        ["q"],
        {"s": normal(3), "b": normal(3), "z": ints(0), "is": normal(3), "ib": normal(3)},
    ), feed


@case
def depth_to_space_data() -> Case:
    text = """
        xs = Slice (x, s0, k, a)
        d = DepthToSpace <blocksize=2> (xs)
        y = AveragePool <kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[1, 1]> (d)
    """
    feed = {"x": normal(1, 8, 5, 6), "k": ints(3, 4)}
    return text_model(text, feed, ["y"], {"s0": ints(0, 0), "a": ints(2, 3)}), feed


@case
def cast_float_size() -> Case:
    text = """
        g = Compress <axis=0> (x, c)
        s = Shape (g)
        sf = Cast <to=1> (s)
        m = Mul (sf, sc)
        fl = Floor (m)
        k = Cast <to=7> (fl)
        y = ConstantOfShape (k)
    """
    feed = {"x": normal(5), "c": np.array([1, 0, 1, 1, 0], bool)}
    return text_model(text, feed, ["y"], {"sc": np.array(1.5, F)}), feed


@case
def gather_elements_data() -> Case:
    text = """
        g = Compress <axis=0> (x, c)
        a = ArgMax <axis=1, keepdims=1> (g)
        y = GatherElements <axis=1> (g, a)
        cs = CumSum (y, z)
        cond = Greater (g, zf)
        w = Where (cond, g, zf)
    """
    feed = {"x": normal(5, 3), "c": np.array([1, 0, 1, 1, 0], bool)}
    return text_model(text, feed, ["cs", "w"], {"z": np.array(0), "zf": np.array(0, F)}), feed


@case
def range_float_data() -> Case:
    text = """
        k = ReduceSum <keepdims=0> (x)
        r = Range (zf, k, onef)
        y = Unsqueeze (r, ax)
    """
    feed = {"x": np.array([1.5, 2.2], F)}
    return text_model(
        text, feed, ["y"], {"zf": np.array(0, F), "onef": np.array(1, F), "ax": ints(0)}
    ), feed


@case
def nms_in_loop() -> Case:
    text = """
        y = Loop (n, t, x0) <body=b (int64 i, bool c, float[m, 4] acc)
            => (bool c2, float[l, 4] acc2) {
        bb = Gather <axis=0> (bs, i)
        sb = Gather <axis=0> (ss, i)
        b1 = Unsqueeze (bb, u0)
        s1 = Unsqueeze (sb, u01)
        sel = NonMaxSuppression (b1, s1, mx, iou, sc)
        col = Gather <axis=1> (sel, two)
        kept = Gather <axis=0> (bb, col)
        acc2 = Concat <axis=0> (acc, kept)
        c2 = Identity (c)
        }>
    """
    bs = np.abs(normal(2, 10, 4))
    bs[..., 2:] += bs[..., :2]
    ss = np.abs(normal(2, 10, seed=2))
    feed = {"bs": bs, "ss": ss}
    return text_model(
        text,
        feed,
        ["y"],
        {
            "n": np.array(2),
            "t": np.array(True),
            "x0": np.zeros((0, 4), F),
            "u0": ints(0),
            "u01": ints(0, 1),
            "mx": ints(5),
            "iou": np.array([0.5], F),
            "sc": np.array([0.3], F),
            "two": np.array(2),
        },
    ), feed


@case
def matmul_two_data() -> Case:
    text = """
        a = Compress <axis=0> (x, c)
        b = Compress <axis=0> (y, c)
        at = Transpose (a)
        z = MatMul (at, b)
        w = Add (a, b)
        q = Concat <axis=1> (a, b)
    """
    c = np.array([1, 0, 1, 1, 0], bool)
    feed = {"x": normal(5, 3), "y": normal(5, 3, seed=2), "c": c}
    return text_model(text, feed, ["z", "w", "q"], {}), feed


@case
def sequence_of_data() -> Case:
    text = """
        a = Compress <axis=0> (x, c)
        s = SplitToSequence <axis=0, keepdims=0> (a)
        n = SequenceLength (s)
        f = SequenceAt (s, z)
        y = ConcatFromSequence <axis=0> (s)
    """
    c = np.array([1, 0, 1, 1, 0], bool)
    feed = {"x": normal(5, 3), "c": c}
    return text_model(text, feed, ["n", "f", "y"], {"z": np.array(0)}), feed


@case
def squeeze_no_axes() -> Case:
    text = """
        a = Compress <axis=1> (x, c)
        y = Squeeze (a)
    """
    c = np.array([1, 0, 1], bool)
    feed = {"x": normal(1, 3), "c": c}
    return text_model(text, feed, ["y"], {}), feed


@case
def groupnorm_attention() -> Case:
    text = """
        a = Compress <axis=1> (x, c)
        q = MatMul (a, wq)
        kt = Transpose <perm=[0, 2, 1]> (q)
        s = MatMul (q, kt)
        p = Softmax <axis=-1> (s)
        o = MatMul (p, q)
        sh = Shape (o)
        tt = Gather (sh, i1)
        ns = Concat <axis=0> (m1, tt, h, d)
        r = Reshape (o, ns)
        y = Transpose <perm=[0, 2, 1, 3]> (r)
    """
    c = np.array([1, 0, 1, 1], bool)
    feed = {"x": normal(2, 4, 6), "c": c}
    return text_model(
        text,
        feed,
        ["y"],
        {"wq": normal(6, 6), "i1": ints(1), "m1": ints(-1), "h": ints(2), "d": ints(3)},
    ), feed


@case
def a_slice_of_joined_levels() -> Case:
    """A kernel whose extents are expressions of dimensions that it does not see."""
    text = """
        f = Reshape (x, flat)
        p = MaxPool <kernel_shape=[2, 2], strides=[2, 2]> (x)
        g = Reshape (p, flat)
        j = Concat <axis=1> (f, g, f)
        all = Shape (f)
        n = Gather (all, one)
        y = Slice (j, zero, n, one)
        q = Sqrt (y)
    """
    feed = {"x": np.abs(normal(1, 1, 6, 8))}
    weights = {"flat": ints(1, -1), "one": ints(1), "zero": ints(0)}
    return text_model(text, feed, ["q"], weights, symbolic=True), feed


@case
def sizes_beside_dimensions() -> Case:
    """What is known of a vector stays known: the batch is the input's, channels are a number."""
    text = """
        sx = Shape (x)
        n = Gather (sx, zero)
        k1 = Reshape (k, one)
        shape = Concat <axis=0> (n, three, k1)
        ones = ConstantOfShape <value=float[1] v {1}> (shape)
        c = Conv (ones, w)
        y = Add (c, x)
    """
    feed = {"x": normal(2, 5, 4), "k": ints(6)}
    weights = {"zero": ints(0), "one": ints(1), "three": ints(3), "w": normal(5, 3, 3, seed=1)}
    return text_model(text, feed, ["y"], weights, symbolic=True), feed


@case
def repeated_by_durations() -> Case:
    """What exporters make of repeat_interleave: parts of extent 1, each expanded by a number."""
    text = """
        s = Shape (d)
        ones = ConstantOfShape <value=int64[1] v {1}> (s)
        ds = SplitToSequence <axis=0> (d, ones)
        xs = SplitToSequence <axis=0> (x, ones)
        none = SequenceEmpty <dtype=1> ()
        all = Loop (s, go, none) <body=b (int64 i, bool c, seq(float[m, 3]) acc)
            => (bool c2, seq(float[l, 3]) acc2) {
            di = SequenceAt (ds, i)
            xi = SequenceAt (xs, i)
            x1 = Unsqueeze (xi, one)
            shape = Concat <axis=0> (one, di, three)
            e = Expand (x1, shape)
            part = Reshape (e, rows)
            acc2 = SequenceInsert (acc, part)
            c2 = Identity (c)
        }>
        y = ConcatFromSequence <axis=0> (all)
        m = ReduceMean <axes=[1], keepdims=0> (y)
    """
    feed = {"x": normal(4, 3), "d": ints(2, 0, 1, 3)}
    weights = {"go": np.array(True), "one": ints(1), "three": ints(3), "rows": ints(-1, 3)}
    return text_model(text, feed, ["y", "m"], weights, symbolic=True), feed


def same(actual: object, wanted: list[Array]) -> None:
    many = list(actual) if isinstance(actual, (tuple, list)) else [actual]
    for result, reference in zip(many, wanted, strict=True):
        array = result if isinstance(result, np.ndarray) else result.numpy()  # type: ignore[attr-defined]
        assert (array.dtype, array.shape) == (reference.dtype, reference.shape)
        np.testing.assert_allclose(array, reference, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@alike(4)
@pytest.mark.parametrize("name", CASES)
def test_data_dependent_sizes_propagate(name: str) -> None:
    model, feed = CASES[name]()
    expected_value = expected(model, feed, False)
    same(Interpreter(from_onnx(model)).evaluate("main", *feed.values()), expected_value)
    same(ekiden.compile(model)(**feed), expected_value)


NOTHING: dict[str, Feed] = {
    "nonzero_gathernd_topk": {"m": np.zeros((5, 7), np.bool_)},
    "boxes_of_nms": {"s": np.zeros((1, 1, 20), F)},
    "nms_in_loop": {"ss": np.zeros((2, 10), F)},
    "roialign_data": {"m": np.zeros(6, F)},
    "gathernd_data_last": {"x": np.zeros((4, 3), F)},
    "if_of_data_size": {"x": np.zeros(6, F)},
    "matmul_two_data": {"c": np.zeros(5, np.bool_)},
    "reshape_by_data": {"x": np.zeros(6, F)},
    "gather_elements_data": {"c": np.zeros(5, np.bool_)},
    "topk_k_data": {"m": ints(0, 0, 0, 0)},
}


@pytest.mark.slow
@alike(4)
@pytest.mark.parametrize("name", NOTHING)
def test_data_dependent_sizes_may_be_zero(name: str) -> None:
    """No box is left, no element is there: what follows computes on nothing."""
    model, feed = CASES[name]()
    feed = {**feed, **NOTHING[name]}
    expected_value = expected(model, feed, False)
    same(Interpreter(from_onnx(model)).evaluate("main", *feed.values()), expected_value)
    same(ekiden.compile(model)(**feed), expected_value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wrong", "text"),
    [
        ("split_by_data", {"sp": ints(3, 5)}, "Split 'Split_a'"),
        ("split_by_data", {"sp": ints(8, -1)}, "Split 'Split_a'"),
        ("topk_k_data", {"m": ints(9, 9, 9, 9)}, "TopK 'TopK_v'"),
        ("reshape_data_channels", {"k": ints(3)}, "Reshape 'Reshape_r'"),
        ("expand_by_data", {"sh": ints(3, 3)}, "Expand 'Expand_e'"),
        ("onehot_depth_data", {"d": np.array(-4)}, "OneHot 'OneHot_o'"),
        ("resize_sizes_data", {"sz": ints(1, 3, 9, 11)}, "Resize 'Resize_y'"),
    ],
)
def test_invalid_data_dependent_size_names_its_node(name: str, wrong: Feed, text: str) -> None:
    model, feed = CASES[name]()
    with pytest.raises(RunError, match=text):
        ekiden.compile(model)(**{**feed, **wrong})


@pytest.mark.slow
def test_slice_accepts_scalar_bounds() -> None:
    """As PyTorch writes bounds that it has gathered; ONNX Runtime takes vectors alone."""
    feed = {"x": normal(7, 3), "k": ints(1, 5)}
    text = """
        b = Gather (k, s0)
        e = Gather (k, s1)
        y = Slice (x, b, e, z)
    """
    places = {"s0": np.array(0), "s1": np.array(1), "z": ints(0)}
    model = text_model(text, feed, ["y"], places)
    result = np.asarray(ekiden.compile(model)(*feed.values()))
    np.testing.assert_array_equal(result, feed["x"][1:5])


def test_dimension_facts_of_a_node_are_learned_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Beginning anew imports the whole model: not once for each of the tensors that are joined."""
    names = "abcd"
    inputs = [onnx.helper.make_tensor_value_info(n, 1, [n, 2]) for n in names]
    joined = onnx.helper.make_node("Concat", [*names], ["y"], axis=1)
    result = onnx.helper.make_tensor_value_info("y", 1, None)
    model = onnx.helper.make_model(onnx.helper.make_graph([joined], "g", inputs, [result]))
    begun: list[object] = []
    walk = GraphImporter.import_nodes
    monkeypatch.setattr(
        GraphImporter, "import_nodes", lambda self: (begun.append(self), walk(self))[1]
    )
    module = from_onnx(model)
    assert len(begun) == 2
    assert len({p.checked_type.shape[0] for p in module["main"].params}) == 1  # type: ignore[attr-defined]


def test_cyclic_dimension_equalities_are_resolved() -> None:
    facts = DimFacts()
    for pairs in ([("a", "b"), ("b", "c"), ("c", "a")], [("b", "d")]):
        with pytest.raises(RestartImport):
            facts.union_dims(pairs)
        facts.union_dims(pairs)  # which is no news
    assert len({facts.representative(n) for n in "abcd"}) == 1
