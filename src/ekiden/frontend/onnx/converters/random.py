"""ONNX random tensors, seeded by the attribute `seed` or the node's name, for reproducible runs."""

from __future__ import annotations

import struct
import zlib

from ekiden.frontend.onnx.dtype import from_onnx_dtype
from ekiden.frontend.onnx.node import OnnxNode, OnnxRow, describe_node
from ekiden.relay import op
from ekiden.relay.expr import Expr, TupleGetItem
from ekiden.topi.dimensions import Dim


def seeded_generator(node: OnnxNode) -> Expr:
    """Emit a node's random generator, seeded by its attribute or its name."""
    if node.has("seed"):
        # ONNX's seed is a float; its bit pattern keeps distinct seeds distinct.
        seed = struct.unpack("<I", struct.pack("<f", node.get_required_float("seed")))[0]
    else:
        seed = zlib.crc32(describe_node(node.proto).encode())
    return op.random.threefry_key(int(seed))


def _random_dtype(node: OnnxNode, like: bool) -> str:
    """Return the dtype to draw: the attribute's, input 0's, or float32."""
    stated = node.get_int("dtype", 0)
    if stated:
        return from_onnx_dtype(stated)
    return node.dtype(0) if like else "float32"


def _emit_random(node: OnnxNode, shape: tuple[Dim, ...], dtype: str, normal: bool) -> Expr:
    """Emit normal or uniform random numbers of a shape."""
    wide = dtype if dtype in ("float32", "float64") else "float32"
    if normal:
        mean, scale = node.get_float("mean", 0.0), node.get_float("scale", 1.0)
        drawn = op.random.normal(seeded_generator(node), shape, wide, mean, scale)
    else:
        low, high = node.get_float("low", 0.0), node.get_float("high", 1.0)
        drawn = op.random.uniform(seeded_generator(node), shape, wide, low, high)
    values = TupleGetItem(drawn, 1)
    return values if wide == dtype else op.cast(values, dtype)


def _random_of_shape(node: OnnxNode, normal: bool) -> Expr:
    return _emit_random(node, node.get_ints("shape"), _random_dtype(node, like=False), normal)


def _random_like(node: OnnxNode, normal: bool) -> Expr:
    return _emit_random(node, node.shape(0), _random_dtype(node, like=True), normal)


def _multinomial(node: OnnxNode) -> Expr:
    """Convert Multinomial: sample classes by unnormalised log-probabilities."""
    weights = op.nn.softmax(op.cast(node.expr(0), "float32"), axis=-1)
    count = node.get_int("sample_size", 1)
    samples = TupleGetItem(op.random.multinomial(seeded_generator(node), weights, count), 1)
    return op.cast(samples, from_onnx_dtype(node.get_int("dtype", 6)))


# fmt: off
ROWS = (
    OnnxRow("RandomNormal",      lambda node: _random_of_shape(node, normal=True),
        attributes="dtype mean scale seed shape"),
    OnnxRow("RandomUniform",     lambda node: _random_of_shape(node, normal=False),
        attributes="dtype high low seed shape"),
    OnnxRow("RandomNormalLike",  lambda node: _random_like(node, normal=True),
        attributes="dtype mean scale seed"),
    OnnxRow("RandomUniformLike", lambda node: _random_like(node, normal=False),
        attributes="dtype high low seed"),
    OnnxRow("Multinomial",       _multinomial, since_version=7,
        attributes="dtype sample_size seed"),
)
# fmt: on
