# ruff: noqa: ANN401 - attributes as helper.make_node
"""Tiny decoders like those of GPT-2 and T5, with random weights, for text searches in ONNX."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

VOCABULARY, HEADS, WIDTH, LAYERS, FEATURES = 24, 2, 4, 2, 3
HIDDEN = HEADS * WIDTH
PAD, END, START = 0, 1, 2
INT, FLOAT = TensorProto.INT32, TensorProto.FLOAT
Array = np.ndarray[Any, Any]


class Builder:
    """The nodes, weights, inputs and outputs of a graph that is being made."""

    def __init__(self, name: str, seed: int) -> None:
        self.name, self.rng = name, np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def __call__(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """Add a node; return the names of its outputs."""
        names = [self._new() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op_type, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def _new(self) -> str:
        self._count += 1
        return f"{self.name}_{self._count}"

    def constant(self, array: Any) -> str:
        name = self._new()
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        drawn = self.rng.normal(size=shape) * scale
        return self.constant(drawn.astype(np.float32))

    def input(self, name: str, kind: int, *shape: Any) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(self, value: str, name: str, *shape: Any) -> None:
        self.nodes.append(helper.make_node("Identity", [value], [name]))
        self.outputs.append(helper.make_tensor_value_info(name, FLOAT, shape))

    def graph(self) -> onnx.GraphProto:
        return helper.make_graph(self.nodes, self.name, self.inputs, self.outputs, self.weights)

    # Layers.

    def heads(self, x: str) -> str:
        """[n, s, hidden] -> [n, heads, s, width]."""
        split = self("Reshape", x, self.ints(0, 0, HEADS, WIDTH))
        return str(self("Transpose", split, perm=[0, 2, 1, 3]))

    def joined(self, x: str) -> str:
        """[n, heads, s, width] -> [n, s, hidden]."""
        turned = self("Transpose", x, perm=[0, 2, 1, 3])
        return str(self("Reshape", turned, self.ints(0, 0, HIDDEN)))

    def product(self, x: str, columns: int, rows: int = HIDDEN) -> str:
        return str(self("MatMul", x, self.weight(rows, columns, scale=1.5 / rows**0.5)))

    def attention(self, q: str, k: str, v: str, bias: str) -> str:
        """Softmax(q k^T + bias) v, of heads."""
        scores = self("MatMul", q, self("Transpose", k, perm=[0, 1, 3, 2]))
        return self.joined(self("MatMul", self("Softmax", self("Add", scores, bias), axis=-1), v))

    def mask_bias(self, mask: str) -> str:
        """[n, length] of 1 and 0 -> [n, 1, 1, length] of 0 and -1e4."""
        less = self("Sub", self.constant(np.float32(1)), self("Cast", mask, to=FLOAT))
        bias = self("Mul", less, self.constant(np.float32(-1e4)))
        return str(self("Unsqueeze", bias, self.ints(1, 2)))

    def causal_bias(self, ids: str, total: str) -> str:
        """[s, total] of 0 and -1e4, of the last s of so many tokens."""
        zero, one = self.constant(np.int64(0)), self.constant(np.int64(1))
        length = self("Gather", self("Shape", ids), one)
        keys = self("Range", zero, total, one)
        queries = self("Range", self("Sub", total, length), total, one)
        later = self("Greater", self("Unsqueeze", keys, self.ints(0)),
                     self("Unsqueeze", queries, self.ints(1)))  # fmt: skip
        return str(self("Mul", self("Cast", later, to=FLOAT), self.constant(np.float32(-1e4))))

    def feed_forward(self, x: str) -> str:
        inner = self("Tanh", self.product(x, 2 * HIDDEN))
        return str(self("Add", x, self.product(inner, HIDDEN, 2 * HIDDEN)))


def gpt_decoder(seed: int = 0, name: str = "gpt") -> onnx.GraphProto:
    """A decoder of tokens, positions, a mask and the past of each layer."""
    b = Builder(name, seed)
    ids, positions = (b.input(n, INT, "n", "s") for n in ("input_ids", "position_ids"))
    mask = b.input("attention_mask", INT, "n", "t")
    pasts = [b.input(f"past_{i}", FLOAT, 2, "n", HEADS, "p", WIDTH) for i in range(LAYERS)]
    table = b.weight(VOCABULARY, HIDDEN)
    x = b("Add", b("Gather", table, ids), b("Gather", b.weight(40, HIDDEN), positions))
    total = b("Gather", b("Shape", mask), b.constant(np.int64(1)))
    bias = b("Add", b.mask_bias(mask), b.causal_bias(ids, total))
    presents = []
    for past in pasts:
        q, *both = (b.heads(b.product(x, HIDDEN)) for _ in range(3))
        before = [b("Gather", past, b.constant(np.int64(i))) for i in range(2)]
        k, v = (b("Concat", p, n, axis=2) for p, n in zip(before, both, strict=True))
        parts = [b("Unsqueeze", t, b.ints(0)) for t in (k, v)]
        presents.append(b("Concat", *parts, axis=0))
        x = b("Add", x, b.product(b.attention(q, k, v, bias), HIDDEN))
        x = b.feed_forward(x)
    b.output(b.product(x, VOCABULARY), "logits", "n", "s", VOCABULARY)
    for i, present in enumerate(presents):
        b.output(present, f"present_{i}", 2, "n", HEADS, "t", WIDTH)
    return b.graph()


def t5_graphs(seed: int = 0) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """An encoder, which begins with the first token of the decoder, and that decoder."""
    return _t5_encoder(seed), _t5_decoder(seed)


def _decoder_layers(
    b: Builder, x: str, past: Sequence[str], cross: Sequence[str], mask: str, seed: int,
    own_bias: str = "", vocabulary: int = VOCABULARY,
) -> tuple[str, list[str]]:  # fmt: skip
    """The layers of the decoder, whose weights are those of the seed wherever they stand. A mask ""
    hides nothing of the encoder; `own_bias` is added to the scores of the decoder's own tokens."""
    b.rng = np.random.default_rng(seed + 1)
    own: list[str] = []
    zero = b.constant(np.zeros((1, 1, 1, 1), np.float32))
    none, bias = own_bias or zero, b.mask_bias(mask) if mask else zero
    for layer in range(LAYERS):
        q, k, v = (b.heads(b.product(x, HIDDEN)) for _ in range(3))
        if past:
            k, v = (
                b("Concat", past[2 * layer + i], t, axis=2) for i, t in enumerate((k, v))
            )  # fmt: skip
        own += [k, v]
        x = b("Add", x, b.product(b.attention(q, k, v, none), HIDDEN))
        query = b.heads(b.product(x, HIDDEN))
        x = b(
            "Add", x, b.product(b.attention(query, *cross[2 * layer : 2 * layer + 2], bias), HIDDEN)
        )
        x = b.feed_forward(x)
    return b.product(x, vocabulary), own


