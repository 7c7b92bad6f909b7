"""Annotation operators: device placement, external compiler regions, fusion barriers,
checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, MemoryAliasing, OpDef, OpPattern, identity_relation, register_op
from ekiden.ir.type import Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call_op, check_tensors, raise_type_error
from ekiden.target.virtual_device import (
    ANY_VIRTUAL_DEVICE,
    HOST,
    DeviceLike,
    VirtualDevice,
    virtual_device,
)
from ekiden.te import Tensor


@node("relay.attrs.CompilerAttrs")
class CompilerAttrs(Attrs):
    """Attributes of compiler_begin and compiler_end: the external compiler's name."""

    compiler: str = "default"


@node("relay.attrs.OnDeviceAttrs")
class OnDeviceAttrs(Attrs):
    """Attributes of on_device: the device, and whether it constrains the body, the result
    or both.
    """

    virtual_device: VirtualDevice = HOST
    constrain_result: bool = False
    constrain_body: bool = True


@node("relay.attrs.DeviceCopyAttrs")
class DeviceCopyAttrs(Attrs):
    """Attributes of device_copy: the source and destination devices."""

    src_virtual_device: VirtualDevice = HOST
    dst_virtual_device: VirtualDevice = HOST


def _identity_reference(attrs: Attrs | None, data: Array) -> Array:
    return data


for _name, _what in (
    ("annotation.compiler_begin", "A value enters code of an external compiler."),
    ("annotation.compiler_end", "A value leaves code of an external compiler."),
):
    register_op(
        OpDef(
            name=_name,
            arguments=("data",),
            attrs=CompilerAttrs,
            relation=identity_relation,
            result="the type of data",
            reference=_identity_reference,
            description=_what,
        )
    )


register_op(
    OpDef(
        name="on_device",
        arguments=("body",),
        attrs=OnDeviceAttrs,
        relation=identity_relation,
        result="the type of body",
        reference=_identity_reference,
        description="A value whose place is said; where it is used elsewhere, it is copied.",
    )
)
register_op(
    OpDef(
        name="device_copy",
        memory=MemoryAliasing.NO_ALIAS,
        arguments=("data",),
        attrs=DeviceCopyAttrs,
        relation=identity_relation,
        result="the type of data",
        reference=_identity_reference,
        description="A copy on another device.",
    )
)
register_op(
    OpDef(
        name="annotation.stop_fusion",
        arguments=("data",),
        relation=identity_relation,
        result="the type of data",
        reference=_identity_reference,
        lower=lambda attrs, inputs, out: [topi.copy(inputs[0])],
        pattern=OpPattern.OPAQUE,
        is_fusion_barrier=True,
        description="The same value, with which nothing is fused.",
    )
)


register_op(
    OpDef(
        name="annotation.checkpoint",
        hint=True,
        arguments=("data",),
        relation=identity_relation,
        result="the type of data",
        reference=_identity_reference,
        description="The same value, which a gradient may compute again rather than keep: what is"
        " worth that is found by Rematerialize.",
    )
)


@node("relay.attrs.CastHintAttrs")
class CastHintAttrs(Attrs):
    """Attributes of cast_hint: the desired dtype."""

    dtype: str = ""


register_op(
    OpDef(
        name="annotation.cast_hint",
        hint=True,
        arguments=("data",),
        attrs=CastHintAttrs,
        relation=identity_relation,
        result="the type of data",
        reference=_identity_reference,
        description="The same value, with a hint for passes of a user's own.",
    )
)


@node("relay.attrs.AnnotatedQuantizeAttrs")
class AnnotatedQuantizeAttrs(Attrs):
    """Attributes of relay.op.annotation.simulated_quantize: kind (QAnnotateKind), signedness,
    rounding.
    """

    kind: int = 1
    sign: bool = True
    rounding: str = "round"


