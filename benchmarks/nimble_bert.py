"""BERT-base with the same seeded weights in each engine; a case is the length of the sequence."""

from __future__ import annotations

import numpy as np
from bert import HEADS, INNER, LAYERS, POSITIONS, WIDTH, WORDS, bert_module
from nimble_engines import Array, ForeignModule, OnnxGraph, Run, import_torch

import ekiden

HEAD_DEPTH = WIDTH // HEADS


class _BertWeights:
    """Seeded BERT weights in the order of bert.py."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)


def bert_inputs(length: int) -> tuple[Array, Array, Array]:
    """Return token ids, segment ids and mask of one sequence."""
    words = np.random.default_rng(length).integers(0, WORDS, (1, length))
    return words, np.zeros_like(words), np.ones((1, length), np.float32)


def run_ekiden(threads: int) -> Run:
    """Return Ekiden's run: one artifact for all lengths."""
    exe = ekiden.compile(bert_module(batch=1))
    return lambda length: list(exe(*bert_inputs(length)))


def run_torch(threads: int) -> Run:
    """Return a run of torch.nn modules with fused attention."""
    return _make_torch_run(threads, False)


def run_torch_compile(threads: int) -> Run:
    """Return a run through torch.compile with dynamic lengths."""
    return _make_torch_run(threads, True)


def _make_torch_run(threads: int, compiled: bool) -> Run:
    torch = import_torch(threads)
    model = _build_torch_model(torch)
    call = torch.compile(model, dynamic=True) if compiled else model

    def run(length: int) -> list[Array]:
        return [t.numpy() for t in call(*map(torch.from_numpy, bert_inputs(length)))]

    return run


def _build_torch_model(torch: ForeignModule) -> ForeignModule:
    """Return the PyTorch model."""
    nn, weights = torch.nn, _BertWeights()

    def next_parameter(*shape: int) -> ForeignModule:
        return nn.Parameter(torch.from_numpy(weights(*shape)))

    def make_linear(width: int, out: int) -> ForeignModule:
        """Return a linear layer."""
        layer = nn.Linear(width, out)
        layer.weight, layer.bias = next_parameter(out, width), next_parameter(out)
        return layer

    def make_layer_norm() -> ForeignModule:
        """Return a layer norm."""
        layer = nn.LayerNorm(WIDTH, 1e-12)
        layer.weight, layer.bias = next_parameter(WIDTH), next_parameter(WIDTH)
        return layer

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (
                make_linear(WIDTH, WIDTH) for _ in range(4)
            )
            self.norm1 = make_layer_norm()
            self.up, self.down = make_linear(WIDTH, INNER), make_linear(INNER, WIDTH)
            self.norm2 = make_layer_norm()

        def forward(self, x: ForeignModule, mask: ForeignModule) -> ForeignModule:
            def heads(y: ForeignModule) -> ForeignModule:
                return y.view(*x.shape[:2], HEADS, HEAD_DEPTH).transpose(1, 2)

            mixed = nn.functional.scaled_dot_product_attention(
                heads(self.query(x)), heads(self.key(x)), heads(self.value(x)), attn_mask=mask
            )
            x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))
            return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.words, self.kinds = (
                next_parameter(n, WIDTH) for n in (POSITIONS, WORDS, 2)
            )
            self.norm = make_layer_norm()
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.pool = make_linear(WIDTH, WIDTH)

        def forward(
            self, words: ForeignModule, kinds: ForeignModule, mask: ForeignModule
        ) -> ForeignModule:
            """Return the hidden states and the pooled first token."""
            take = nn.functional.embedding
            positions = self.places[: words.shape[1]]
            x = self.norm(take(words, self.words) + take(kinds, self.kinds) + positions)
            bias = ((1.0 - mask) * -1e4)[:, None, None, :]
            for layer in self.layers:
                x = layer(x, bias)
            return x, torch.tanh(self.pool(x[:, 0]))

    return Bert().eval()


def make_onnxruntime_run(threads: int) -> Run:
    """Return a run of operators as exporters write them; ONNX Runtime fuses what it knows."""
    graph = _OnnxBertBuilder()
    hidden, pooled = graph.build_bert()
    kinds = {"words": (7, [1, "s"]), "kinds": (7, [1, "s"]), "mask": (1, [1, "s"])}
    session = graph.create_session(threads, kinds, hidden, pooled)
    return lambda length: list(
        session.run(None, dict(zip(kinds, bert_inputs(length), strict=True)))
    )