def _table(b: Builder, seed: int, vocabulary: int = VOCABULARY) -> str:
    b.rng = np.random.default_rng(seed)
    return b.weight(vocabulary, HIDDEN)


def _t5_encoder(seed: int) -> onnx.GraphProto:
    b = Builder("encoder", seed)
    ids = b.input("encoder_input_ids", INT, "n", "e")
    mask = b.input("encoder_attention_mask", INT, "n", "e")
    start = b.input("decoder_input_ids", INT, "n", 1)
    table = _table(b, seed)
    x = b("Gather", table, ids)
    q, k, v = (b.heads(b.product(x, HIDDEN)) for _ in range(3))
    x = b("Add", x, b.product(b.attention(q, k, v, b.mask_bias(mask)), HIDDEN))
    hidden = b.feed_forward(x)
    cross = [b.heads(b.product(hidden, HIDDEN)) for _ in range(2 * LAYERS)]
    logits, own = _decoder_layers(b, b("Gather", table, start), (), cross, mask, seed)
    b.output(logits, "logits", "n", 1, VOCABULARY)
    b.output(hidden, "encoder_hidden_states", "n", "e", HIDDEN)
    for kind, tensors, extent in (("self", own, 1), ("cross", cross, "e")):
        for i, tensor in enumerate(tensors):
            part = ("key", "value")[i % 2]
            b.output(tensor, f"present_{part}_{kind}_{i // 2}", "n", HEADS, extent, WIDTH)
    return b.graph()


