"""How windows move over the spatial axes: the attributes of convolutions and pooling, and the
short forms in which users give them.

Attributes have TVM's names and defaults. Padding names what is added before every spatial axis,
then what is added after: (left, right), (top, left, bottom, right), (front, top, left, back,
bottom, right).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.node import node, shown
from ekiden.ir.prim import PrimExpr
from ekiden.ir.text import prim_text
from ekiden.relay.op._window import WindowAttrs
from ekiden.topi.dimensions import as_dim, unify_dim

Ints = int | Sequence[int]


def spread(value: Ints, rank: int) -> tuple[int, ...]:
    """Return one number per spatial axis, from one for all axes or from one for every axis."""
    return (value,) * rank if isinstance(value, int) else tuple(value)


def sides(padding: Ints, rank: int) -> tuple[int, ...]:
    """Return padding before every axis, then after every axis, from one number, one or two per
    axis.

    Raises:
        ValueError: There is any other number of paddings.
    """
    widths = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(widths) not in (1, rank, 2 * rank):
        counts = "1 or 2" if rank == 1 else f"1, {rank} or {2 * rank}"
        raise ValueError(f"padding must be {counts} numbers, got {widths}")
    return widths * (2 * rank // len(widths))


def window_size(kernel_size: Ints | None, rank: int) -> tuple[int, ...] | None:
    """Return the window's extent on every spatial axis, or None if only the weight has it."""
    return None if kernel_size is None else spread(kernel_size, rank)


@node("relay.attrs.ConvAttrs")
class ConvAttrs(WindowAttrs):
    """Geometry and layouts of a convolution.

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
    """A convolution over one axis."""

    strides: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1,)
    data_layout: str = "NCW"
    kernel_layout: str = "OIW"


@node("relay.attrs.Conv2DAttrs")
class Conv2DAttrs(ConvAttrs):
    """A convolution over two axes."""

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"


@node("relay.attrs.Conv3DAttrs")
class Conv3DAttrs(ConvAttrs):
    """A convolution over three axes."""

    strides: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    data_layout: str = "NCDHW"
    kernel_layout: str = "OIDHW"


@node("relay.attrs.DeformableConv2DAttrs")
class DeformableConv2DAttrs(Conv2DAttrs):
    """A convolution whose taps are moved; each deformable group has offsets of its own. What
    lies before an image's first pixel is 0; behind its last one is interpolated with zeros
    ("inside", as in TVM). Or that is done on all sides ("zeros", as in ONNX and PyTorch)."""

    deformable_groups: int = 1
    border: str = "inside"


@node("relay.attrs.ConvTransposeAttrs")
class ConvTransposeAttrs(ConvAttrs):
    """A transposed convolution; `output_padding` adds to the end of every axis."""

    output_padding: tuple[int, ...] = ()


@node("relay.attrs.Conv1DTransposeAttrs")
class Conv1DTransposeAttrs(ConvTransposeAttrs):
    """A transposed convolution over one axis."""

    strides: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1,)
    data_layout: str = "NCW"
    kernel_layout: str = "IOW"
    output_padding: tuple[int, ...] = (0,)


@node("relay.attrs.Conv2DTransposeAttrs")
class Conv2DTransposeAttrs(ConvTransposeAttrs):
    """A transposed convolution over two axes."""

    strides: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    data_layout: str = "NCHW"
    kernel_layout: str = "IOHW"
    output_padding: tuple[int, ...] = (0, 0)


@node("relay.attrs.Conv3DTransposeAttrs")
class Conv3DTransposeAttrs(ConvTransposeAttrs):
    """A transposed convolution over three axes."""

    strides: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1, 1)
    data_layout: str = "NCDHW"
    kernel_layout: str = "IODHW"
    output_padding: tuple[int, ...] = (0, 0, 0)


@node("relay.attrs.MaxPoolAttrs")
class MaxPoolAttrs(WindowAttrs):
    """Geometry and layout of a maximum over windows; `ceil_mode` keeps a last, partial window."""

    pool_size: tuple[int, ...]
    strides: tuple[int, ...]
    dilation: tuple[int, ...]
    padding: tuple[int, ...]
    layout: str = ""
    out_layout: str = ""
    ceil_mode: bool = False


@node("relay.attrs.AvgPoolAttrs")
class AvgPoolAttrs(MaxPoolAttrs):
    """Geometry and layout of a mean over windows; `count_include_pad` counts the padding (nothing
    beyond it) in the mean."""

    count_include_pad: bool = False


@node("relay.attrs.MaxPool1DAttrs")
class MaxPool1DAttrs(MaxPoolAttrs):
    """A maximum over windows of one axis."""

    pool_size: tuple[int, ...] = shown((1,))
    strides: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    layout: str = "NCW"


@node("relay.attrs.AvgPool1DAttrs")
class AvgPool1DAttrs(AvgPoolAttrs):
    """A mean over windows of one axis."""

    pool_size: tuple[int, ...] = shown((1,))
    strides: tuple[int, ...] = (1,)
    dilation: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0, 0)
    layout: str = "NCW"


@node("relay.attrs.MaxPool2DAttrs")
class MaxPool2DAttrs(MaxPoolAttrs):
    """A maximum over windows of two axes."""

    pool_size: tuple[int, ...] = shown((1, 1))
    strides: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    layout: str = "NCHW"


@node("relay.attrs.AvgPool2DAttrs")
class AvgPool2DAttrs(AvgPoolAttrs):
    """A mean over windows of two axes."""

    pool_size: tuple[int, ...] = shown((1, 1))
    strides: tuple[int, ...] = (1, 1)
    dilation: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0)
    layout: str = "NCHW"


@node("relay.attrs.MaxPool3DAttrs")
class MaxPool3DAttrs(MaxPoolAttrs):
    """A maximum over windows of three axes."""

    pool_size: tuple[int, ...] = shown((1, 1, 1))
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    layout: str = "NCDHW"


@node("relay.attrs.AvgPool3DAttrs")
class AvgPool3DAttrs(AvgPoolAttrs):
    """A mean over windows of three axes."""

    pool_size: tuple[int, ...] = shown((1, 1, 1))
    strides: tuple[int, ...] = (1, 1, 1)
    dilation: tuple[int, ...] = (1, 1, 1)
    padding: tuple[int, ...] = (0, 0, 0, 0, 0, 0)
    layout: str = "NCDHW"


def check_weight(attrs: ConvAttrs, out: PrimExpr, window: Sequence[PrimExpr]) -> None:
    """Raise ValueError where the attributes `channels` and `kernel_size`, which need not be given,
    do not agree with a weight's output channels and window."""
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
        if unify_dim(extent, as_dim(size)) is None:
            raise ValueError(
                f"attribute '{attribute}' and {what}'weight' must agree, got {size} and"
                f" {prim_text(extent)}"
            )


def check_output_padding(attrs: ConvTransposeAttrs) -> None:
    """Raise ValueError where a transposed convolution adds as much behind its result as a step of
    its windows, or of their taps, is wide."""
    steps = zip(attrs.output_padding, attrs.strides, attrs.dilation, strict=True)
    if any(padding >= max(stride, dilation) for padding, stride, dilation in steps):
        raise ValueError(
            f"output_padding {attrs.output_padding} must be below strides {attrs.strides} or"
            " dilation"
        )
