"""Schedule rules: which loops compute a group of tensor expressions, chosen by the tag of the
group's anchor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from ekiden import te
from ekiden.target import Target
from ekiden.tir.stmt import PrimFunc
from ekiden.topi.rule import (
    attention,
    batch_matmul,
    conv2d,
    conv2d_transpose,
    dense,
    depthwise,
    nibbles,
    recurrent,
    thread,
    upsample,
    winograd,
)
from ekiden.topi.rule.checks import with_checks
from ekiden.topi.rule.default import schedule_default
from ekiden.topi.rule.in_place import in_place_inputs
from ekiden.topi.rule.stages import has_known_weights, is_epilogue

Rule: TypeAlias = Callable[[list[te.Tensor], list[te.Tensor], Target, str], PrimFunc]
"""(inputs, outputs, target, name) -> the scheduled function, parameters in that order."""

# fmt: off
RULES: dict[str, Rule] = {
    "dense_pack":             dense.dense_pack,
    "conv_nhwc_pack":         conv2d.conv_pack,
    "conv2d_transpose":       upsample.upsample,
    "conv_transpose_pack":    conv2d_transpose.conv_transpose,
    "depthwise_conv_transpose": conv2d_transpose.depthwise_conv_transpose,
    "winograd_conv2d":        winograd.winograd_conv2d,
    "depthwise_conv_nhwc":    depthwise.depthwise_conv,
    "batch_matmul":           batch_matmul.batch_matmul,
    "matmul":                 batch_matmul.matmul,
    "dense_nibbles_pack":     nibbles.dense_nibbles_pack,
    "dense":                  batch_matmul.dense,
}
# fmt: on
"""Anchors with kernels of their own; each takes one output that is elementwise on the anchor."""
WHOLE: dict[str, Rule] = {
    "attention": attention.attention,
    "recurrent": recurrent.recurrent,
}
"""Operations that are a kernel of their own, with all their outputs."""
_ACCEPTS: dict[str, Callable[[te.Tensor], bool]] = {
    **dict.fromkeys(("batch_matmul", "matmul", "dense"), batch_matmul.accepts),
    "dense_pack": dense.accepts,
    "dense_nibbles_pack": nibbles.accepts,
    "conv2d_transpose": upsample.accepts,
    **dict.fromkeys(("conv_transpose_pack", "depthwise_conv_transpose"), conv2d_transpose.accepts),
    "winograd_conv2d": winograd.accepts,
}
_ENDS: dict[str, Callable[[list[te.Tensor]], list[te.Tensor]]] = {
    "winograd_conv2d": winograd.before_pool,
}
"""What must be elementwise on the anchor, of the outputs: a rule may do more behind that."""


def schedule(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    """The scheduled loop program of a group.

    A group that an anchor's rule does not cover gets the default rule of the target's kind. Checks
    of indices come first; programs of threads, which cannot say what is wrong, have none.
    """
    if target.kind.has_threads:
        return thread.schedule_threads(inputs, outputs, target, name)
    return with_checks(_scheduled(inputs, outputs, target, name), inputs, outputs, target)


def _scheduled(
    inputs: list[te.Tensor], outputs: list[te.Tensor], target: Target, name: str
) -> PrimFunc:
    whole = WHOLE.get(outputs[0].op.tag)
    if whole is not None and all(t.op is outputs[0].op for t in outputs):
        return whole(inputs, outputs, target, name)
    for tensor in te.post_order_tensors(outputs):
        rule = RULES.get(tensor.op.tag)
        accepts = _ACCEPTS.get(tensor.op.tag, has_known_weights)
        ends = _ENDS.get(tensor.op.tag, list)(outputs)
        if rule is not None and accepts(tensor) and is_epilogue(tensor, ends):
            made = rule(inputs, outputs, target, name)
            replaced = in_place_inputs(inputs, outputs, tensor) if ends == outputs else ()
            return _in_place(made, replaced)
    made = schedule_default(inputs, outputs, target, name)
    return _in_place(made, in_place_inputs(inputs, outputs))


def _in_place(function: PrimFunc, inputs: tuple[int, ...]) -> PrimFunc:
    """The function with the numbers of the inputs that its output may replace."""
    if not inputs:
        return function
    return function.with_fields(attrs={**(function.attrs or {}), "tir.in_place": inputs})


__all__ = ["RULES", "WHOLE", "Rule", "schedule"]
