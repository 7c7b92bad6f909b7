"""Fourier transforms (dft, stft) by direct summation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ekiden import te
from ekiden.ir.intrinsic import call_intrin
from ekiden.ir.prim import PrimExpr, Select, Var, cast, const
from ekiden.te import Tensor
from ekiden.topi.dimensions import (
    Dim,
    as_dim,
    as_shape,
    require_min_extent,
    require_positive,
    require_shape,
    simplify_dim,
)
from ekiden.topi.reduce import accumulator_dtype, round_accumulated


def _dft_angle(step: PrimExpr, extent: PrimExpr, dtype: str, sign: float) -> PrimExpr:
    """Return sign * 2 pi * step / extent; the step is reduced modulo the extent first, which keeps
    it exact.
    """
    # A remainder by 0 is undefined, and an empty axis has extent 0.
    fraction = cast(step % te.max(extent, 1), dtype) / cast(extent, dtype)
    return fraction * (sign * 2 * math.pi)


def dft(re_data: Tensor, im_data: Tensor, inverse: bool) -> list[Tensor]:
    """Return [real, imaginary] of the discrete Fourier transform along the last axis. The inverse
    divides by the extent. A direct sum: quadratic in the extent.
    """
    require_shape("dft", "im_data", im_data.shape, re_data.shape)
    require_min_extent("dft", "re_data", re_data.shape[-1:], (1,))
    size, dtype = re_data.shape[-1], accumulator_dtype(re_data.dtype)
    sign = 1.0 if inverse else -1.0

    def dft_component(imaginary: bool) -> Tensor:
        """Return the real or the imaginary component, divided by the extent for the inverse."""
        k = te.reduce_axis((0, size), "k")

        def sum_over_samples(*i: Var) -> PrimExpr:
            """Return the sum over k of (re + i im)(cos + i sin) of the angle."""
            angle = _dft_angle(i[-1] * k, size, dtype, sign)
            c, s = call_intrin("cos", angle), call_intrin("sin", angle)
            re, im = (
                cast(component_data[(*i[:-1], k)], dtype) for component_data in (re_data, im_data)
            )
            return te.sum(re * s + im * c if imaginary else re * c - im * s, k)

        total = te.compute(re_data.shape, sum_over_samples, name="dft", tag="dft")
        count = cast(size, dtype)
        if inverse:
            scaled = te.compute(total.shape, lambda *i: total[i] / count, "idft", "elemwise")
        else:
            scaled = total
        return round_accumulated(scaled, re_data.dtype)

    return [dft_component(False), dft_component(True)]


def stft(
    data: Tensor,
    n_fft: int,
    hop_length: int,
    win_length: int,
    window: Tensor,
    normalized: bool,
    onesided: bool,
    output_shape: Sequence[Dim] | None = None,
) -> Tensor:
    """Return short-time Fourier transforms of signals [batch, time]. [batch, frequency, frame, (re,
    im)].

    Frames of `n_fft` samples, `hop_length` apart, times the window (of `win_length`, centred);
    `normalized` divides by sqrt(n_fft); `onesided` leaves out the mirrored frequencies. A direct
    sum. PyTorch's stft without centring.
    """
    batch, length = data.shape
    require_positive("stft", n_fft=n_fft, hop_length=hop_length, win_length=win_length)
    require_shape("stft", "window", window.shape, (win_length,))
    if win_length > n_fft:
        raise ValueError(f"stft: 'win_length' {win_length} must not be above 'n_fft' {n_fft}")
    require_min_extent("stft", "data", (length,), (n_fft,))
    frames = simplify_dim((length - n_fft) // hop_length + 1)
    bins = n_fft // 2 + 1 if onesided else n_fft
    shape = as_shape(output_shape) if output_shape else (batch, as_dim(bins), frames, as_dim(2))
    pad, dtype = (n_fft - win_length) // 2, accumulator_dtype(data.dtype)
    scale = 1 / math.sqrt(n_fft) if normalized else 1.0
    k = te.reduce_axis((0, win_length), "k")

    def sum_over_window(b: Var, f: Var, frame: Var, component: Var) -> PrimExpr:
        """Return the sum over the window's samples, which begin `pad` samples into the frame."""
        position = k + pad
        # Phases count from the start of the frame, not of the window, as in PyTorch.
        angle = _dft_angle(f * position, as_dim(n_fft), dtype, -1.0)
        wave = Select(
            component.equal(0), call_intrin("cos", angle), call_intrin("sin", angle), dtype
        )
        value = cast(data[b, frame * hop_length + position], dtype) * cast(window[k], dtype)
        return te.sum(value * wave * const(scale, dtype), k)

    return round_accumulated(
        te.compute(shape, sum_over_window, name="stft", tag="stft"), data.dtype
    )


__all__ = ["dft", "stft"]
