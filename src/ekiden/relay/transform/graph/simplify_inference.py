"""Simplify training operators for inference: batch_norm and dropout; unpack blocked convolution
layouts.

    nn.batch_norm(%x, g, b, mean, var).0  ->  add(multiply(%x, s), b - mean * s)
                                              with s = g / sqrt(var + epsilon)
    nn.dropout(%x).0                      ->  %x
    nn.conv2d(%x, %w, NCHW16c, OIHW16i)   ->  layout_transform(nn.conv2d(layout_transform(%x), ..))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, TupleGetItem, const
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs, Conv3DAttrs
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)

if TYPE_CHECKING:
    import ekiden.relay.op.nn.conv as conv
    import ekiden.relay.op.nn.norm as norm
else:
    norm = LazyModule("ekiden.relay.op.nn.norm")
    conv = LazyModule("ekiden.relay.op.nn.conv")


def _is_call_of(expr: RelayExpr, name: str) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op) and expr.op.name == name


def _expand_batch_norm(call: Call, rank: int, dtype: str) -> RelayExpr:
    attrs = call.attrs
    assert isinstance(attrs, norm.BatchNormAttrs)
    data, gamma, beta, mean, var = call.args
    # Statistics are constants in inference, so scale and shift fold to one constant each.
    scale = op.divide(const(1.0, dtype), op.sqrt(op.add(var, const(attrs.epsilon, dtype))))
    if attrs.scale:
        scale = op.multiply(scale, gamma)
    shift = op.negative(op.multiply(mean, scale))
    if attrs.center:
        shift = op.add(shift, beta)
    trailing = rank - 1 - attrs.axis % rank
    if trailing:
        scale, shift = op.expand_dims(scale, 1, trailing), op.expand_dims(shift, 1, trailing)
    return op.add(op.multiply(data, scale), shift)


def _unblock_layout(call: Call, attrs: Conv2DAttrs | Conv3DAttrs) -> RelayExpr:
    """Rewrite a convolution with blocked or differing layouts as a plain one between layout
    transforms.
    """
    plain = conv.unblocked_conv_attrs(attrs)
    if plain is None:
        return call
    moves = (attrs.data_layout, plain.data_layout), (attrs.kernel_layout, plain.kernel_layout)
    args = (_transform_layout(arg, *move) for arg, move in zip(call.args, moves, strict=True))
    plain_call = Call(call.op, tuple(args), plain, span=call.span)
    return _transform_layout(plain_call, plain.data_layout, attrs.out_layout or attrs.data_layout)


def _transform_layout(data: RelayExpr, source: str, target: str) -> RelayExpr:
    return data if source == target else op.layout_transform(data, source, target)


def _simplify_node(old: RelayExpr, new: RelayExpr) -> RelayExpr:
    if isinstance(new, Call) and isinstance(new.attrs, (Conv2DAttrs, Conv3DAttrs)):
        return _unblock_layout(new, new.attrs)
    # The other results are statistics for training.
    if not isinstance(new, TupleGetItem) or new.index != 0 or not isinstance(new.tuple_value, Call):
        return new
    call = new.tuple_value
    if _is_call_of(call, "nn.dropout"):
        return call.args[0]
    if _is_call_of(call, "nn.batch_norm") and is_rewrite_allowed("normalise by a factor"):
        assert isinstance(old, TupleGetItem)
        kind = old.checked_type
        assert isinstance(kind, TensorType)
        return _expand_batch_norm(call, len(kind.shape), kind.dtype)
    return new


@module_pass(name="SimplifyInference", required=(InferType(),))
def _simplify_inference(module: IRModule, context: PassContext) -> IRModule:
    return map_functions(
        module, lift_body_rewrite(lambda body: rewrite_graph(body, _simplify_node))
    )


def SimplifyInference() -> Pass:  # noqa: N802
    """Return a pass that simplifies batch_norm and dropout for inference (TVM's
    SimplifyInference).
    """
    return _simplify_inference
