"""The annotation dialect: marks for passes: code of external compilers, places of values."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, Memory, OpDef, OpPattern, register_op
from ekiden.ir.type import Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call
from ekiden.target.virtual_device import HOST, DeviceLike, VirtualDevice, virtual_device


@node("relay.attrs.CompilerAttrs")
class CompilerAttrs(Attrs):
    """The external compiler that code is for."""

    compiler: str = "default"


@node("relay.attrs.OnDeviceAttrs")
class OnDeviceAttrs(Attrs):
    """The device of an expression: of what computes it, of its result, or of both."""

    virtual_device: VirtualDevice = HOST
    constrain_result: bool = False
    constrain_body: bool = True


@node("relay.attrs.DeviceCopyAttrs")
class DeviceCopyAttrs(Attrs):
    """From where to where."""

    src_virtual_device: VirtualDevice = HOST
    dst_virtual_device: VirtualDevice = HOST


def _same(types: Sequence[Type], attrs: Attrs | None) -> Type:
    return types[0]


def _identity(attrs: Attrs | None, data: Array) -> Array:
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
            relation=_same,
            result="the type of data",
            reference=_identity,
            description=_what,
        )
    )


register_op(
    OpDef(
        name="on_device",
        arguments=("body",),
        attrs=OnDeviceAttrs,
        relation=_same,
        result="the type of body",
        reference=_identity,
        description="A value whose place is said; where it is used elsewhere, it is copied.",
    )
)
register_op(
    OpDef(
        name="device_copy",
        memory=Memory.READS,
        arguments=("data",),
        attrs=DeviceCopyAttrs,
        relation=_same,
        result="the type of data",
        reference=_identity,
        description="A copy on another device.",
    )
)
register_op(
    OpDef(
        name="annotation.stop_fusion",
        arguments=("data",),
        relation=_same,
        result="the type of data",
        reference=_identity,
        lower=lambda attrs, inputs, out: [topi.copy(inputs[0])],
        pattern=OpPattern.OPAQUE,
        description="The same value, with which nothing is fused.",
    )
)


register_op(
    OpDef(
        name="annotation.checkpoint",
        hint=True,
        arguments=("data",),
        relation=_same,
        result="the type of data",
        reference=_identity,
        description="The same value, which a gradient may compute again rather than keep: what is"
        " worth that is found by Rematerialize.",
    )
)


@node("relay.attrs.CastHintAttrs")
class CastHintAttrs(Attrs):
    """The dtype that a value shall have."""

    dtype: str = ""


register_op(
    OpDef(
        name="annotation.cast_hint",
        hint=True,
        arguments=("data",),
        attrs=CastHintAttrs,
        relation=_same,
        result="the type of data",
        reference=_identity,
        description="The same value, with a hint for passes of a user's own.",
    )
)


def on_device(
    body: Expr,
    device: DeviceLike | None = None,
    constrain_result: bool = False,
    constrain_body: bool = True,
) -> Expr:
    """`body`, computed on a device (`constrain_body`), or with its result there, or both.

    With neither, or without a device, it is `body` itself. Of a function, it is where its result
    is.
    """
    if device is None or not (constrain_result or constrain_body):
        return body
    place = virtual_device(device)
    return call("on_device", body, attrs=OnDeviceAttrs(place, constrain_result, constrain_body))


def device_copy(data: Expr, src_device: DeviceLike, dst_device: DeviceLike) -> Call:
    """`data`, which is on the first device, copied to the second."""
    attrs = DeviceCopyAttrs(virtual_device(src_device), virtual_device(dst_device))
    return call("device_copy", data, attrs=attrs)


def stop_fusion(data: Expr) -> Call:
    """The same value; operators before it are not fused with those after it."""
    return call("annotation.stop_fusion", data)


def checkpoint(data: Expr) -> Call:
    """The same value, a tensor or a tuple; gradients may compute it again."""
    return call("annotation.checkpoint", data)


def cast_hint(data: Expr, dtype: str) -> Call:
    """The same value, with the dtype that it shall have noted."""
    return call("annotation.cast_hint", data, attrs=CastHintAttrs(dtype))


def compiler_begin(data: Expr, compiler: str) -> Call:
    """A value enters code of an external compiler."""
    return call("annotation.compiler_begin", data, attrs=CompilerAttrs(compiler))


def compiler_end(data: Expr, compiler: str) -> Call:
    """A value leaves code of an external compiler."""
    return call("annotation.compiler_end", data, attrs=CompilerAttrs(compiler))
