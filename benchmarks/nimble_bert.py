"""BERT-base with the same seeded weights in each engine; a case is the length of the sequence."""

from __future__ import annotations

import numpy as np
from bert import HEADS, INNER, LAYERS, POSITIONS, WIDTH, WORDS, bert
from nimble_engines import Array, Foreign, OnnxGraph, Run, torch_for

import ekiden

EACH = WIDTH // HEADS


class _Weights:
    """Seeded BERT weights in the order of bert.py."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Array:
        return self.rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02)


def feeds(length: int) -> tuple[Array, Array, Array]:
    """Return token ids, segment ids and mask of one sequence."""
    words = np.random.default_rng(length).integers(0, WORDS, (1, length))
    return words, np.zeros_like(words), np.ones((1, length), np.float32)


def run_ekiden(threads: int) -> Run:
    """Return Ekiden's run: one artifact for all lengths."""
    exe = ekiden.compile(bert(batch=1))
    return lambda length: list(exe(*feeds(length)))


def run_torch(threads: int) -> Run:
    """Return a run of torch.nn modules with fused attention."""
    return _torch(threads, False)


def run_torch_compile(threads: int) -> Run:
    """Return a run through torch.compile with dynamic lengths."""
    return _torch(threads, True)


def _torch(threads: int, compiled: bool) -> Run:
    torch = torch_for(threads)
    model = _torch_model(torch)
    call = torch.compile(model, dynamic=True) if compiled else model

    def run(length: int) -> list[Array]:
        return [t.numpy() for t in call(*map(torch.from_numpy, feeds(length)))]

    return run


def _torch_model(torch: Foreign) -> Foreign:
    """Return the PyTorch model."""
    nn, weights = torch.nn, _Weights()

    def parameter(*shape: int) -> Foreign:
        return nn.Parameter(torch.from_numpy(weights(*shape)))

    def linear(width: int, out: int) -> Foreign:
        """Return a linear layer."""
        layer = nn.Linear(width, out)
        layer.weight, layer.bias = parameter(out, width), parameter(out)
        return layer

    def norm() -> Foreign:
        """Return a layer norm."""
        layer = nn.LayerNorm(WIDTH, 1e-12)
        layer.weight, layer.bias = parameter(WIDTH), parameter(WIDTH)
        return layer

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (linear(WIDTH, WIDTH) for _ in range(4))
            self.norm1 = norm()
            self.up, self.down = linear(WIDTH, INNER), linear(INNER, WIDTH)
            self.norm2 = norm()

        def forward(self, x: Foreign, mask: Foreign) -> Foreign:
            def heads(y: Foreign) -> Foreign:
                return y.view(*x.shape[:2], HEADS, EACH).transpose(1, 2)

            mixed = nn.functional.scaled_dot_product_attention(
                heads(self.query(x)), heads(self.key(x)), heads(self.value(x)), attn_mask=mask
            )
            x = self.norm1(x + self.out(mixed.transpose(1, 2).reshape(x.shape)))
            return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.places, self.words, self.kinds = (
                parameter(n, WIDTH) for n in (POSITIONS, WORDS, 2)
            )
            self.norm = norm()
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.pool = linear(WIDTH, WIDTH)

        def forward(self, words: Foreign, kinds: Foreign, mask: Foreign) -> Foreign:
            """Return the hidden states and the pooled first token."""
            take = nn.functional.embedding
            positions = self.places[: words.shape[1]]
            x = self.norm(take(words, self.words) + take(kinds, self.kinds) + positions)
            bias = ((1.0 - mask) * -1e4)[:, None, None, :]
            for layer in self.layers:
                x = layer(x, bias)
            return x, torch.tanh(self.pool(x[:, 0]))

    return Bert().eval()


def run_onnxruntime(threads: int) -> Run:
    """Return a run of operators as exporters write them; ONNX Runtime fuses what it knows."""
    graph = _Onnx()
    hidden, pooled = graph.bert()
    kinds = {"words": (7, [1, "s"]), "kinds": (7, [1, "s"]), "mask": (1, [1, "s"])}
    session = graph.session(threads, kinds, hidden, pooled)
    return lambda length: list(session.run(None, dict(zip(kinds, feeds(length), strict=True))))


class _Onnx(OnnxGraph):
    def __init__(self) -> None:
        super().__init__()
        self.draw = _Weights()

    def scalar(self, value: float) -> str:
        return self.constant(np.float32(value))

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def linear(self, x: str, width: int, out: int) -> str:
        weight = self.constant(self.draw(out, width).T)
        return self.node("Add", self.node("MatMul", x, weight), self.constant(self.draw(out)))

    def norm(self, x: str) -> str:
        scale, bias = (self.constant(self.draw(WIDTH)) for _ in range(2))
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=1e-12)

    def heads(self, x: str, *order: int) -> str:
        return self.node(
            "Transpose", self.node("Reshape", x, self.ints(1, -1, HEADS, EACH)), perm=order
        )

    def attention(self, x: str, mask: str) -> str:
        query = self.heads(self.linear(x, WIDTH, WIDTH), 0, 2, 1, 3)
        key = self.heads(self.linear(x, WIDTH, WIDTH), 0, 2, 3, 1)
        value = self.heads(self.linear(x, WIDTH, WIDTH), 0, 2, 1, 3)
        scores = self.node("Div", self.node("MatMul", query, key), self.scalar(EACH**0.5))
        shares = self.node("Softmax", self.node("Add", scores, mask), axis=-1)
        mixed = self.node("Transpose", self.node("MatMul", shares, value), perm=(0, 2, 1, 3))
        return self.linear(self.node("Reshape", mixed, self.ints(1, -1, WIDTH)), WIDTH, WIDTH)

    def gelu(self, x: str) -> str:
        error = self.node("Erf", self.node("Div", x, self.scalar(2**0.5)))
        product = self.node("Mul", x, self.node("Add", error, self.scalar(1.0)))
        return self.node("Mul", product, self.scalar(0.5))

    def layer(self, x: str, mask: str) -> str:
        x = self.norm(self.node("Add", x, self.attention(x, mask)))
        inner = self.gelu(self.linear(x, WIDTH, INNER))
        return self.norm(self.node("Add", x, self.linear(inner, INNER, WIDTH)))

    def bert(self) -> tuple[str, str]:
        """Build the network, and return the names of its outputs."""
        tables = [self.constant(self.draw(n, WIDTH)) for n in (POSITIONS, WORDS, 2)]
        length = self.node("Gather", self.node("Shape", "words"), self.ints(1))
        positions = self.node("Slice", tables[0], self.ints(0), length)
        words, kinds = (
            self.node("Gather", table, name)
            for table, name in zip(tables[1:], ("words", "kinds"), strict=True)
        )
        x = self.norm(self.node("Add", self.node("Add", words, kinds), positions))
        hidden = self.node("Mul", self.node("Sub", self.scalar(1.0), "mask"), self.scalar(-1e4))
        mask = self.node("Unsqueeze", hidden, self.ints(1, 2))
        for _ in range(LAYERS):
            x = self.layer(x, mask)
        first = self.node("Gather", x, self.constant(np.int64(0)), axis=1)
        return x, self.node("Tanh", self.linear(first, WIDTH, WIDTH))


ENGINES = {
    "ekiden": run_ekiden,
    "torch": run_torch,
    "torch.compile": run_torch_compile,
    "onnxruntime": run_onnxruntime,
}
"""Each engine's workload, ours first."""