def _t5_decoder(seed: int) -> onnx.GraphProto:
    b = Builder("decoder", seed)
    ids = b.input("input_ids", INT, "n", 1)
    mask = b.input("encoder_attention_mask", INT, "n", "e")
    names = [f"{part}_{{}}_{i}" for i in range(LAYERS) for part in ("key", "value")]
    past = [b.input(f"past_{n.format('self')}", FLOAT, "n", HEADS, "p", WIDTH) for n in names]
    cross = [b.input(f"past_{n.format('cross')}", FLOAT, "n", HEADS, "e", WIDTH) for n in names]
    x = b("Gather", _table(b, seed), ids)
    logits, own = _decoder_layers(b, x, past, cross, mask, seed)
    b.output(logits, "logits", "n", 1, VOCABULARY)
    for name, tensor in zip(names, own, strict=True):
        b.output(tensor, f"present_{name.format('self')}", "n", HEADS, "t", WIDTH)
    return b.graph()


def whisper_graphs(
    seed: int = 0, vocabulary: int = VOCABULARY, takes_hidden: bool = True
) -> tuple[onnx.GraphProto, onnx.GraphProto]:
    """An encoder of features, which begins with the prompt of the decoder, and that decoder."""
    b = Builder("whisper_encoder", seed)
    features = b.input("encoder_input_ids", FLOAT, "n", FEATURES, "e")
    prompt = b.input("decoder_input_ids", INT, "n", "s")
    table = _table(b, seed, vocabulary)
    x = b.product(b("Transpose", features, perm=[0, 2, 1]), HIDDEN, FEATURES)
    hidden = b.feed_forward(x)
    cross = [b.heads(b.product(hidden, HIDDEN)) for _ in range(2 * LAYERS)]
    length = b("Gather", b("Shape", prompt), b.constant(np.int64(1)))
    later = b.causal_bias(prompt, length)
    first = b("Gather", table, prompt)
    logits, own = _decoder_layers(b, first, (), cross, "", seed, later, vocabulary)
    b.output(logits, "logits", "n", "s", vocabulary)
    b.output(hidden, "encoder_hidden_states", "n", "e", HIDDEN)
    for kind, tensors, extent in (("self", own, "s"), ("cross", cross, "e")):
        for i, tensor in enumerate(tensors):
            part = ("key", "value")[i % 2]
            b.output(tensor, f"present_{part}_{kind}_{i // 2}", "n", HEADS, extent, WIDTH)
    return b.graph(), _whisper_decoder(seed, vocabulary, takes_hidden)


def _whisper_decoder(seed: int, vocabulary: int, takes_hidden: bool) -> onnx.GraphProto:
    b = Builder("whisper_decoder", seed)
    ids = b.input("input_ids", INT, "n", 1)
    if takes_hidden:
        b.input("encoder_hidden_states", FLOAT, "n", "e", HIDDEN)
    names = [f"{part}_{{}}_{i}" for i in range(LAYERS) for part in ("key", "value")]
    past = [b.input(f"past_{n.format('self')}", FLOAT, "n", HEADS, "p", WIDTH) for n in names]
    cross = [b.input(f"past_{n.format('cross')}", FLOAT, "n", HEADS, "e", WIDTH) for n in names]
    x = b("Gather", _table(b, seed, vocabulary), ids)
    logits, own = _decoder_layers(b, x, past, cross, "", seed, vocabulary=vocabulary)
    b.output(logits, "logits", "n", 1, vocabulary)
    for name, tensor in zip(names, own, strict=True):
        b.output(tensor, f"present_{name.format('self')}", "n", HEADS, "t", WIDTH)
    return b.graph()


def search_model(
    op_type: str,
    inputs: Sequence[tuple[str, Array | None, bool]],
    outputs: Sequence[str] = ("sequences",),
    **attributes: Any,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of one search, and what to feed it: inputs are (name, value, whether it is fixed)."""
    kinds = {"sequences": INT}
    infos, weights, feed = [], [], {}
    for name, value, is_fixed in inputs:
        if value is not None and is_fixed:
            weights.append(numpy_helper.from_array(value, name))
        elif value is not None:
            dims = [f"{name}_{i}" for i in range(value.ndim)] if value.ndim > 1 else value.shape
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            infos.append(helper.make_tensor_value_info(name, kind, dims))
            feed[name] = value
    names = [n if v is not None else "" for n, v, _ in inputs]
    node = helper.make_node(
        op_type, names, list(outputs), "search", domain="com.microsoft",
        eos_token_id=END, pad_token_id=PAD, **attributes,
    )  # fmt: skip
    results = [helper.make_tensor_value_info(o, kinds.get(o, FLOAT), None) for o in outputs if o]
    graph = helper.make_graph([node], "model", infos, results, weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8), feed