class _OnnxBertBuilder(OnnxGraph):
    def __init__(self) -> None:
        super().__init__()
        self.draw = _BertWeights()

    def add_scalar(self, value: float) -> str:
        return self.add_initializer(np.float32(value))

    def add_int_vector(self, *values: int) -> str:
        return self.add_initializer(np.array(values, np.int64))

    def add_linear(self, x: str, width: int, out: int) -> str:
        weight = self.add_initializer(self.draw(out, width).T)
        return self.add_node(
            "Add", self.add_node("MatMul", x, weight), self.add_initializer(self.draw(out))
        )

    def add_layer_norm(self, x: str) -> str:
        scale, bias = (self.add_initializer(self.draw(WIDTH)) for _ in range(2))
        return self.add_node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def split_heads(self, x: str, *order: int) -> str:
        return self.add_node(
            "Transpose",
            self.add_node("Reshape", x, self.add_int_vector(1, -1, HEADS, HEAD_DEPTH)),
            perm=order,
        )

    def add_attention(self, x: str, mask: str) -> str:
        query = self.split_heads(self.add_linear(x, WIDTH, WIDTH), 0, 2, 1, 3)
        key = self.split_heads(self.add_linear(x, WIDTH, WIDTH), 0, 2, 3, 1)
        value = self.split_heads(self.add_linear(x, WIDTH, WIDTH), 0, 2, 1, 3)
        scores = self.add_node(
            "Div", self.add_node("MatMul", query, key), self.add_scalar(HEAD_DEPTH**0.5)
        )
        shares = self.add_node("Softmax", self.add_node("Add", scores, mask), axis=-1)
        mixed = self.add_node(
            "Transpose", self.add_node("MatMul", shares, value), perm=(0, 2, 1, 3)
        )
        return self.add_linear(
            self.add_node("Reshape", mixed, self.add_int_vector(1, -1, WIDTH)), WIDTH, WIDTH
        )

    def gelu(self, x: str) -> str:
        error = self.add_node("Erf", self.add_node("Div", x, self.add_scalar(2**0.5)))
        product = self.add_node("Mul", x, self.add_node("Add", error, self.add_scalar(1.0)))
        return self.add_node("Mul", product, self.add_scalar(0.5))

    def add_encoder_layer(self, x: str, mask: str) -> str:
        x = self.add_layer_norm(self.add_node("Add", x, self.add_attention(x, mask)))
        inner = self.gelu(self.add_linear(x, WIDTH, INNER))
        return self.add_layer_norm(self.add_node("Add", x, self.add_linear(inner, INNER, WIDTH)))

    def build_bert(self) -> tuple[str, str]:
        """Build the network, and return the names of its outputs."""
        tables = [self.add_initializer(self.draw(n, WIDTH)) for n in (POSITIONS, WORDS, 2)]
        length = self.add_node("Gather", self.add_node("Shape", "words"), self.add_int_vector(1))
        positions = self.add_node("Slice", tables[0], self.add_int_vector(0), length)
        words, kinds = (
            self.add_node("Gather", table, name)
            for table, name in zip(tables[1:], ("words", "kinds"), strict=True)
        )
        x = self.add_layer_norm(self.add_node("Add", self.add_node("Add", words, kinds), positions))
        hidden = self.add_node(
            "Mul", self.add_node("Sub", self.add_scalar(1.0), "mask"), self.add_scalar(-1e4)
        )
        mask = self.add_node("Unsqueeze", hidden, self.add_int_vector(1, 2))
        for _ in range(LAYERS):
            x = self.add_encoder_layer(x, mask)
        first = self.add_node("Gather", x, self.add_initializer(np.int64(0)), axis=1)
        return x, self.add_node("Tanh", self.add_linear(first, WIDTH, WIDTH))


BERT_ENGINES = {
    "ekiden": run_ekiden,
    "torch": run_torch,
    "torch.compile": run_torch_compile,
    "onnxruntime": make_onnxruntime_run,
}
"""Each engine's workload, ours first."""
