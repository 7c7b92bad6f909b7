"""Stage splitting of convolutions and products for general kernels: explicit padding, transposed
convolutions by residue, groups as separate products, Winograd by its transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from ekiden import te
from ekiden._lazy import LazyModule
from ekiden.arith import simplify
from ekiden.ir.intrinsic import if_then_else
from ekiden.ir.prim import FloorDiv, FloorMod, PrimExpr, Var, const, is_const
from ekiden.ir.prim import cast as cast_to
from ekiden.ir.prim_visitor import rewrite, substitute
from ekiden.kernels.scheduled_kernel import replace_computation
from ekiden.topi.dimensions import as_dim
from ekiden.topi.layout import packed_tile_size, permute_values
from ekiden.topi.nn.convolution import conv, guarded_load, in_range_conditions, weight_element
from ekiden.topi.nn.weight_packing import spatial_letters

if TYPE_CHECKING:
    from ekiden.topi.nn import pool, winograd
else:
    pool = LazyModule("ekiden.topi.nn.pool")
    winograd = LazyModule("ekiden.topi.nn.winograd")

StagedResult = tuple[te.Tensor, list[te.Tensor]]
"""Replacement of a result, and the computations that must be stored."""


def split_stages(outputs: list[te.Tensor]) -> tuple[list[te.Tensor], list[te.Tensor]]:
    """Return the outputs with the first convolution split into stages, and the computations that
    must be stored. Further convolutions of a kernel are not split.
    """
    for tensor in te.post_order_tensors(outputs):
        for is_such, made_of in STAGE_REWRITES:
            if is_such(tensor):
                replacement, stored = made_of(tensor)
                return replace_computation(outputs, tensor, replacement), stored
    return outputs, []


def _is_padded_conv(tensor: te.Tensor) -> bool:
    """Return whether a tensor is a convolution (of topi.nn.conv) with padding."""
    attrs = tensor.op.attrs
    layout = str(attrs.get("data_layout", ""))
    is_conv = {"kernel_layout", "padding", "dilation", "out_layout"} <= set(attrs)
    is_conv = is_conv and "output_padding" not in attrs  # which a transposed one has
    return is_conv and layout.isalpha() and any(cast("Sequence[int]", attrs["padding"]))


def _pad_conv(tensor: te.Tensor) -> StagedResult:
    """Return out = conv(pad(data)), which reads nothing out of bounds."""
    attrs = tensor.op.attrs
    data, weight = cast("Sequence[te.Tensor]", attrs["inputs"])
    layout, padding = str(attrs["data_layout"]), cast("Sequence[int]", attrs["padding"])
    axes = spatial_letters(layout)
    before = {layout.index(axis): padding[n] for n, axis in enumerate(axes)}
    after = {layout.index(axis): padding[len(axes) + n] for n, axis in enumerate(axes)}
    shape = [d + (before.get(n, 0) + after.get(n, 0)) for n, d in enumerate(data.shape)]

    def padded_element(*point: Var) -> PrimExpr:
        """Return an element of the padded data; 0 in the border."""
        indices = [i - before.get(n, 0) for n, i in enumerate(point)]
        held = [
            c for n in before for c in in_range_conditions(indices[n], data.shape[n], True, True)
        ]
        return guarded_load(data, indices, held, const(0, data.dtype))

    padded = te.compute(shape, padded_element, name="padded")
    kernel_layout = str(attrs["kernel_layout"])
    convolution = conv(
        padded,
        weight,
        cast("Sequence[int]", attrs["strides"]),
        0,
        cast("Sequence[int]", attrs["dilation"]),
        cast(int, attrs["groups"]),
        layout,
        kernel_layout,
        tensor.dtype,
        None if kernel_layout.isalpha() else cast(int, attrs["channels"]),
        str(attrs["out_layout"]),
    )
    return convolution, [padded]


def _is_pooling(tensor: te.Tensor) -> bool:
    """Return whether a tensor is a pooling (of topi.nn.pool) over windows of one size."""
    window = tensor.op.attrs.get("window")
    return window is not None and isinstance(window, pool.PoolWindow)


def _pad_pooling(tensor: te.Tensor) -> StagedResult:
    """Return the pooling as a reduction of data padded with the reduction's identity."""
    window, reducer = (tensor.op.attrs[name] for name in ("window", "reducer"))
    assert isinstance(window, pool.PoolWindow)
    reduced = cast("Callable[[PrimExpr, Sequence[te.ReduceAxis]], PrimExpr]", reducer)
    unpadded, dtype = window.data, tensor.dtype
    neutral = te.identity(reduced.__name__, unpadded.dtype)
    ranges, data = window.covered_ranges(), window.data

    def padded_element(*point: Var) -> PrimExpr:
        """Return an element of the data padded with the identity."""
        indices = [i - begin for i, (begin, _) in zip(point, ranges, strict=True)]
        held = [
            h
            for n in window.axes
            for h in in_range_conditions(indices[n], unpadded.shape[n], True, True)
        ]
        return guarded_load(unpadded, indices, held, neutral)

    stored = []
    if any(window.before) or any(
        window.may_reach(n, data.shape[a]) for n, a in enumerate(window.axes)
    ):
        data = te.compute([extent for _, extent in ranges], padded_element, name="around")
        stored = [data]
    taps = window.tap_axes()

    def window_reduction(*point: Var) -> PrimExpr:
        """Return the reduction over a window's taps, all of which exist."""
        indices: list[PrimExpr] = list(point)
        for n, axis in enumerate(window.axes):
            indices[axis] = point[axis] * window.strides[n] + taps[n] * window.dilation[n]
        return reduced(cast_to(data[tuple(indices)], dtype), taps)

    return te.compute(tensor.shape, window_reduction, name="pooled"), stored


