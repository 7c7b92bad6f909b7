"""Attributes of convolutions and poolings, and normalisation of their strides, padding and window
sizes.

Attributes have TVM's names and defaults. Padding names what is added before every spatial axis,
then what is added after: (left, right), (top, left, bottom, right), (front, top, left, back,
bottom, right).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.node import always_printed_field, node
from ekiden.ir.prim import PrimExpr
from ekiden.relay.op._window import WindowAttrs
from ekiden.topi.dimensions import as_dim, unify_dim

Ints = int | Sequence[int]


def expand_per_axis(value: Ints, rank: int) -> tuple[int, ...]:
    """Expand a number, or one per axis, to a tuple with one per spatial axis."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def expand_padding(padding: Ints, rank: int) -> tuple[int, ...]:
    """Expand padding to one number before each axis, then one after each.

    Raises:
        ValueError: There is any other number of paddings.
    """
    widths = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(widths) not in (1, rank, 2 * rank):
        counts = "1 or 2" if rank == 1 else f"1, {rank} or {2 * rank}"
        raise ValueError(f"padding must be {counts} numbers, got {widths}")
    # One width per axis is the same before and after it.
    return widths * (2 * rank // len(widths))


def expand_kernel_size(kernel_size: Ints | None, rank: int) -> tuple[int, ...] | None:
    """Return the kernel size per spatial axis, or None if only the weight determines it."""
    return None if kernel_size is None else expand_per_axis(kernel_size, rank)


@node("relay.attrs.ConvAttrs")
class ConvAttrs(WindowAttrs):
    """Attributes of convolutions: geometry and layouts.

    `channels` and `kernel_size` repeat what the weight's shape says: they are checked against it,
    and needed where a packed weight is padded. An empty `out_layout` is `data_layout`, an empty
    `out_dtype` that of the data.
    """

    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1
    channels: int | None = None
    kernel_size: tuple[int, ...] | None = None
    data_layout: str = ""
    kernel_layout: str = ""
    out_layout: str = ""
    out_dtype: str = ""


@node("relay.attrs.Conv1DAttrs")
class Conv1DAttrs(ConvAttrs):
    """Attributes of conv1d."""

    strides: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1,)
    data_layout: str = "NCW"
    kernel_layout: str = "OIW"


@node("relay.attrs.Conv2DAttrs")
class Conv2DAttrs(ConvAttrs):
    """Attributes of conv2d."""

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"


@node("relay.attrs.Conv3DAttrs")
class Conv3DAttrs(ConvAttrs):
    """Attributes of conv3d."""

    strides: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    data_layout: str = "NCDHW"
    kernel_layout: str = "OIDHW"


@node("relay.attrs.DeformableConv2DAttrs")
class DeformableConv2DAttrs(Conv2DAttrs):
    """Attributes of deformable_conv2d; each deformable group has its own offsets. What lies before
    an image's first pixel is 0; behind its last one is interpolated with zeros ("inside", as in
    TVM). Or that is done on all sides ("zeros", as in ONNX and PyTorch).
    """

    deformable_groups: int = 1
    border: str = "inside"


@node("relay.attrs.ConvTransposeAttrs")
class ConvTransposeAttrs(ConvAttrs):
    """Attributes of transposed convolutions; `output_padding` extends the end of every axis."""

    output_padding: tuple[int, ...] = ()


@node("relay.attrs.Conv1DTransposeAttrs")
class Conv1DTransposeAttrs(ConvTransposeAttrs):
    """Attributes of conv1d_transpose."""

    strides: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1,)
    data_layout: str = "NCW"
    kernel_layout: str = "IOW"
    output_padding: tuple[int, ...] = (0,)


@node("relay.attrs.Conv2DTransposeAttrs")
class Conv2DTransposeAttrs(ConvTransposeAttrs):
    """Attributes of conv2d_transpose."""

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    data_layout: str = "NCHW"
    kernel_layout: str = "IOHW"
    output_padding: tuple[int, ...] = (0, 0)


