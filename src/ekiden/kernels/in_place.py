"""In-place kernels: inputs that may alias the output.

    out[i, j] = max(conv[i, j] + residual[i, j], 0)        residual: yes, the convolution's data: no

An input may if each element of the output depends on that input's element at the same index alone,
and the kernel writes an element once, when it has read what it needs for it. So do nests over one
injective computation, and the anchors' kernels, which finish an element in registers; kernels of
several stages may keep an intermediate in the output. An output that is a slice of a larger tensor
has its pitch of rows: the same index is at another address.

An update operation names the input that it changes (UPDATES_ATTR_KEY); run in that input's memory
it copies nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import prove_equal
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.ir.prim_visitor import post_order
from ekiden.te.inline import ProducerInliner, input_tensors, is_injective, post_order_tensors
from ekiden.te.tensor import ComputeOp, ExternOp, PlaceholderOp, ProducerLoad, Tensor


def aliasable_inputs(
    inputs: Sequence[Tensor], outputs: Sequence[Tensor], anchor: Tensor | None = None
) -> tuple[int, ...]:
    """Return the indices of the inputs that may alias the output.

    Args:
        inputs: The inputs of the kernel.
        outputs: Its outputs.
        anchor: The operation that the kernel computes before all else.
    """
    output = outputs[0]
    op = output.op
    consumers = [
        t
        for t in post_order_tensors(outputs)
        if t is not anchor and not isinstance(t.op, PlaceholderOp)
    ]
    is_plain = len(outputs) == 1 and output is not anchor and all(map(is_injective, consumers))
    if not is_plain or output.is_part or not isinstance(op, ComputeOp):
        return ()
    # Only after inlining is it visible at which indices each input is read.
    body = ProducerInliner(set(consumers)).rewrite_expr(op.body[output.value_index])
    axes = [a.var for a in op.axis]
    # The anchor reads its inputs at many indices before the first element is stored.
    elsewhere = set(input_tensors(anchor)) if anchor is not None else set()
    read: set[Tensor] = set()
    for load in post_order(body):
        if isinstance(load, ProducerLoad):
            read.add(load.producer)
            if not _is_same_index(load, output, axes):
                elsewhere.add(load.producer)
    return tuple(n for n, t in enumerate(inputs) if t in read and t not in elsewhere)


UPDATES_ATTR_KEY = "updates"
"""Attribute of an extern operation: the index of the input that it updates in place."""


def updated_input(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> tuple[int, ...]:
    """Return the index of the input that a single-update kernel modifies in place; None if other
    operations read it.
    """
    op = outputs[0].op
    if len(outputs) != 1 or not isinstance(op, ExternOp) or UPDATES_ATTR_KEY not in op.attrs:
        return ()
    number = op.attrs[UPDATES_ATTR_KEY]
    assert isinstance(number, int)
    data = op.inputs[number]
    # Another reader may run after the update and must see the old values.
    readers = [t for t in post_order_tensors(outputs) if data in t.op.input_tensors]
    is_alone = op.inputs.count(data) == 1 and readers == [outputs[0]]
    return (inputs.index(data),) if is_alone and data in inputs else ()


def _is_same_index(load: ProducerLoad, output: Tensor, axes: Sequence[PrimExpr]) -> bool:
    """Return whether a load reads the element that the output writes."""
    tensor = load.producer
    # Elements of another size are at other bytes for the same index.
    if tensor.dtype != output.dtype or len(tensor.shape) != len(output.shape):
        return False
    return all(
        (index is axis or (is_const(extent, 1) and is_const(index, 0)))
        and prove_equal(extent, output_extent)
        for index, axis, extent, output_extent in zip(
            load.indices, axes, tensor.shape, output.shape, strict=True
        )
    )


__all__ = ["UPDATES_ATTR_KEY", "aliasable_inputs", "updated_input"]
