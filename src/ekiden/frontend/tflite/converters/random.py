"""Random tensors, seeded by the operator's seeds, or by its name where both are 0.

Every run of a model draws the same numbers, which are not those of TensorFlow Lite.
"""

from __future__ import annotations

import zlib

from ekiden.frontend.tflite.node import TfliteNode, TfliteRow
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem


def _random_key(node: TfliteNode) -> Expr:
    seeds = int(node.read_option("Seed")), int(node.read_option("Seed2"))
    # Two zero seeds mean a random seed; the node's name keeps runs reproducible.
    number = zlib.crc32(node.name.encode() if seeds == (0, 0) else repr(seeds).encode())
    return op.random.threefry_key(number)


def _uniform(node: TfliteNode) -> Expr:
    shape = node.dims(0, "shape")
    return TupleGetItem(op.random.uniform(_random_key(node), shape, node.outs[0].dtype), 1)


def _normal(node: TfliteNode) -> Expr:
    shape = node.dims(0, "shape")
    return TupleGetItem(op.random.normal(_random_key(node), shape, node.outs[0].dtype), 1)


def _multinomial(node: TfliteNode) -> Expr:
    """Convert MULTINOMIAL (logits [rows, classes], count)."""
    (count,) = node.constant_ints(1, "num_samples")
    weights = op.nn.softmax(node.expr(0), axis=-1)
    samples = TupleGetItem(op.random.multinomial(_random_key(node), weights, count), 1)
    return op.cast(samples, node.outs[0].dtype)


# fmt: off
ROWS = (
    TfliteRow("RANDOM_UNIFORM",         _uniform),
    TfliteRow("RANDOM_STANDARD_NORMAL", _normal),
    TfliteRow("MULTINOMIAL",            _multinomial),
)
# fmt: on
