"""Random tensors, seeded by the attribute `seed`, or by the node's name where there is none: every
run of a model draws the same numbers.
"""

from __future__ import annotations

import struct
import zlib

from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import Node, Row, describe
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.topi.dimensions import Dim


def generator(node: Node) -> Expr:
    """Return the random generator of a node, seeded by its attribute or by its name."""
    if node.has("seed"):
        # ONNX's seed is a float; its bit pattern keeps distinct seeds distinct.
        seed = struct.unpack("<I", struct.pack("<f", node.get_number("seed")))[0]
    else:
        seed = zlib.crc32(describe(node.proto).encode())
    return op.random.threefry_key(int(seed))


def _dtype(node: Node, like: bool) -> str:
    stated = node.get_int("dtype", 0)
    if stated:
        return from_onnx_dtype(stated)
    return node.dtype(0) if like else "float32"


def _drawn(node: Node, shape: tuple[Dim, ...], dtype: str, normal: bool) -> Expr:
    wide = dtype if dtype in ("float32", "float64") else "float32"
    if normal:
        mean, scale = node.get_float("mean", 0.0), node.get_float("scale", 1.0)
        drawn = op.random.normal(generator(node), shape, wide, mean, scale)
    else:
        low, high = node.get_float("low", 0.0), node.get_float("high", 1.0)
        drawn = op.random.uniform(generator(node), shape, wide, low, high)
    values = TupleGetItem(drawn, 1)
    return values if wide == dtype else op.cast(values, dtype)


def _of_shape(node: Node, normal: bool) -> Expr:
    return _drawn(node, node.get_ints("shape"), _dtype(node, like=False), normal)


def _like(node: Node, normal: bool) -> Expr:
    return _drawn(node, node.shape(0), _dtype(node, like=True), normal)


def _multinomial(node: Node) -> Expr:
    """Sample classes by unnormalised log-probabilities."""
    weights = op.nn.softmax(op.cast(node.expr(0), "float32"), axis=-1)
    count = node.get_int("sample_size", 1)
    samples = TupleGetItem(op.random.multinomial(generator(node), weights, count), 1)
    return op.cast(samples, from_onnx_dtype(node.get_int("dtype", 6)))


# fmt: off
ROWS = (
    Row("RandomNormal",      lambda node: _of_shape(node, normal=True),
        attributes="dtype mean scale seed shape"),
    Row("RandomUniform",     lambda node: _of_shape(node, normal=False),
        attributes="dtype high low seed shape"),
    Row("RandomNormalLike",  lambda node: _like(node, normal=True),
        attributes="dtype mean scale seed"),
    Row("RandomUniformLike", lambda node: _like(node, normal=False),
        attributes="dtype high low seed"),
    Row("Multinomial",       _multinomial, since=7, attributes="dtype sample_size seed"),
)
# fmt: on
