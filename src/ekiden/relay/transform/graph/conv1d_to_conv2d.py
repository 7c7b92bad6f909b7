"""Convert 1-D convolutions to 2-D convolutions of height 1, which have kernels.

nn.conv1d(%x, W)   ->   squeeze(nn.conv2d(expand_dims(%x, axis=2), W', NCHW), axis=[2])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import get
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.window_attrs import Conv1DAttrs, Conv1DTransposeAttrs, ConvAttrs
from ekiden.relay.transform.language.scope_tree import infer_local_type

if TYPE_CHECKING:
    import ekiden.relay.op.nn.conv as conv
else:
    conv = LazyModule("ekiden.relay.op.nn.conv")


def _insert_height_axis(operand: RelayExpr, axis: int) -> RelayExpr:
    """Insert a unit height axis into an operand."""
    # A constant is reshaped at once, so that later passes still see a constant weight.
    if isinstance(operand, Constant):
        shape = operand.data.shape
        reshaped = operand.data.reshape(*shape[:axis], 1, *shape[axis:])
        return infer_local_type(Constant(reshaped, span=operand.span))
    return infer_local_type(op.expand_dims(operand, axis))


def conv1d_to_conv2d(call: Call) -> Call | None:
    """Return a 1-D convolution as the equivalent 2-D convolution of height 1; None for other
    operators.

    Needs the types of the operands; the result is typed.
    """
    attrs = call.attrs
    if isinstance(attrs, Conv1DTransposeAttrs):
        conv_call = Call(
            get("nn.conv2d_transpose"), call.args, conv.conv1d_transpose_to_conv2d_attrs(attrs)
        )
    elif isinstance(attrs, Conv1DAttrs):
        conv_call = Call(get("nn.conv2d"), call.args, conv.conv1d_to_conv2d_attrs(attrs))
    else:
        return None
    layouts = (attrs.data_layout, attrs.kernel_layout)
    args = [
        _insert_height_axis(a, position.index("W"))
        for a, position in zip(call.args, layouts, strict=True)
    ]
    wide = conv_call.with_fields(args=tuple(args), span=call.span)
    typed_call = infer_local_type(wide)
    assert isinstance(typed_call, Call)
    return typed_call


def squeeze_height(result: RelayExpr, call: Call) -> RelayExpr:
    """Squeeze the height axis from the 2-D result to the 1-D call's shape."""
    attrs = call.attrs
    assert isinstance(attrs, ConvAttrs)
    axis = (attrs.out_layout or attrs.data_layout).index("W")
    return infer_local_type(op.squeeze(result, [axis]))


__all__ = ["conv1d_to_conv2d", "squeeze_height"]
