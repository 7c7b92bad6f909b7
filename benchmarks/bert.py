"""BERT-base as a Relay program built from operators, with seeded random weights."""

from __future__ import annotations

import math

import numpy as np

from ekiden import relay
from ekiden.relay import op

WIDTH, HEADS, LAYERS, INNER, WORDS, POSITIONS = 768, 12, 12, 3072, 30522, 512


class _BertBuilder:
    """Builder of BERT layers over tensors of shape (batch, sequence, WIDTH)."""

    def __init__(self, batch: relay.SizeVar | int, sequence: relay.SizeVar | int) -> None:
        self.rng = np.random.default_rng(0)
        self.batch = batch
        self.sequence = sequence

    def weight(self, *shape: int) -> relay.Constant:
        return relay.const(self.rng.standard_normal(shape, dtype=np.float32) * np.float32(0.02))

    def emit_linear(self, x: relay.Expr, width: int, out: int) -> relay.Expr:
        return op.add(op.nn.dense(x, self.weight(out, width)), self.weight(out))

    def emit_layer_norm(self, x: relay.Expr) -> relay.Expr:
        return op.nn.layer_norm(x, self.weight(WIDTH), self.weight(WIDTH), epsilon=1e-12)

    def split_heads(self, x: relay.Expr, *axes: int) -> relay.Expr:
        """Split (batch, sequence, WIDTH) into (batch, heads, sequence, depth) matrices."""
        split = op.reshape(x, (self.batch, self.sequence, HEADS, WIDTH // HEADS))
        turned = op.transpose(split, axes)
        rows, columns = (
            (self.sequence, WIDTH // HEADS) if axes[2] == 1 else (WIDTH // HEADS, self.sequence)
        )
        return op.reshape(turned, (-1, rows, columns))

    def emit_attention(self, x: relay.Expr, mask: relay.Expr) -> relay.Expr:
        query = self.split_heads(self.emit_linear(x, WIDTH, WIDTH), 0, 2, 1, 3)
        key = self.split_heads(self.emit_linear(x, WIDTH, WIDTH), 0, 2, 1, 3)
        value = self.split_heads(self.emit_linear(x, WIDTH, WIDTH), 0, 2, 3, 1)
        scores = op.nn.batch_matmul(query, key)
        scaled = op.divide(scores, relay.const(math.sqrt(WIDTH // HEADS)))
        square = op.reshape(scaled, (self.batch, HEADS, self.sequence, self.sequence))
        weights = op.nn.softmax(op.add(square, mask))
        mixed = op.nn.batch_matmul(op.reshape(weights, (-1, self.sequence, self.sequence)), value)
        split = op.reshape(mixed, (self.batch, HEADS, self.sequence, WIDTH // HEADS))
        joined = op.reshape(op.transpose(split, (0, 2, 1, 3)), (self.batch, self.sequence, WIDTH))
        return self.emit_linear(joined, WIDTH, WIDTH)

    def emit_feed_forward(self, x: relay.Expr) -> relay.Expr:
        inner = self.emit_linear(x, WIDTH, INNER)
        error = op.erf(op.divide(inner, relay.const(math.sqrt(2.0))))
        gelu = op.multiply(op.multiply(inner, op.add(error, relay.const(1.0))), relay.const(0.5))
        return self.emit_linear(gelu, INNER, WIDTH)

    def emit_encoder_layer(self, x: relay.Expr, mask: relay.Expr) -> relay.Expr:
        attended = self.emit_layer_norm(op.add(x, self.emit_attention(x, mask)))
        return self.emit_layer_norm(op.add(attended, self.emit_feed_forward(attended)))


def bert_module(
    layers: int = LAYERS, batch: int | str = "batch", sequence: int | str = "sequence"
) -> relay.IRModule:
    """Return `main(words, kinds, mask)`, which computes the last hidden state and the pooled first
    token. A dimension given as a name is symbolic.
    """
    sizes = [relay.SizeVar(d, "int64") if isinstance(d, str) else d for d in (batch, sequence)]
    net = _BertBuilder(*sizes)
    words, kinds = (relay.var(n, shape=sizes, dtype="int64") for n in ("words", "kinds"))
    mask = relay.var("mask", shape=sizes)
    positions = op.take(net.weight(POSITIONS, WIDTH), op.arange(sizes[1], dtype="int64"), axis=0)
    token_embedding = op.add(
        op.take(net.weight(WORDS, WIDTH), words, axis=0),
        op.take(net.weight(2, WIDTH), kinds, axis=0),
    )
    x = net.emit_layer_norm(op.add(token_embedding, positions))
    hidden = op.multiply(op.subtract(relay.const(1.0), mask), relay.const(-1e4))
    bias = op.reshape(hidden, (sizes[0], 1, 1, sizes[1]))
    for _ in range(layers):
        x = net.emit_encoder_layer(x, bias)
    first = op.take(x, relay.const(0, "int64"), axis=1)
    pooled = op.tanh(net.emit_linear(first, WIDTH, WIDTH))
    function = relay.Function((words, kinds, mask), relay.Tuple((x, pooled)), None)
    return relay.IRModule.from_expr(function)