@node("relay.attrs.Conv3DTransposeAttrs")
class Conv3DTransposeAttrs(ConvTransposeAttrs):
    """Attributes of conv3d_transpose."""

    strides: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    data_layout: str = "NCDHW"
    kernel_layout: str = "IODHW"
    output_padding: tuple[int, ...] = (0, 0, 0)


@node("relay.attrs.MaxPoolAttrs")
class MaxPoolAttrs(WindowAttrs):
    """Attributes of max pooling: geometry and layout; `ceil_mode` keeps a last partial window."""

    pool_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    layout: str = ""
    out_layout: str = ""
    ceil_mode: bool = False


@node("relay.attrs.AvgPoolAttrs")
class AvgPoolAttrs(MaxPoolAttrs):
    """Attributes of average pooling; `count_include_pad` counts padding (but nothing beyond it) in
    the mean.
    """

    count_include_pad: bool = False


@node("relay.attrs.MaxPool1DAttrs")
class MaxPool1DAttrs(MaxPoolAttrs):
    """Attributes of max_pool1d."""

    pool_size: tuple[int, ...] = always_printed_field((1,))
    strides: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    layout: str = "NCW"


@node("relay.attrs.AvgPool1DAttrs")
class AvgPool1DAttrs(AvgPoolAttrs):
    """Attributes of avg_pool1d."""

    pool_size: tuple[int, ...] = always_printed_field((1,))
    strides: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    layout: str = "NCW"


@node("relay.attrs.MaxPool2DAttrs")
class MaxPool2DAttrs(MaxPoolAttrs):
    """Attributes of max_pool2d."""

    pool_size: tuple[int, ...] = always_printed_field((1, 1))
    strides: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    layout: str = "NCHW"


@node("relay.attrs.AvgPool2DAttrs")
class AvgPool2DAttrs(AvgPoolAttrs):
    """Attributes of avg_pool2d."""

    pool_size: tuple[int, ...] = always_printed_field((1, 1))
    strides: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    layout: str = "NCHW"


@node("relay.attrs.MaxPool3DAttrs")
class MaxPool3DAttrs(MaxPoolAttrs):
    """Attributes of max_pool3d."""

    pool_size: tuple[int, ...] = always_printed_field((1, 1, 1))
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    layout: str = "NCDHW"


@node("relay.attrs.AvgPool3DAttrs")
class AvgPool3DAttrs(AvgPoolAttrs):
    """Attributes of avg_pool3d."""

    pool_size: tuple[int, ...] = always_printed_field((1, 1, 1))
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    layout: str = "NCDHW"


def check_weight(attrs: ConvAttrs, out: PrimExpr, window: Sequence[PrimExpr]) -> None:
    """Raise ValueError where `channels` or `kernel_size` disagree with the weight."""
    # Only what the program gave: both attributes are optional.
    pairs = [] if attrs.channels is None else [("channels", "output channels of ", out)]
    sizes = [] if attrs.channels is None else [attrs.channels]
    if attrs.kernel_size is not None:
        if len(attrs.kernel_size) != len(window):
            raise ValueError(
                f"kernel_size must have {len(window)} numbers, got {attrs.kernel_size}"
            )
        pairs += [("kernel_size", "", extent) for extent in window]
        sizes += attrs.kernel_size
    for (attribute, what, extent), size in zip(pairs, sizes, strict=True):
        # An unknown extent agrees with any attribute.
        if unify_dim(extent, as_dim(size)) is None:
            raise ValueError(
                f"attribute '{attribute}' and {what}'weight' must agree, got {size} and"
                f" {format_prim_expr(extent)}"
            )


def check_output_padding(attrs: ConvTransposeAttrs) -> None:
    """Raise ValueError where output_padding is not smaller than the stride or the dilation."""
    steps = zip(attrs.output_padding, attrs.strides, attrs.dilation, strict=True)
    # More than a step would add a whole window position, which has another inverse.
    if any(padding >= max(stride, dilation) for padding, stride, dilation in steps):
        raise ValueError(
            f"output_padding {attrs.output_padding} must be below strides {attrs.strides} or"
            " dilation"
        )
