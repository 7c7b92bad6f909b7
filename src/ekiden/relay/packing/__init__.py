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
from ekiden.relay.packing.common import dtype_of
from ekiden.relay.packing.dense import batch_words, dense, dense_words
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

if TYPE_CHECKING:
    from ekiden.relay.packing import blocks, conv, nibbles, recurrent
else:  # what few models have
    conv = LazyModule("ekiden.relay.packing.conv")
    blocks = LazyModule("ekiden.relay.packing.blocks")
    nibbles = LazyModule("ekiden.relay.packing.nibbles")
    recurrent = LazyModule("ekiden.relay.packing.recurrent")

Pack: TypeAlias = Callable[[Call, Target], RelayExpr]
"""(call with checked types, target) -> what stands for it."""
FLOAT = ("float32", "float32", "float32")


def _in_turn(pack: Callable[[Call, Target], Call]) -> Pack:
    """Return a rule whose resulting dense layer is packed by its own rule."""

    def packed(call: Call, target: Target) -> RelayExpr:
        """Apply the rule, then the rule of its result, unless the call is unchanged."""
        result = pack(call, target)
        rule = rule_of(result)
        return result if rule is None or result is call else rule(result, target)

    return packed


def _conv(call: Call, target: Target) -> RelayExpr:
    return conv.conv(call, target)


def _conv_words(call: Call, target: Target) -> RelayExpr:
    return conv.conv_words(call, target)


def _conv_transpose(call: Call, target: Target) -> RelayExpr:
    return conv.conv_transpose(call, target)


def _depthwise_bytes(call: Call, target: Target) -> RelayExpr:
    return conv.depthwise_bytes(call, target)


def _nibbles(call: Call, target: Target) -> Call:
    return nibbles.dense_nibbles(call, target)


def _blocks(call: Call, target: Target) -> Call:
    return blocks.dense_blocks(call, target)


@dataclass(frozen=True, slots=True)
class Row:
    """Packing rule, and whether it also packs weights computed at run time."""

    pack: Pack
    computed: bool = False


# fmt: off
RULES: Mapping[tuple[str, str, str, str], Row] = {
    ("nn.dense", *FLOAT):                              Row(dense),
    ("nn.dense", "uint8", "int8", "int32"):            Row(dense_words),
    ("nn.dense", "uint8", "int8", "float32"):          Row(dense_words),
    ("nn.batch_matmul", "uint8", "int8", "int32"):     Row(batch_words, computed=True),
    ("nn.dense", "bfloat16", "bfloat16", "float32"):   Row(dense_words),
    ("nn.conv2d", *FLOAT):                             Row(_conv, computed=True),
    ("nn.conv3d", *FLOAT):                             Row(_conv, computed=True),
    ("nn.conv2d", "uint8", "int8", "int32"):           Row(_conv_words),
    ("nn.conv2d", "bfloat16", "bfloat16", "float32"):  Row(_conv_words),
    ("nn.conv2d", "uint8", "float32", "float32"):      Row(_depthwise_bytes),
    ("nn.conv2d", "int8", "float32", "float32"):       Row(_depthwise_bytes),
    ("nn.conv2d_transpose", *FLOAT):                   Row(_conv_transpose, computed=True),
    ("nn.conv3d_transpose", *FLOAT):                   Row(_conv_transpose, computed=True),
    ("nn.contrib_dense_nibbles", "float32", "uint8", "float32"): Row(_in_turn(_nibbles)),
    ("nn.dense_blocks", "float32", "uint8", "float32"): Row(_in_turn(_blocks)),
}
# fmt: on
"""Operator, dtypes of data, weight and result -> its rule."""


Share: TypeAlias = Callable[[Call, Call], Call]
"""(call that reads a constant as it is, packed call of the same constant) -> what stands for it."""


def _taken(call: Call, product: Call) -> Call:
    return blocks.take_blocks(call, product)


READERS: Mapping[str, tuple[int, Share]] = {"nn.take_blocks": (0, _taken)}
"""Operators that can read a weight also where it is packed: which argument, and how."""


def reader_of(call: Call) -> tuple[RelayExpr, Share] | None:
    """Return the weight that a call reads besides products, with its sharing rule, or None."""
    entry = READERS.get(getattr(call.op, "name", ""))
    return None if entry is None else (call.args[entry[0]], entry[1])


def rule_of(call: Call) -> Pack | None:
    """Return the packing rule of a call, or None."""
    name = getattr(call.op, "name", "")
    if name == "nn.recurrent":
        return recurrent.recurrent
    if len(call.args) < 2:
        return None
    dtypes = dtype_of(call.args[0]), dtype_of(call.args[1]), dtype_of(call)
    row = RULES.get((name, *dtypes))
    is_known = isinstance(call.args[1], Constant)
    return row.pack if row is not None and (is_known or row.computed) else None


__all__ = ["READERS", "RULES", "reader_of", "rule_of"]