def _is_conv_transpose(tensor: te.Tensor) -> bool:
    """Return whether a tensor is a transposed convolution (of topi.nn.conv_transpose) with one
    group and no dilation, so that every tap contributes to one residue.
    """
    attrs = tensor.op.attrs
    if "output_padding" not in attrs or attrs["groups"] != 1:
        return False
    is_dense = all(step == 1 for step in cast("Sequence[int]", attrs["dilation"]))
    is_known = all(size is not None for size in cast("Sequence[int | None]", attrs["kernel_size"]))
    layouts = (str(attrs["data_layout"]), str(attrs["out_layout"]))
    return is_dense and is_known and all(layout.isalpha() for layout in layouts)


def _conv_transpose_stages(tensor: te.Tensor) -> StagedResult:
    """Return out[p * s + r] = sum over j of data[p - j] * weight[r + j * s], one convolution for
    each residue r modulo the stride s; as the sum over i of padded[p + i] * weight[r + (taps - 1
    - i) * s].
    """
    attrs = tensor.op.attrs
    data, weight = cast("Sequence[te.Tensor]", attrs["inputs"])
    layout, result = str(attrs["data_layout"]), str(attrs["out_layout"])
    kernel_layout, axes = str(attrs["kernel_layout"]), spatial_letters(layout)
    rank, plain = len(axes), f"NC{axes}"
    strides = cast("Sequence[int]", attrs["strides"])
    kernel = cast("Sequence[int]", attrs["kernel_size"])
    before = cast("Sequence[PrimExpr | int]", attrs["padding"])[:rank]
    n, c, *sizes = permute_values(data.shape, layout, plain)
    _, channels, *extents = permute_values(tensor.shape, result, plain)
    taps = [-(-k // s) for k, s in zip(kernel, strides, strict=True)]
    steps = [(e + b + (s - 1)) // s for e, b, s in zip(extents, before, strides, strict=True)]

    def padded_element(image: Var, *point: Var) -> PrimExpr:
        """Return the data in NHWC order with t - 1 zeros before it (t taps), so that no tap reads
        out of bounds.
        """
        positions = [i - (t - 1) for i, t in zip(point[:-1], taps, strict=True)]
        held = [
            h
            for i, s in zip(positions, sizes, strict=True)
            for h in in_range_conditions(i, s, True, True)
        ]
        indices = permute_values((image, point[-1], *positions), plain, layout)
        return guarded_load(data, list(indices), held, const(0, data.dtype))

    around = [step + (t - 1) for step, t in zip(steps, taps, strict=True)]
    padded = te.compute((n, *around, c), padded_element, name="padded")

    def residue_conv(image: Var, *point: Var) -> PrimExpr:
        """Return the results of one residue as a convolution without strides. A residue with one
        tap fewer has a factor 0 there, so that all sums have the same length.
        """
        rests, positions, o = point[:rank], point[rank:-1], point[-1]
        window = [te.reduce_axis((0, t), f"k{a.lower()}") for t, a in zip(taps, axes, strict=True)]
        ci = te.reduce_axis((0, c), "ci")
        tap = [r + (t - 1 - j) * s for r, t, j, s in zip(rests, taps, window, strides, strict=True)]
        factor = cast_to(
            _conv_transpose_weight(weight, kernel_layout, (o, ci), tap, channels), tensor.dtype
        )
        held = [k < size for k, size, s in zip(tap, kernel, strides, strict=True) if size % s != 0]
        for is_tap in held:
            factor = if_then_else(is_tap, factor, const(0, tensor.dtype))
        value = padded[(image, *(p + j for p, j in zip(positions, window, strict=True)), ci)]
        return te.sum(cast_to(value, tensor.dtype) * factor, (*window, ci))

    phases = te.compute(
        (n, *map(as_dim, strides), *steps, channels), residue_conv, name="transposed_phases"
    )

    def interleaved_output(*point: Var) -> PrimExpr:
        """Return a result: its residue selects the phase, its quotient the position."""
        image, o, *positions = permute_values(point, result, plain)
        shifted = [p + b for p, b in zip(positions, before, strict=True)]
        rests = [w % s for w, s in zip(shifted, strides, strict=True)]
        return phases[(image, *rests, *(w // s for w, s in zip(shifted, strides, strict=True)), o)]

    return te.compute(tensor.shape, interleaved_output, name="transposed"), [padded]


def _has_listed_words(tensor: te.Tensor) -> bool:
    """Return whether a tensor is a product (of topi.nn.dense) whose weight lists words of
    the data.
    """
    word_indices = tensor.op.attrs.get("places")
    return isinstance(word_indices, te.Tensor) and not is_const(word_indices.shape[1], 0)


def _split_listed_product(tensor: te.Tensor) -> StagedResult:
    """Return out = data * weight + listed * rest, where the listed words of the data are gathered
    for each panel.
    """
    attrs = tensor.op.attrs
    data, weight = cast("Sequence[te.Tensor]", attrs["inputs"])
    word_indices, tile = cast(te.Tensor, attrs["places"]), cast(int, attrs["tile"])
    panels, listed = word_indices.shape
    *rows, units = tensor.shape
    word, words = weight.shape[3], data.shape[-1] // weight.shape[3]
    k, j = te.reduce_axis((0, data.shape[-1]), "k"), te.reduce_axis((0, listed * word), "j")

    def multiply_elements(a: PrimExpr, b: PrimExpr) -> PrimExpr:
        return cast_to(a, tensor.dtype) * cast_to(b, tensor.dtype)

    def unlisted_product(*indices: Var) -> PrimExpr:
        factor = weight[indices[-1] // tile, k // word, indices[-1] % tile, k % word]
        return te.sum(multiply_elements(data[(*indices[:-1], k)], factor), k)

    def gather_words(*indices: Var) -> PrimExpr:
        word_index = cast_to(word_indices[indices[-2], indices[-1] // word], "int64")
        return data[(*indices[:-2], word_index * word + indices[-1] % word)]

    def listed_product(*indices: Var) -> PrimExpr:
        """Return the product of the words that a panel lists."""
        *_, panel, column = indices
        factor = weight[panel, j // word + words, column, j % word]
        return te.sum(multiply_elements(gathered[(*indices[:-1], j)], factor), j)

    dense_product = te.compute((*rows, units), unlisted_product, name="most")
    gathered = te.compute((*rows, panels, j.extent), gather_words, name="gathered")
    more = te.compute((*rows, panels, as_dim(tile)), listed_product, name="rest")

    def sum_products(*indices: Var) -> PrimExpr:
        """Return an element of the dense product plus that of the panel with gathered words."""
        return (
            dense_product[indices] + more[(*indices[:-1], indices[-1] // tile, indices[-1] % tile)]
        )

    return te.compute(tensor.shape, sum_products, name="listed"), [gathered]


def _is_grouped_conv(tensor: te.Tensor) -> bool:
    """Return whether a tensor is a convolution (of topi.nn.conv) in groups of more than one output
    channel.
    """
    attrs = tensor.op.attrs
    layout, groups = str(attrs.get("out_layout", "")), attrs.get("groups", 1)
    if groups == 1 or not layout.isalpha() or "output_padding" in attrs:
        return False
    return not is_const(simplify(tensor.shape[layout.index("C")] // cast(int, groups)), 1)


def _split_groups(tensor: te.Tensor) -> StagedResult:
    """Return out[o] = part[o / n, o % n] with n channels in a group, so that each group is a
    product.
    """
    attrs = tensor.op.attrs
    layout, groups = str(attrs["out_layout"]), cast(int, attrs["groups"])
    padded, stored = _pad_conv(tensor) if _is_padded_conv(tensor) else (tensor, [])
    op = padded.op
    assert isinstance(op, te.ComputeOp)
    channel = layout.index("C")
    per_group = simplify(tensor.shape[channel] // groups)

    def group_product(*indices: Var) -> tuple[PrimExpr, ...]:
        """Return the same sum with (group, channel within it) in place of the channel."""
        *other_axes, group, within = indices
        axes = [a.var for a in op.axis]
        before: list[PrimExpr] = list(other_axes)
        before.insert(channel, group * per_group + within)

        def substitute_channel(e: PrimExpr) -> PrimExpr:
            """Replace a channel's quotient and remainder by the axes."""
            if isinstance(e, (FloorDiv, FloorMod)) and e.a is axes[channel]:
                return group if isinstance(e, FloorDiv) else within
            return e

        bodies = (rewrite(b, substitute_channel) for b in op.body)
        return tuple(substitute(b, dict(zip(axes, before, strict=True))) for b in bodies)

    outer = [d for n, d in enumerate(tensor.shape) if n != channel]
    (by_group,) = te.compute_op((*outer, as_dim(groups), per_group), group_product, name="groups")

    def merged_channels(*indices: Var) -> PrimExpr:
        before = [i for n, i in enumerate(indices) if n != channel]
        return by_group[(*before, indices[channel] // per_group, indices[channel] % per_group)]

    return te.compute(tensor.shape, merged_channels, name="grouped"), stored


def _conv_transpose_weight(
    weight: te.Tensor,
    layout: str,
    channel: tuple[PrimExpr, PrimExpr],
    tap: Sequence[PrimExpr],
    channels: PrimExpr,
) -> PrimExpr:
    """Return the weight of a tap, an output and an input channel, of one group."""
    o, ci = channel
    if packed_tile_size(layout):
        return weight_element(weight, layout, o, ci, tap, channels)
    return weight[permute_values((ci, o, *tap), f"IO{spatial_letters(layout)}", layout)]


def _constant_matrix(values: object, name: str, dtype: str) -> te.Tensor:
    rows, columns = values.shape  # type: ignore[attr-defined]
    return te.compute(
        (as_dim(rows), as_dim(columns)),
        lambda i, j: winograd.matrix_element(values, i, j, dtype),  # type: ignore[arg-type]
        name=name,
    )


def _winograd_stages(tensor: te.Tensor) -> StagedResult:
    """Return out = A (U * (B d B')) A', with one factor of each transform per stage (Lavin and Gray
    2016).
    """
    attrs = tensor.op.attrs
    data, weight = cast("Sequence[te.Tensor]", attrs["inputs"])
    m = cast(int, attrs["m"])
    top, pad_left = cast("Sequence[int]", attrs["padding"])[:2]
    a_values, b_values, _ = winograd.transform_matrices(m, is_integer=weight.dtype == "int16")
    a = _constant_matrix(a_values, "winograd_a", tensor.dtype)
    b = _constant_matrix(b_values, "winograd_b", tensor.dtype)
    size = m + winograd.WINOGRAD_TAPS - 1
    n, height, width, depth = data.shape
    _, rows, columns, channels = tensor.shape
    down, across = (rows + (m - 1)) // m, (columns + (m - 1)) // m

    def padded_element(image: Var, y: Var, x: Var, c: Var) -> PrimExpr:
        """Return an element of the image, zero in the padding."""
        held = in_range_conditions(y - top, height, True, True) + in_range_conditions(
            x - pad_left, width, True, True
        )
        value = guarded_load(data, (image, y - top, x - pad_left, c), held, const(0, data.dtype))
        return cast_to(value, tensor.dtype)

    around = (
        n,
        down * m + (winograd.WINOGRAD_TAPS - 1),
        across * m + (winograd.WINOGRAD_TAPS - 1),
        depth,
    )
    padded = te.compute(around, padded_element, name="winograd_padded")

    def transform_rows(u: Var, j: Var, image: Var, y: Var, x: Var, c: Var) -> PrimExpr:
        i = te.reduce_axis((0, size), "i")
        return te.sum(b[u, i] * padded[image, y * m + i, x * m + j, c], i)

    shape = (as_dim(size), as_dim(size), n, down, across, depth)
    rows_done = te.compute(shape, transform_rows, name="winograd_rows")

    def transform_columns(u: Var, v: Var, image: Var, y: Var, x: Var, c: Var) -> PrimExpr:
        j = te.reduce_axis((0, size), "j")
        return te.sum(b[v, j] * rows_done[u, j, image, y, x, c], j)

    inner = te.compute(shape, transform_columns, name="winograd_inner")

    def tile_product(u: Var, v: Var, image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        """Multiply the transformed data and weight: for each position (u, v) of a tile a matrix
        product over the channels.
        """
        c = te.reduce_axis((0, depth), "c")
        factor = winograd.transformed_element(weight, u * size + v, c, o)
        return te.sum(inner[u, v, image, y, x, c] * cast_to(factor, tensor.dtype), c)

    products = te.compute((*shape[:-1], channels), tile_product, name="winograd_products")

    def inverse_rows(i: Var, v: Var, image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        u = te.reduce_axis((0, size), "u")
        return te.sum(a[i, u] * products[u, v, image, y, x, o], u)

    some = te.compute((as_dim(m), *shape[1:-1], channels), inverse_rows, name="winograd_back")

    def inverse_columns(image: Var, y: Var, i: Var, x: Var, j: Var, o: Var) -> PrimExpr:
        v = te.reduce_axis((0, size), "v")
        return te.sum(a[j, v] * some[i, v, image, y, x, o], v)

    tiles = te.compute(
        (n, down, as_dim(m), across, as_dim(m), channels), inverse_columns, name="winograd_tiles"
    )

    def output_element(image: Var, y: Var, x: Var, o: Var) -> PrimExpr:
        return tiles[image, y // m, y % m, x // m, x % m, o]

    return te.compute(tensor.shape, output_element, name="winograd"), [a, b, padded]


STAGE_REWRITES: Sequence[
    tuple[Callable[[te.Tensor], bool], Callable[[te.Tensor], StagedResult]]
] = (
    (lambda tensor: tensor.op.tag == "winograd_conv2d", _winograd_stages),
    (_is_conv_transpose, _conv_transpose_stages),
    (_is_grouped_conv, _split_groups),
    (_is_pooling, _pad_pooling),
    (_is_padded_conv, _pad_conv),
    (_has_listed_words, _split_listed_product),
)
"""Rewrites (predicate, function) in order of priority."""

__all__ = ["split_stages"]