def _simulated_quantize_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    name = "relay.op.annotation.simulated_quantize"
    data, *steps = check_tensors(name, types, 4)
    for what, kind in zip(("dom_scale", "clip_min", "clip_max"), steps, strict=True):
        if kind.shape or kind.dtype != "float32":
            raise_type_error(name, f"'{what}' must be a float32 scalar, got {kind}")
    if data.dtype != "float32":
        raise_type_error(name, f"'data' must be float32, got {data.dtype}")
    return data


def _simulated_quantize_reference(
    attrs: Attrs | None, data: Array, scale: Array, low: Array, high: Array
) -> Array:
    return np.asarray(np.round(np.clip(data / scale, low, high)) * scale, np.float32)


register_op(
    OpDef(
        name="relay.op.annotation.simulated_quantize",
        arguments=("data", "dom_scale", "clip_min", "clip_max"),
        attrs=AnnotatedQuantizeAttrs,
        relation=_simulated_quantize_relation,
        result="the type of data",
        reference=_simulated_quantize_reference,
        lower=lambda attrs, inputs, out: [_simulated_quantize_compute(*inputs)],
        pattern=OpPattern.BROADCAST,
        description="The data as integers times `dom_scale` say it, in floats: what"
        " `relay.quantize` puts in before it makes integers.",
    )
)


def _simulated_quantize_compute(data: Tensor, scale: Tensor, low: Tensor, high: Tensor) -> Tensor:
    # Clipped before rounding, as the integers are: rounding first could leave the range by one.
    steps = topi.minimum(topi.maximum(topi.divide(data, scale), low), high)
    return topi.multiply(topi.round(steps), scale)


def simulated_quantize(
    data: Expr, dom_scale: Expr, clip_min: Expr, clip_max: Expr, kind: int = 1
) -> Call:
    """Return float32 data rounded to multiples of `dom_scale` and clipped to `clip_min`..`clip_max`
    of them.

    All three are float32 scalars.
    """
    args = data, dom_scale, clip_min, clip_max
    attrs = AnnotatedQuantizeAttrs(kind)
    return call_op("relay.op.annotation.simulated_quantize", *args, attrs=attrs)


def on_device(
    body: Expr,
    device: DeviceLike | None = None,
    constrain_result: bool = False,
    constrain_body: bool = True,
) -> Expr:
    """Annotate the device of `body` (`constrain_body`), of its result, or of both.

    With neither set, the value may be copied to no device in particular. Without a device `body` is
    returned itself. Of a function, the device is that of its result.
    """
    if device is None:
        return body
    is_free = not (constrain_result or constrain_body)
    target_device = ANY_VIRTUAL_DEVICE if is_free else virtual_device(device)
    return call_op(
        "on_device", body, attrs=OnDeviceAttrs(target_device, constrain_result, constrain_body)
    )


def device_copy(data: Expr, src_device: DeviceLike, dst_device: DeviceLike) -> Call:
    """Copy `data` from the first device to the second."""
    attrs = DeviceCopyAttrs(virtual_device(src_device), virtual_device(dst_device))
    return call_op("device_copy", data, attrs=attrs)


def stop_fusion(data: Expr) -> Call:
    """Return the same value behind a fusion barrier."""
    return call_op("annotation.stop_fusion", data)


def checkpoint(data: Expr) -> Call:
    """Return the same value, marked for recomputation in gradients (gradient checkpointing)."""
    return call_op("annotation.checkpoint", data)


def cast_hint(data: Expr, dtype: str) -> Call:
    """Return the same value with a hint of its desired dtype."""
    return call_op("annotation.cast_hint", data, attrs=CastHintAttrs(dtype))


def compiler_begin(data: Expr, compiler: str) -> Call:
    """Mark a value that enters a region of an external compiler."""
    return call_op("annotation.compiler_begin", data, attrs=CompilerAttrs(compiler))


def compiler_end(data: Expr, compiler: str) -> Call:
    """Mark a value that leaves a region of an external compiler."""
    return call_op("annotation.compiler_end", data, attrs=CompilerAttrs(compiler))
