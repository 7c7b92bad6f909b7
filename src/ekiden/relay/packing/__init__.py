"""Weight packing rules: rewrite operators so that their weights have the layout kernels read, for
AlterOpLayout. One file per family of operators; a rule gives the call itself where it has
nothing to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.relay.expr import Call, Constant
from ekiden.relay.packing.common import tensor_dtype
from ekiden.relay.packing.dense import pack_dense, pack_int8_dense, pack_integer_batch_matmul
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.relay.packing import block_quantized, conv, int4_dense, recurrent
else:  # what few models have
    conv = LazyModule("ekiden.relay.packing.conv")
    block_quantized = LazyModule("ekiden.relay.packing.block_quantized")
    int4_dense = LazyModule("ekiden.relay.packing.int4_dense")
    recurrent = LazyModule("ekiden.relay.packing.recurrent")

Pack: TypeAlias = Callable[[Call, Target], RelayExpr]
"""Function (typed call, target) -> call on a packed weight."""
FLOAT32_SIGNATURE = ("float32", "float32", "float32")


def _compose_with_dense_packing(pack: Callable[[Call, Target], Call]) -> Pack:
    """Compose a rule with the packing rule of the dense layer that it returns."""

    def pack_call(call: Call, target: Target) -> RelayExpr:
        """Apply the rule, then the rule of its result, unless the call is unchanged."""
        result = pack(call, target)
        rule = packing_rule_of(result)
        return result if rule is None or result is call else rule(result, target)

    return pack_call


def _pack_conv(call: Call, target: Target) -> RelayExpr:
    return conv.pack_conv(call, target)


def _pack_int8_conv(call: Call, target: Target) -> RelayExpr:
    return conv.pack_int8_conv(call, target)


def _pack_conv_transpose(call: Call, target: Target) -> RelayExpr:
    return conv.pack_conv_transpose(call, target)


def _pack_int8_depthwise(call: Call, target: Target) -> RelayExpr:
    return conv.pack_int8_depthwise(call, target)


def _pack_int4_dense(call: Call, target: Target) -> Call:
    return int4_dense.pack_int4_dense(call, target)


def _pack_block_quantized(call: Call, target: Target) -> Call:
    return block_quantized.pack_dense_blocks(call, target)


@dataclass(frozen=True, slots=True)
class PackingRule:
    """Packing rule, and whether it also packs weights computed at run time."""

    pack: Pack
    packs_computed_weights: bool = False


# fmt: off
PACKING_RULES: Mapping[tuple[str, str, str, str], PackingRule] = {
    ("nn.dense", *FLOAT32_SIGNATURE):                  PackingRule(pack_dense),
    ("nn.dense", "uint8", "int8", "int32"):            PackingRule(pack_int8_dense),
    ("nn.dense", "uint8", "int8", "float32"):          PackingRule(pack_int8_dense),
    ("nn.batch_matmul", "uint8", "int8", "int32"):
        PackingRule(pack_integer_batch_matmul, packs_computed_weights=True),
    ("nn.batch_matmul", "int16", "int16", "int32"):
        PackingRule(pack_integer_batch_matmul, packs_computed_weights=True),
    ("nn.dense", "bfloat16", "bfloat16", "float32"):   PackingRule(pack_int8_dense),
    ("nn.conv2d", *FLOAT32_SIGNATURE):
        PackingRule(_pack_conv, packs_computed_weights=True),
    ("nn.conv3d", *FLOAT32_SIGNATURE):
        PackingRule(_pack_conv, packs_computed_weights=True),
    ("nn.conv2d", "uint8", "int8", "int32"):           PackingRule(_pack_int8_conv),
    ("nn.conv2d", "bfloat16", "bfloat16", "float32"):  PackingRule(_pack_int8_conv),
    ("nn.conv2d", "uint8", "float32", "float32"):      PackingRule(_pack_int8_depthwise),
    ("nn.conv2d", "int8", "float32", "float32"):       PackingRule(_pack_int8_depthwise),
    ("nn.conv2d_transpose", *FLOAT32_SIGNATURE):
        PackingRule(_pack_conv_transpose, packs_computed_weights=True),
    ("nn.conv3d_transpose", *FLOAT32_SIGNATURE):
        PackingRule(_pack_conv_transpose, packs_computed_weights=True),
    ("nn.contrib_dense_nibbles", "float32", "uint8", "float32"):
        PackingRule(_compose_with_dense_packing(_pack_int4_dense)),
    ("nn.dense_blocks", "float32", "uint8", "float32"):
        PackingRule(_compose_with_dense_packing(_pack_block_quantized)),
}
# fmt: on
"""Packing rules by operator and dtypes of data, weight and result."""


Share: TypeAlias = Callable[[Call, Call], Call]
"""Function (call that reads a weight unpacked, packed call of the same weight) -> call that reads
the packed weight.
"""


def _take_from_packed(call: Call, product: Call) -> Call:
    return block_quantized.take_from_packed_blocks(call, product)


WEIGHT_READERS: Mapping[str, tuple[int, Share]] = {"nn.take_blocks": (0, _take_from_packed)}
"""Operators that can read a packed weight: the weight's argument index, and the rewrite."""


def weight_reader_of(call: Call) -> tuple[RelayExpr, Share] | None:
    """Return the weight that a non-product call reads, with its rewrite to the packed form, or
    None.
    """
    entry = WEIGHT_READERS.get(getattr(call.op, "name", ""))
    return None if entry is None else (call.args[entry[0]], entry[1])


def packing_rule_of(call: Call) -> Pack | None:
    """Return the packing rule of a call, or None."""
    name = getattr(call.op, "name", "")
    if name == "nn.recurrent":
        return recurrent.pack_recurrent
    if len(call.args) < 2:
        return None
    dtypes = tensor_dtype(call.args[0]), tensor_dtype(call.args[1]), tensor_dtype(call)
    row = PACKING_RULES.get((name, *dtypes))
    is_known = isinstance(call.args[1], Constant)
    return row.pack if row is not None and (is_known or row.packs_computed_weights) else None


__all__ = ["PACKING_RULES", "WEIGHT_READERS", "packing_rule_of", "weight_reader_of"]
