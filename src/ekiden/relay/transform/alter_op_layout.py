"""Put weights into the order the target's register tiles read them.

    nn.dense(%x, W)                       ->  nn.contrib_dense_pack(%x, packed W, units=N, tile=64)
    nn.dense(%x u8, W s8)                 ->  the same with four bytes of a row side by side
    nn.dense(%x bf16, W bf16) in f32      ->  the same with two elements of a row side by side
    nn.contrib_dense_nibbles(%x, W, ...)  ->  nn.contrib_dense_nibbles_pack of %x rounded to bytes
    nn.conv2d(%x, W, NHWC, OIHW)          ->  nn.conv2d(%x, packed W, NHWC, OHWI64o)
    nn.conv2d(%x u8, W s8, NHWC, OIHW)    ->  kernel layout OHWI64o4i: four channels side by side
    nn.conv2d(%x, W 3x3, no strides)      ->  Winograd's method
    nn.conv2d(..., groups=G)              ->  kernel layout GOHWI{tile}o; depthwise: HWOI
    nn.conv2d_transpose(%x, W, NHWC, IOHW)  ->  kernel layout OHWI{tile}o, GOHWI{tile}o or HWIO;
                                              without strides: nn.conv2d of the flipped weight
    nn.conv3d, nn.conv3d_transpose (NDHWC)  ->  the same with one more axis
    nn.recurrent((%x, W, ...))            ->  nn.recurrent((%x, packed W, ...))
The packing itself is an operator, which FoldConstant does where the weight is constant. Where it is
not, convolutions pack it at run time, which costs little beside them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import SIZE
from ekiden.ir.prim import IntImm
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant, Tuple
from ekiden.relay.op.nn.geometry import Conv2DAttrs, Conv3DAttrs, ConvAttrs, ConvTransposeAttrs
from ekiden.relay.op.nn.recurrent import RecurrentAttrs
from ekiden.relay.transform.convert_layout import transpose
from ekiden.relay.transform.fold_scale_axis import op_of
from ekiden.relay.transform.infer_type import InferType
from ekiden.relay.transform.nibbles import dense_nibbles
from ekiden.relay.transform.scopes import infer_here, map_functions, on_body, rewrite_graph
from ekiden.target import Target
from ekiden.topi.layout import permutation
from ekiden.topi.nn.conv_transpose import is_few
from ekiden.topi.nn.weights import WORD, WORD_OF
from ekiden.topi.nn.winograd import POINTS, TAPS, suits, tile_size

VECTORS_PER_ROW = 4
"""Vectors in one row of a register tile: 6 rows x 4 vectors fill the registers of AVX-512 (kernel
design 6x64).
"""

CONVOLUTIONS = ("nn.conv2d", "nn.conv3d")
TRANSPOSED = ("nn.conv2d_transpose", "nn.conv3d_transpose")
PLAIN = (("NHWC", "OIHW"), ("NDHWC", "OIDHW"))
"""Layouts of data and weights of convolutions that have kernels, once packed."""
PLAIN_TRANSPOSED = (("NHWC", "IOHW"), ("NDHWC", "IODHW"))


def tile_width(channels: int, target: Target) -> int:
    """Columns of a weight panel: whole vectors, at most VECTORS_PER_ROW of them."""
    lanes = target.lanes("float32")
    return min(VECTORS_PER_ROW * lanes, -(-channels // lanes) * lanes)


def _dtype(expr: RelayExpr) -> str:
    kind = expr.checked_type
    return kind.dtype if isinstance(kind, TensorType) else ""


def _is_float32(expr: RelayExpr) -> bool:
    return _dtype(expr) == "float32"


def _dense(call: Call, target: Target) -> RelayExpr:
    weight = call.args[1]
    assert isinstance(weight, Constant)
    units = weight.data.shape[0]
    tile = tile_width(units, target)
    packed = op.nn.contrib_pack_weight(weight, kind="dense", tile=tile)
    return op.nn.contrib_dense_pack(call.args[0], packed, units=units, tile=tile).with_fields(
        span=call.span
    )


def _dense_words(call: Call, target: Target) -> RelayExpr:
    data, weight = call.args
    assert isinstance(weight, Constant)
    units, depth = weight.data.shape
    missing = -depth % WORD_OF[_dtype(data)]
    if missing:
        shape = data.checked_type
        assert isinstance(shape, TensorType)
        rows = ((0, 0),) * (len(shape.shape) - 1)
        zero = Constant(np.zeros((), to_numpy(shape.dtype)))
        data = op.nn.pad(data, (*rows, (0, missing)), zero)
        weight = Constant(np.pad(weight.data, ((0, 0), (0, missing))), span=weight.span)
    tile = tile_width(units, target)
    kind = "dense_bf16" if _dtype(call.args[0]) == "bfloat16" else "dense_u8s8"
    packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile)
    out = _dtype(call)
    return op.nn.contrib_dense_pack(data, packed, units, tile, out).with_fields(span=call.span)


def _conv_bytes(call: Call, target: Target) -> RelayExpr:
    attrs, (data, weight) = call.attrs, call.args
    assert isinstance(attrs, Conv2DAttrs)
    assert isinstance(weight, Constant)
    plain = attrs.data_layout == "NHWC" and attrs.kernel_layout == "OIHW" and attrs.groups == 1
    if not plain or any(attrs.padding) or attrs.out_dtype != "int32":
        return call
    channels, depth, *kernel = weight.data.shape
    missing = -depth % WORD
    if missing:
        none = (0, 0)
        data = op.nn.pad(data, (none, none, none, (0, missing)), Constant(np.zeros((), np.uint8)))
        padded = np.pad(weight.data, (none, (0, missing), none, none))
        weight = Constant(padded, span=weight.span)
    tile = tile_width(channels, target)
    packed = op.nn.contrib_pack_weight(weight, kind="conv2d_u8s8", tile=tile)
    changed = attrs.with_fields(
        kernel_layout=f"OHWI{tile}o{WORD}i", channels=channels, kernel_size=tuple(kernel)
    )
    return Call(call.op, (data, packed), changed, span=call.span)


def _channels_in(call: Call) -> int | None:
    kind = call.args[0].checked_type
    assert isinstance(kind, TensorType)
    last = kind.shape[-1]
    return last.value if isinstance(last, IntImm) else None


def _known_shape(expr: RelayExpr) -> tuple[int, ...] | None:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    extents = tuple(d.value for d in kind.shape if isinstance(d, IntImm))
    return extents if len(extents) == len(kind.shape) else None


def _winograd_tile(call: Call, attrs: Conv2DAttrs, target: Target) -> int | None:
    """The side of output tiles if the convolution is to be done by Winograd's method, whose weights
    take up to four times the memory.
    """
    if PassContext.current().option(SIZE) == "small":
        return None
    weight, result = call.args[1], call.checked_type
    assert isinstance(weight, Constant)
    out, channels, *kernel = weight.data.shape
    plain = attrs.groups == 1 and attrs.strides == attrs.dilation == (1, 1)
    if not plain or kernel != [TAPS, TAPS] or not suits(channels, out, target.lanes("float32")):
        return None
    assert isinstance(result, TensorType)
    sizes = [d.value for d in result.shape if isinstance(d, IntImm)]
    return tile_size(*sizes[:3]) if len(sizes) == len(result.shape) else max(POINTS)


def _winograd(call: Call, attrs: Conv2DAttrs, m: int, target: Target) -> RelayExpr:
    weight = call.args[1]
    assert isinstance(weight, Constant)
    channels = weight.data.shape[0]
    made = op.nn.contrib_conv2d_winograd_weight_transform(weight, m, tile_width(channels, target))
    top, left, bottom, right = attrs.padding
    return op.nn.contrib_conv2d_winograd_without_weight_transform(
        call.args[0], made, m, channels, (top, left, bottom, right)
    ).with_fields(span=call.span)


def _with_plain_weight(call: Call, pair: str) -> Call:
    """A convolution with its weight in the order `pair` (of channels), then the window, if it has
    another order without tiles."""
    attrs, weight = call.attrs, call.args[1]
    assert isinstance(attrs, ConvAttrs)
    wanted = pair + attrs.data_layout[1:-1]
    if sorted(attrs.kernel_layout) != sorted(wanted) or attrs.kernel_layout == wanted:
        return call
    moved = transpose(weight, permutation(attrs.kernel_layout, wanted))
    changed = attrs.with_fields(kernel_layout=wanted)
    made = Call(call.op, (call.args[0], moved), changed, span=call.span)
    made.set_checked_type(call.checked_type)
    return made


def _conv(call: Call, target: Target) -> RelayExpr:
    call = _with_plain_weight(call, "OI")
    attrs, weight = call.attrs, call.args[1]
    assert isinstance(attrs, Conv2DAttrs | Conv3DAttrs)
    shape = _known_shape(weight)
    if (attrs.data_layout, attrs.kernel_layout) not in PLAIN or shape is None:
        return call
    axes = attrs.data_layout[1:-1]
    if isinstance(weight, Constant) and isinstance(attrs, Conv2DAttrs):
        m = _winograd_tile(call, attrs, target)
        if m is not None:
            return _winograd(call, attrs, m, target)
    channels, _, *kernel = shape
    if attrs.groups > 1 and attrs.groups == channels == _channels_in(call):
        packed: RelayExpr = op.transpose(weight, (*range(2, len(shape)), 0, 1))
        layout = f"{axes}OI"
    else:
        kind = "conv2d" if attrs.groups == 1 else "group_conv2d"
        tile = tile_width(channels // attrs.groups, target)
        packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile, groups=attrs.groups)
        layout = f"{'' if attrs.groups == 1 else 'G'}O{axes}I{tile}o"
    changed = attrs.with_fields(kernel_layout=layout, channels=channels, kernel_size=tuple(kernel))
    return Call(call.op, (call.args[0], packed), changed, span=call.span)


def _is_one_panel(
    attrs: ConvTransposeAttrs, channels: int, kernel: Sequence[int], target: Target
) -> bool:
    """Whether topi/rule/upsample.py takes a transposed convolution."""
    cuts = any(attrs.padding) or any(attrs.output_padding)
    plain = attrs.groups == 1 and set(attrs.dilation) == {1} and not cuts
    fits = plain and len(kernel) == 2 and tuple(kernel) == attrs.strides
    return fits and is_few(channels, kernel, target.lanes("float32"))


def _as_conv(call: Call, attrs: ConvTransposeAttrs, weight: Constant) -> Call | None:
    """A transposed convolution without strides as the convolution it is, unless that would cut off
    data."""
    kernel = weight.data.shape[2:]
    reach = [(k - 1) * d for k, d in zip(kernel, attrs.dilation, strict=True)]
    ends = (*reach, *map(sum, zip(reach, attrs.output_padding, strict=True)))
    padding = tuple(r - p for r, p in zip(ends, attrs.padding, strict=True))
    if min(padding) < 0:
        return None
    parts = np.split(np.flip(weight.data, tuple(range(2, weight.data.ndim))), attrs.groups)
    flipped = Constant(np.concatenate([part.swapaxes(0, 1) for part in parts]), span=weight.span)
    axes = attrs.data_layout[1:-1]
    made = (op.nn.conv2d if len(axes) == 2 else op.nn.conv3d)(
        call.args[0], infer_here(flipped), attrs.strides, padding, attrs.dilation, attrs.groups,
        len(flipped.data), kernel, attrs.data_layout, f"OI{axes}", attrs.out_layout,
        attrs.out_dtype,
    ).with_fields(span=call.span)  # fmt: skip
    made.set_checked_type(call.checked_type)
    return made


def _conv_transpose(call: Call, target: Target) -> RelayExpr:
    """With packed weights, or depthwise HWIO; as it is where all taps together are one panel
    (topi/rule/upsample.py)."""
    call = _with_plain_weight(call, "IO")
    attrs, weight = call.attrs, call.args[1]
    assert isinstance(attrs, ConvTransposeAttrs)
    shape = _known_shape(weight)
    if (attrs.data_layout, attrs.kernel_layout) not in PLAIN_TRANSPOSED or shape is None:
        return call
    axes = attrs.data_layout[1:-1]
    inputs, per_group, *kernel = shape
    groups, channels = attrs.groups, per_group * attrs.groups
    if _is_one_panel(attrs, channels, kernel, target):
        return call
    if isinstance(weight, Constant) and set(attrs.strides) == {1}:
        flipped = _as_conv(call, attrs, weight)
        if flipped is not None:
            return _conv(flipped, target)
    if 1 < groups == inputs == channels:
        packed: RelayExpr = op.transpose(weight, (*range(2, len(shape)), 0, 1))
        layout = f"{axes}IO"
    else:
        tile = tile_width(per_group, target)
        split = op.reshape(weight, (groups, inputs // groups, per_group, *kernel))
        swapped = op.transpose(split, (0, 2, 1, *range(3, len(shape) + 1)))
        rows = op.reshape(swapped, (channels, inputs // groups, *kernel))
        pack = "conv2d" if groups == 1 else "group_conv2d"
        packed = op.nn.contrib_pack_weight(rows, kind=pack, tile=tile, groups=groups)
        layout = f"{'' if groups == 1 else 'G'}O{axes}I{tile}o"
    changed = attrs.with_fields(kernel_layout=layout, channels=channels, kernel_size=tuple(kernel))
    return Call(call.op, (call.args[0], packed), changed, span=call.span)


def _recurrent(call: Call, target: Target) -> RelayExpr:
    given, attrs = call.args[0], call.attrs
    assert isinstance(attrs, RecurrentAttrs)
    if not isinstance(given, Tuple):
        return call
    data, weight, *rest = given.fields
    if not isinstance(weight, Constant) or weight.data.ndim != 2:
        return call
    gates = attrs.cell.gates
    packed = op.nn.contrib_pack_recurrent(weight, gates, target.lanes("float32"))
    return call.with_fields(args=(Tuple((data, packed, *rest)),))


def _depthwise_bytes(call: Call, target: Target) -> RelayExpr:
    """Of uint8 and float32: the depthwise kernel takes them."""
    attrs = call.attrs
    assert isinstance(attrs, Conv2DAttrs)
    return _conv(call, target) if attrs.groups == attrs.channels == _channels_in(call) else call


WORDS = {
    ("nn.conv2d", "uint8", "float32"): _depthwise_bytes,
    ("nn.dense", "uint8", "int8"): _dense_words,
    ("nn.dense", "bfloat16", "bfloat16"): _dense_words,
    ("nn.conv2d", "uint8", "int8"): _conv_bytes,
}
"""Operator, dtypes of data and weight -> what packs the weight with neighbours side by side."""


def alter_op_layout(root: RelayExpr, target: Target) -> RelayExpr:
    """Pack the constant weights below root for a target. Needs checked types."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        if isinstance(new, Call) and op_of(new) == "nn.recurrent":
            return _typed_like(_recurrent(new, target), old)
        if not isinstance(new, Call) or len(new.args) < 2:
            return new
        if op_of(new) in TRANSPOSED and all(map(_is_float32, (old, *new.args))):
            new.set_checked_type(old.checked_type)
            return _typed_like(_conv_transpose(new, target), old)
        is_constant = isinstance(new.args[1], Constant)
        if not is_constant and op_of(new) not in CONVOLUTIONS:
            return new
        words = WORDS.get((op_of(new), _dtype(new.args[0]), _dtype(new.args[1])))
        if is_constant and words is not None and _dtype(old) in ("int32", "float32"):
            new.set_checked_type(old.checked_type)
            return _typed_like(words(new, target), old)
        if not _is_float32(old):
            return new
        name = op_of(new)
        if name == "nn.contrib_dense_nibbles":
            new = dense_nibbles(new, target)
            name = op_of(new)
        if not _is_float32(new.args[0]) or not _is_float32(new.args[1]):
            return new
        if name == "nn.dense":
            return _typed_like(_dense(new, target), old)
        if name not in CONVOLUTIONS:
            return new
        new.set_checked_type(old.checked_type)
        return _typed_like(_conv(new, target), old)

    return rewrite_graph(root, rewrite)


def _typed_like(new: RelayExpr, old: RelayExpr) -> RelayExpr:
    new.set_checked_type(old.checked_type)
    return new


def AlterOpLayout(target: Target) -> Pass:  # noqa: N802
    """The pass described at the top of this file."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        return map_functions(module, on_body(lambda body: alter_op_layout(body, target)))

    return Pass("AlterOpLayout", transform, 3, (InferType(),))
