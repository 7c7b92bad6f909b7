"""Programs of the replay that are models of ONNX, in its text. Inputs that begin with `w_` are
initializers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from onnx import ModelProto, TensorProto, helper, numpy_helper, parser
from recorder import TARGETS, import_model
from replay_programs import WEIGHT_PREFIX, Program, weights

from ekiden.ir.module import IRModule

HEADER = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3, "com.microsoft" : 1]>'
MODELS: Mapping[str, str] = {
    "lstm": """
        g (float[t, b, 16] x, float[1, 64, 16] w_w, float[1, 64, 16] w_r, float[1, 128] w_b)
          => (float[t, 1, b, 16] y, float[1, b, 16] h) {
          y, h = LSTM <hidden_size = 16> (x, w_w, w_r, w_b) }""",
    "gru_backwards": """
        g (float[t, 2, 8] x, float[1, 24, 8] w_w, float[1, 24, 8] w_r)
          => (float[t, 1, 2, 8] y) {
          y = GRU <hidden_size = 8, direction = "reverse"> (x, w_w, w_r) }""",
    "qlinear_conv": """
        g (uint8[1, 16, 10, 10] x, float w_s, uint8 w_z, int8[24, 16, 3, 3] w_k, float[24] w_t,
           int8[24] w_y, float w_o, uint8 w_p) => (uint8[1, 24, 10, 10] y) {
          y = QLinearConv <pads = [1, 1, 1, 1]> (x, w_s, w_z, w_k, w_t, w_y, w_o, w_p) }""",
    "dynamic_quantised": """
        g (float[n, 64] x, int8[64, 48] w_k, float w_s) => (float[n, 48] y) {
          q, s, z = DynamicQuantizeLinear (x)
          p = MatMulInteger (q, w_k, z)
          f = Cast <to = 1> (p)
          a = Mul (s, w_s)
          y = Mul (f, a) }""",
    "int4_weights": """
        g (float[n, 64] x, uint8[48, 2, 16] w_k, float[96] w_s) => (float[n, 48] y) {
          y = com.microsoft.MatMulNBits <K = 64, N = 48, bits = 4, block_size = 32>
            (x, w_k, w_s) }""",
    "transformer_block": """
        g (float[2, s, 32] x, float[32, 96] w_qkv, float[32, 32] w_out, float[32] w_g,
           float[32] w_b, float[32, 64] w_up, float[64, 32] w_down)
          => (float[2, s, 32] y) {
          shape = Constant <value_ints = [0, 0, 3, 4, 8]> ()
          flat = Constant <value_ints = [0, 0, 32]> ()
          scale = Constant <value_float = 0.35355339> ()
          n = LayerNormalization <axis = -1> (x, w_g, w_b)
          p = MatMul (n, w_qkv)
          r = Reshape (p, shape)
          t = Transpose <perm = [2, 0, 3, 1, 4]> (r)
          i0 = Constant <value_int = 0> ()
          i1 = Constant <value_int = 1> ()
          i2 = Constant <value_int = 2> ()
          q = Gather <axis = 0> (t, i0)
          k = Gather <axis = 0> (t, i1)
          v = Gather <axis = 0> (t, i2)
          kt = Transpose <perm = [0, 1, 3, 2]> (k)
          qk = MatMul (q, kt)
          sc = Mul (qk, scale)
          a = Softmax <axis = -1> (sc)
          o = MatMul (a, v)
          ot = Transpose <perm = [0, 2, 1, 3]> (o)
          of = Reshape (ot, flat)
          op = MatMul (of, w_out)
          x1 = Add (x, op)
          u = MatMul (x1, w_up)
          e = Gelu (u)
          d = MatMul (e, w_down)
          y = Add (x1, d) }""",
    "loop": """
        g (int64 m, float[n] x) => (float[n] y, float[k, n] rows) {
          t = Constant <value = bool {1}> ()
          y, rows = Loop (m, t, x) <body = b (int64 i, bool c, float[n] h)
            => (bool d, float[n] o, float[n] r) {
              d = Identity (c)
              o = Tanh (h)
              r = Neg (o) }> }""",
    "scan": """
        g (float[3] x, float[t, 3] xs) => (float[3] y, float[t, 3] ys) {
          y, ys = Scan <num_scan_inputs = 1, body = b (float[3] s, float[3] e)
            => (float[3] o, float[3] r) {
              o = Add (s, e)
              r = Exp (o) }> (x, xs) }""",
    "if_nonzero": """
        g (bool c, float[n, 4] x) => (int64[2, k] y) {
          z = If (c) <then_branch = a () => (float[n, 4] p) { p = Relu (x) },
                      else_branch = b () => (float[n, 4] q) { q = Neg (x) }>
          y = NonZero (z) }""",
    "sequence": """
        g (float[n, 4] x, int64 i) => (float[m, 4] y, float[2, 4] z) {
          a = Relu (x)
          s = SequenceConstruct (x, a)
          y = ConcatFromSequence <axis = 0> (s)
          p = SplitToSequence <axis = 0, keepdims = 1> (x)
          l = SequenceAt (p, i)
          z = Concat <axis = 0> (l, l) }""",
    "fourier": """
        g (float[1, 16, 1] x) => (float[1, 9, 2] y) {
          y = DFT <onesided = 1, axis = 1> (x) }""",
    "signal_window": """
        g (int64 n, float[1, 1, 5, 5] x, float[1, 4, 4, 2] p)
          => (float[k] y, float[1, 1, 4, 4] z) {
          y = HannWindow (n)
          z = GridSample <mode = "bilinear", padding_mode = "border"> (x, p) }""",
    "random": """
        g (float[n, 8] x) => (float[4, 4] y, int64[n, 3] z) {
          y = RandomNormal <shape = [4, 4], seed = 3.0> ()
          l = Softmax <axis = -1> (x)
          z = Multinomial <sample_size = 3, seed = 5.0, dtype = 7> (l) }""",
    "texts": """
        g (string[n] x) => (string[m] y, int64[n, 3] z) {
          y = StringNormalizer <case_change_action = "LOWER", stopwords = ["the", "a"]> (x)
          z = ai.onnx.ml.LabelEncoder <keys_strings = ["a", "b"], values_int64s = [1, 2],
                                       default_int64 = 0> (x) }""",
}
"""Name -> text."""


def onnx_model(name: str) -> ModelProto:
    """Parse a model of MODELS, with initializers for its weights."""
    model = parser.parse_model(HEADER + MODELS[name])
    graph = model.graph
    inputs = list(graph.input)
    del graph.input[:]
    for value in inputs:
        if not value.name.startswith(WEIGHT_PREFIX):
            graph.input.append(value)
            continue
        kind = value.type.tensor_type
        shape = tuple(d.dim_value for d in kind.shape.dim)
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        array = weights(value.name, shape, str(dtype))
        graph.initializer.append(numpy_helper.from_array(array, value.name))
    return model


def onnx_module(name: str) -> IRModule:
    """Import a model of MODELS."""
    return import_model(onnx_model(name))


def forest(trees: int = 4, depth: int = 3, features: int = 6) -> ModelProto:
    """Return a classifier of complete binary trees, whose leaves vote for one of three classes."""
    nodes = (1 << (depth + 1)) - 1
    inner = (1 << depth) - 1
    rows = [(t, n) for t in range(trees) for n in range(nodes)]
    branches = [n < inner for _, n in rows]
    leaves = [(t, n) for t, n in rows if n >= inner]
    left = [2 * n + 1 if n < inner else 0 for _, n in rows]
    node = helper.make_node(
        "TreeEnsembleClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
        nodes_treeids=[t for t, _ in rows], nodes_nodeids=[n for _, n in rows],
        nodes_featureids=[(t + n) % features for t, n in rows],
        nodes_values=[float((3 * t + 5 * n) % 7) / 7 for t, n in rows],
        nodes_modes=["BRANCH_LEQ" if b else "LEAF" for b in branches],
        nodes_truenodeids=left, nodes_falsenodeids=[n + 1 if n else 0 for n in left],
        class_treeids=[t for t, _ in leaves], class_nodeids=[n for _, n in leaves],
        class_ids=[(t + n) % 3 for t, n in leaves], class_weights=[0.25] * len(leaves),
        classlabels_int64s=[0, 1, 2], post_transform="SOFTMAX",
    )  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", features])
    label = helper.make_tensor_value_info("label", TensorProto.INT64, ["n"])
    scores = helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n", 3])
    graph = helper.make_graph([node], "forest", [x], [label, scores])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


QUICK = ("fourier",)
"""Those of the quick group."""
FEWER: Mapping[str, Sequence[str]] = {
    "random": ("haswell", "opencl"),
    "transformer_block": ("vnni", "haswell", "neon", "cuda"),
}
"""Targets of programs that take long, and have the same loops on most."""
PROGRAMS: Mapping[str, Program] = {
    **{
        name: Program(
            partial(onnx_module, name),
            is_quick=name in QUICK,
            targets=FEWER.get(name, tuple(TARGETS)),
        )
        for name in MODELS
    },
    "forest": Program(lambda: import_model(forest())),
}
