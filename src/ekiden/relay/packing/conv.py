"""Packing of convolution weights into panels; Winograd, pointwise and depthwise forms.

nn.conv2d(%x, W, NHWC, OIHW)          ->  nn.conv2d(%x, packed W, NHWC, OHWI64o)
nn.conv2d(%x u8, W s8, NHWC, OIHW)    ->  kernel layout OHWI64o4i: four channels side by side; or
                                          OHWI64o2i, of bytes or widened to int16
nn.conv2d(%x u8, W s8, 1x1)           ->  the dense layer over all pixels that it is
nn.conv2d(%x u8, W s8, groups=G)      ->  GOHWI{tile}o4i, several small groups as one
nn.conv2d(%x u8, few channels)        ->  nn.conv2d(sliding_window(%x), ...), pointwise
nn.conv2d(%x bf16, W bf16, NHWC)      ->  kernel layout OHWI64o2i, over data with their border
nn.conv2d(%x, W 3x3, no strides)      ->  Winograd's method, also of u8 and s8
nn.conv2d(..., groups=G)              ->  kernel layout GOHWI{tile}o; depthwise: HWOI
nn.conv2d_transpose(%x, W, NHWC, IOHW)  ->  kernel layout OHWI{tile}o, GOHWI{tile}o or HWIO;
                                          without strides: nn.conv2d of the flipped weight
nn.conv3d, nn.conv3d_transpose (NDHWC)  ->  the same with one more axis
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import RelayExpr
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.kernels.cost_model import widens_bytes
from ekiden.kernels.families import merged_overrides
from ekiden.kernels.family import MatmulSizes
from ekiden.kernels.micro_kernels.register_tiles import DOT_INSTRUCTION_BY_DTYPE
from ekiden.kernels.quantized.int8_dot import has_narrow_dot, max_words_per_instruction
from ekiden.kernels.spaces.winograd import (
    FLOAT_ARITHMETIC,
    INT8_ARITHMETIC,
    WinogradArithmetic,
    choose_tile_size,
)
from ekiden.relay import op
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.nn.window_attrs import Conv2DAttrs, Conv3DAttrs, ConvAttrs, ConvTransposeAttrs
from ekiden.relay.packing.common import (
    decision_names,
    num_rows,
    panel_width,
    static_last_dim,
    static_shape,
    tensor_dtype,
)
from ekiden.relay.packing.dense import pack_int8_dense, pair_words
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.scope_tree import infer_local_type
from ekiden.relay.transform.layout.convert_layout import emit_transpose
from ekiden.target import Target
from ekiden.topi.layout import transpose_axes
from ekiden.topi.nn.transposed_convolution import fits_one_panel
from ekiden.topi.nn.weight_packing import (
    DOT_WORD_BY_DTYPE,
    DOT_WORD_CHANNELS,
    WORD_PAIR_ELEMENTS,
)
from ekiden.topi.nn.winograd import (
    INTERPOLATION_POINTS,
    WINOGRAD_TAPS,
    do_sums_fit_int32,
    fills_vectors,
)

PACKED_CONV_FAMILY, WINOGRAD_CONV_FAMILY, PACKED_CONV_TRANSPOSE_FAMILY = (
    "conv_nhwc_pack",
    "winograd_conv2d",
    "conv_transpose_pack",
)
"""Names of kernel families."""
ASSUMED_PIXELS = 1 << 10
"""Assumed pixels of a result of unknown size."""
CONV_LAYOUTS = (("NHWC", "OIHW"), ("NDHWC", "OIDHW"))
"""Layouts (data, weight) of convolutions with packed kernels."""
CONV_TRANSPOSE_LAYOUTS = (("NHWC", "IOHW"), ("NDHWC", "IODHW"))


def pack_int8_conv(call: Call, target: Target) -> RelayExpr:
    """Pack the weight of a uint8/int8 or bfloat16 convolution.

    A border is added before, as zeros.
    """
    attrs, (data, weight) = call.attrs, call.args
    assert isinstance(attrs, Conv2DAttrs)
    assert isinstance(weight, Constant)
    dtype = tensor_dtype(data)
    word, kind = DOT_WORD_BY_DTYPE[dtype], "conv2d_bf16" if dtype == "bfloat16" else "conv2d_u8s8"
    plain = attrs.data_layout == "NHWC" and attrs.kernel_layout == "OIHW"
    if not plain or attrs.out_dtype != ("int32" if dtype == "uint8" else "float32"):
        return call
    groups = attrs.groups
    if dtype == "uint8" and groups > 1 and not has_narrow_dot(target):
        merged = merged_groups(weight.data.shape, groups, target.lanes("float32"))
        if merged > 1:
            return pack_int8_conv(_merge_groups(call, attrs, weight, merged), target)
    channels, depth, *kernel = weight.data.shape
    missing, none = -depth % word, (0, 0)
    if groups > 1 and (missing or dtype == "bfloat16"):
        # A word holds neighbours of one group only.
        return call  # words would be of two groups
    if (
        dtype == "uint8"
        and has_narrow_dot(target)
        and 2 * depth <= word
        and groups == 1
        and math.prod(kernel) > 1
        and attrs.dilation == (1, 1)
    ):
        return pack_int8_conv(
            _im2col_conv(call, attrs, weight, word * max_words_per_instruction(target)), target
        )
    is_pointwise = tuple(kernel) == attrs.strides == (1, 1) and not any(attrs.padding)
    if dtype == "uint8" and groups == 1 and is_pointwise:
        return pack_int8_dense(_pointwise_to_dense(call, weight), target)
    m = _choose_int8_winograd_tile(call, attrs, target) if dtype == "uint8" else 0
    if m:
        return _emit_winograd(call, attrs, m, target, INT8_ARITHMETIC)
    # Words are read whole: channels are filled up, and the border exists in memory.
    if missing or any(attrs.padding):
        top, left_pad, bottom, right = attrs.padding
        widths = (none, (top, bottom), (left_pad, right), (0, missing))
        data = op.nn.pad(data, widths, Constant(np.zeros((), to_numpy(dtype))))
        padded = np.pad(weight.data, (none, (0, missing), none, none))
        weight = Constant(padded, span=weight.span)
    steps = -(-depth // word) * math.prod(kernel)
    product = MatmulSizes(num_rows(call), channels // groups, steps, dtype)
    if kind == "conv2d_u8s8" and widens_bytes(target):
        word = WORD_PAIR_ELEMENTS
        # Of images of unknown size enough pixels are assumed that larger weights pay.
        kind, product, weight = pair_words(kind, product, weight, target, ASSUMED_PIXELS)
    tile = panel_width(PACKED_CONV_FAMILY, product, target, call)
    kind, group = (kind, "") if groups == 1 else (f"group_{kind}", "G")
    packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile, groups=groups)
    changed = attrs.with_fields(
        kernel_layout=f"{group}OHWI{tile}o{word}i",
        channels=channels,
        kernel_size=tuple(kernel),
        padding=(0, 0, 0, 0),
    )
    return Call(call.op, (data, packed), changed, span=call.span)


def merged_groups(shape: Sequence[int], groups: int, lanes: int) -> int:
    """Return the number of adjacent groups of an int8 grouped convolution to merge into one.

    As many as have no more output channels together than a vector has lanes, and whole words of
    input channels: each word is multiplied by all lanes anyway, so that zeros in the lanes of the
    others cost no product, and results are stored by whole vectors (Zen 4, 28 x 28 pixels of 32
    groups of 4 channels with VNNI: 109 to 73 us).

    Args:
        shape: The shape of the weight, OIHW.
        groups: The groups.
        lanes: Words of a vector.
    """
    outputs, depth = shape[0] // groups, shape[1]
    fitting = (
        n
        for n in range(min(groups, lanes // max(outputs, 1)), 0, -1)
        if groups % n == 0 and (n * depth % DOT_WORD_CHANNELS == 0 or n == groups)
    )
    return next(fitting, 1)


def _merge_groups(call: Call, attrs: Conv2DAttrs, weight: Constant, merged: int) -> Call:
    """Rewrite a grouped convolution with every `merged` groups merged into one, whose weight is
    block diagonal.
    """
    channels, depth, *kernel = weight.data.shape
    groups = attrs.groups // merged
    group_weights = weight.data.reshape(groups, merged, -1, depth, *kernel)
    diagonal = np.zeros((groups, merged, group_weights.shape[2], merged, depth, *kernel), np.int8)
    for n in range(merged):
        diagonal[:, n, :, n] = group_weights[:, n]
    flat = Constant(diagonal.reshape(channels, merged * depth, *kernel), span=weight.span)
    changed = attrs.with_fields(groups=groups)
    convolution = Call(call.op, (call.args[0], infer_local_type(flat)), changed, span=call.span)
    convolution.set_checked_type(call.checked_type)
    return convolution


def _pointwise_to_dense(call: Call, weight: Constant) -> Call:
    """Rewrite a pointwise convolution as a dense layer over all pixels."""
    channels, depth = weight.data.shape[:2]
    flat = infer_local_type(Constant(weight.data.reshape(channels, depth), span=weight.span))
    product = op.nn.dense(call.args[0], flat, channels, out_dtype=tensor_dtype(call))
    product = product.with_fields(span=call.span)
    product.set_checked_type(call.checked_type)
    return product


def _im2col_conv(call: Call, attrs: Conv2DAttrs, weight: Constant, step: int) -> Call:
    """Rewrite a convolution of few channels as a pointwise one over im2col windows.

    Words of one channel would be zeros by half and more.
    """
    top, left_pad, bottom, right = attrs.padding
    channels, depth, *kernel = weight.data.shape
    # Channels fastest, as the windows of NHWC data have them.
    size, none = depth * math.prod(kernel), (0, 0)
    missing = (0, -size % step)
    zero, data = infer_local_type(Constant(np.zeros((), np.uint8))), call.args[0]
    if any(attrs.padding):
        data = infer_local_type(
            op.nn.pad(data, (none, (top, bottom), (left_pad, right), none), zero)
        )
    windows = infer_local_type(op.sliding_window(data, 1, (*kernel, depth), (*attrs.strides, 1)))
    rows = infer_local_type(op.reshape(windows, (0, 0, 0, size)))
    if missing[1]:
        rows = infer_local_type(op.nn.pad(rows, (none, none, none, missing), zero))
    flat = np.pad(weight.data.transpose(0, 2, 3, 1).reshape(channels, size), (none, missing))
    packed = Constant(flat[:, :, None, None], span=weight.span)
    changed = attrs.with_fields(
        strides=(1, 1), padding=(0, 0, 0, 0), kernel_size=(1, 1), channels=channels
    )
    pointwise = Call(call.op, (rows, infer_local_type(packed)), changed, span=call.span)
    pointwise.set_checked_type(call.checked_type)
    return pointwise


def _choose_winograd_tile(
    call: Call,
    attrs: Conv2DAttrs,
    target: Target,
    kind: WinogradArithmetic = FLOAT_ARITHMETIC,
    sides: Collection[int] = tuple(INTERPOLATION_POINTS),
) -> int:
    """Return the Winograd output tile size from `sides` if the method pays, else 0; its weights
    take up to four times the memory (int8: eight).
    """
    weight, result = call.args[1], call.checked_type
    assert isinstance(weight, Constant)
    out, channels, *kernel = weight.data.shape
    plain = attrs.groups == 1 and attrs.strides == attrs.dilation == (1, 1)
    if (
        not plain
        or kernel != [WINOGRAD_TAPS, WINOGRAD_TAPS]
        or not fills_vectors(channels, out, target.lanes("float32"))
    ):
        return 0
    assert isinstance(result, TensorType)
    sizes = [d.value for d in result.shape if isinstance(d, IntImm)]
    n, height, width, *_ = (*sizes, 0, 0, 0)
    # Of an image of unknown size the tile is chosen for the method alone.
    image = (n, height, width) if len(sizes) == len(result.shape) else None
    fixed = merged_overrides(decision_names(WINOGRAD_CONV_FAMILY, call))
    return choose_tile_size(image, (channels, out), target, fixed, kind, sides)


def _choose_int8_winograd_tile(call: Call, attrs: Conv2DAttrs, target: Target) -> int:
    """Return the int8 Winograd tile size whose sums fit, or 0; needs int16 products on the
    target.
    """
    weight = call.args[1]
    assert isinstance(weight, Constant)
    if not target.has(DOT_INSTRUCTION_BY_DTYPE[INT8_ARITHMETIC.dtype]):
        return 0
    sides = [m for m in INTERPOLATION_POINTS if do_sums_fit_int32(weight.data, m)]
    return _choose_winograd_tile(call, attrs, target, INT8_ARITHMETIC, sides)


def _emit_winograd(
    call: Call,
    attrs: Conv2DAttrs,
    m: int,
    target: Target,
    kind: WinogradArithmetic = FLOAT_ARITHMETIC,
) -> RelayExpr:
    weight = call.args[1]
    assert isinstance(weight, Constant)
    channels, depth = weight.data.shape[:2]
    product = MatmulSizes(None, channels, -(-depth // kind.elements_per_step), kind.dtype)
    tile = panel_width(WINOGRAD_CONV_FAMILY, product, target, call)
    transformed = op.nn.contrib_conv2d_winograd_weight_transform(weight, m, tile)
    top, left_pad, bottom, right = attrs.padding
    return op.nn.contrib_conv2d_winograd_without_weight_transform(
        call.args[0], transformed, m, channels, (top, left_pad, bottom, right)
    ).with_fields(span=call.span)


def _to_plain_weight(call: Call, pair: str) -> Call:
    """Return a convolution with its weight transposed to channels `pair`, then window.

    Only weights in another order without tiles are changed.
    """
    attrs, weight = call.attrs, call.args[1]
    assert isinstance(attrs, ConvAttrs)
    plain_layout = pair + attrs.data_layout[1:-1]
    if sorted(attrs.kernel_layout) != sorted(plain_layout) or attrs.kernel_layout == plain_layout:
        return call
    moved = emit_transpose(weight, transpose_axes(attrs.kernel_layout, plain_layout))
    changed = attrs.with_fields(kernel_layout=plain_layout)
    changed_call = Call(call.op, (call.args[0], moved), changed, span=call.span)
    changed_call.set_checked_type(call.checked_type)
    return changed_call


def pack_conv(call: Call, target: Target) -> RelayExpr:
    """Pack a float32 convolution: Winograd, depthwise or panels."""
    call = _to_plain_weight(call, "OI")
    attrs, weight = call.attrs, call.args[1]
    assert isinstance(attrs, Conv2DAttrs | Conv3DAttrs)
    shape = static_shape(weight)
    if (attrs.data_layout, attrs.kernel_layout) not in CONV_LAYOUTS or shape is None or 0 in shape:
        return call
    axes = attrs.data_layout[1:-1]
    if isinstance(weight, Constant) and isinstance(attrs, Conv2DAttrs):
        m = _choose_winograd_tile(call, attrs, target) if is_rewrite_allowed("Winograd") else 0
        if m:
            return _emit_winograd(call, attrs, m, target)
    channels, _, *kernel = shape
    if attrs.groups > 1 and attrs.groups == channels == static_last_dim(call):
        packed: RelayExpr = op.transpose(weight, (*range(2, len(shape)), 0, 1))
        layout = f"{axes}OI"
    else:
        kind = "conv2d" if attrs.groups == 1 else "group_conv2d"
        depth = shape[1] * math.prod(kernel)
        product = MatmulSizes(num_rows(call), channels // attrs.groups, depth)
        tile = panel_width(PACKED_CONV_FAMILY, product, target, call)
        packed = op.nn.contrib_pack_weight(weight, kind=kind, tile=tile, groups=attrs.groups)
        layout = f"{'' if attrs.groups == 1 else 'G'}O{axes}I{tile}o"
    changed = attrs.with_fields(kernel_layout=layout, channels=channels, kernel_size=tuple(kernel))
    return Call(call.op, (call.args[0], packed), changed, span=call.span)


def _fits_upsample_kernel(
    attrs: ConvTransposeAttrs, channels: int, kernel: Sequence[int], target: Target
) -> bool:
    """Return whether kernels/cpu/upsample.py supports a transposed convolution."""
    cuts = any(attrs.padding) or any(attrs.output_padding)
    plain = attrs.groups == 1 and set(attrs.dilation) == {1} and not cuts
    fits = plain and len(kernel) == 2 and tuple(kernel) == attrs.strides
    return fits and fits_one_panel(channels, kernel, target.lanes("float32"))


def _conv_transpose_to_conv(call: Call, attrs: ConvTransposeAttrs, weight: Constant) -> Call | None:
    """Rewrite a transposed convolution of unit stride as a convolution, or return None where it
    would crop.
    """
    kernel = weight.data.shape[2:]
    reach = [(k - 1) * d for k, d in zip(kernel, attrs.dilation, strict=True)]
    # A transposed convolution is the convolution of the flipped weight over data with a full
    # border.
    ends = (*reach, *map(sum, zip(reach, attrs.output_padding, strict=True)))
    padding = tuple(r - p for r, p in zip(ends, attrs.padding, strict=True))
    if min(padding) < 0:
        return None
    group_weights = np.split(np.flip(weight.data, tuple(range(2, weight.data.ndim))), attrs.groups)
    flipped = Constant(
        np.concatenate([group.swapaxes(0, 1) for group in group_weights]), span=weight.span
    )
    axes = attrs.data_layout[1:-1]
    convolution = (op.nn.conv2d if len(axes) == 2 else op.nn.conv3d)(
        call.args[0],
        infer_local_type(flipped),
        attrs.strides,
        padding,
        attrs.dilation,
        attrs.groups,
        len(flipped.data),
        kernel,
        attrs.data_layout,
        f"OI{axes}",
        attrs.out_layout,
        attrs.out_dtype,
    ).with_fields(span=call.span)
    convolution.set_checked_type(call.checked_type)
    return convolution


def pack_conv_transpose(call: Call, target: Target) -> RelayExpr:
    """Pack a transposed convolution's weight, or rewrite it as depthwise HWIO.

    It stays as it is where all taps together are one panel (kernels/cpu/upsample.py).
    """
    call = _to_plain_weight(call, "IO")
    attrs, weight = call.attrs, call.args[1]
    assert isinstance(attrs, ConvTransposeAttrs)
    shape = static_shape(weight)
    layouts = attrs.data_layout, attrs.kernel_layout
    if layouts not in CONV_TRANSPOSE_LAYOUTS or shape is None or 0 in shape:
        return call
    axes = attrs.data_layout[1:-1]
    inputs, per_group, *kernel = shape
    groups, channels = attrs.groups, per_group * attrs.groups
    if _fits_upsample_kernel(attrs, channels, kernel, target):
        return call
    # Flipping is possible at compile time only.
    if isinstance(weight, Constant) and set(attrs.strides) == {1}:
        flipped = _conv_transpose_to_conv(call, attrs, weight)
        if flipped is not None:
            return pack_conv(flipped, target)
    if 1 < groups == inputs == channels:
        packed: RelayExpr = op.transpose(weight, (*range(2, len(shape)), 0, 1))
        layout = f"{axes}IO"
    else:
        product = MatmulSizes(None, per_group, inputs // groups)
        tile = panel_width(PACKED_CONV_TRANSPOSE_FAMILY, product, target, call)
        sizes = (groups, inputs // groups, per_group, *kernel)
        split = op.reshape(weight, sizes, allowzero=True)
        swapped = op.transpose(split, (0, 2, 1, *range(3, len(shape) + 1)))
        rows = op.reshape(swapped, (channels, inputs // groups, *kernel), allowzero=True)
        pack = "conv2d" if groups == 1 else "group_conv2d"
        packed = op.nn.contrib_pack_weight(rows, kind=pack, tile=tile, groups=groups)
        layout = f"{'' if groups == 1 else 'G'}O{axes}I{tile}o"
    changed = attrs.with_fields(kernel_layout=layout, channels=channels, kernel_size=tuple(kernel))
    return Call(call.op, (call.args[0], packed), changed, span=call.span)


def pack_int8_depthwise(call: Call, target: Target) -> RelayExpr:
    """Pack an int8 or float32 convolution if the depthwise kernel supports it."""
    attrs = call.attrs
    assert isinstance(attrs, Conv2DAttrs)
    return (
        pack_conv(call, target) if attrs.groups == attrs.channels == static_last_dim(call) else call
    )
