"""PyTorch complex numbers as pairs of real ones: arithmetic, Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import ekiden
from long_runs import alike

torch = pytest.importorskip("torch", reason="the package torch is not installed")
Tensor = torch.Tensor


class Of(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Tensor) -> Tensor:
        return self.function(*args)


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def z(a: Tensor, b: Tensor) -> Tensor:
    return torch.complex(a, b)


def there_and_back(x: Tensor) -> Tensor:
    window = torch.hann_window(16)
    result = torch.stft(x, 16, hop_length=8, window=window, return_complex=True)
    return torch.istft(result * 2, 16, hop_length=8, window=window)


def spectral(x: Tensor, weight: Tensor) -> Tensor:
    """A layer of a Fourier neural operator."""
    kept = torch.fft.rfft2(x)[:, :, :4, :3]
    mixed = torch.einsum("bixy,ioxy->boxy", kept, torch.view_as_complex(weight))
    return torch.fft.irfft2(mixed, s=(8, 8))


def arithmetic(a: Tensor, b: Tensor) -> Tensor:
    result = (z(a, b) / z(b + 3, a) + 2j) * z(a, a).conj() - z(a, b) ** 3 + z(a, b).exp()
    return torch.view_as_real(result + z(a, b).sqrt() + z(b, a).log() + a + 1.5)


CASES: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...]]] = {
    "arithmetic": (arithmetic, ((3, 4), (3, 4))),
    "products": (
        lambda a, b: torch.view_as_real(z(a, b) @ z(b, a).T + z(a, b).sum(0).mean()),
        ((3, 4), (3, 4)),
    ),
    "chosen and joined": (
        lambda a, b: torch.view_as_real(
            torch.where(a > 0, z(a, b), a) + torch.cat([z(a, b)[:1], z(b, b)[1:]])
        ),
        ((3, 4), (3, 4)),
    ),
    "polar": (lambda a: torch.view_as_real(torch.polar(a.abs(), a)), ((3, 4),)),
    "sizes and angles": (lambda a, b: z(a, b).abs() + z(a, b).angle(), ((3, 4), (3, 4))),
    "odd length": (lambda a: torch.fft.irfft(torch.fft.rfft(a) * 2, n=15), ((3, 16),)),
    "several axes": (
        lambda a: torch.fft.fftn(a, dim=(1, 2)).real + torch.fft.ifft2(a, norm="ortho").imag,
        ((2, 5, 3, 8),),
    ),
    "two real axes": (
        lambda a: torch.fft.irfft2(torch.fft.rfft2(a, norm="forward"), s=(3, 9), norm="ortho"),
        ((2, 5, 3, 8),),
    ),
    "shifted": (lambda a: torch.fft.fftshift(torch.fft.fft(a)).abs(), ((3, 5),)),
    "in two factors": (lambda a: torch.view_as_real(torch.fft.rfft(a)), ((2, 3000),)),
    "a large prime": (lambda a: torch.fft.rfft(a).abs(), ((2, 1031),)),
    "there and back": (there_and_back, ((2, 64),)),
    "spectral layer": (spectral, ((2, 3, 8, 8), (3, 5, 4, 3, 2))),
}


@alike(4)
@pytest.mark.parametrize("name", CASES)
def test_complex_operators_match_pytorch(name: str) -> None:
    function, shapes = CASES[name]
    args = tuple(draw(*shape) for shape in shapes)
    expected = function(*args).numpy()
    actual = ekiden.compile(Of(function), args)(*args).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_angles_and_signs_of_real_numbers() -> None:
    x = torch.tensor([-2.0, 0.0, 3.0])
    result = ekiden.compile(Of(lambda a: torch.angle(a) + torch.sgn(a)), (x,))(x).numpy()
    np.testing.assert_allclose(result, (torch.angle(x) + torch.sgn(x)).numpy(), rtol=1e-6)


def test_double_precision_is_kept() -> None:
    x = draw(2, 2048).double()
    result = ekiden.compile(Of(lambda a: torch.fft.fft(a).imag), (x,))(x).numpy()
    np.testing.assert_allclose(result, torch.fft.fft(x).imag.numpy(), atol=1e-11)


def test_fft_of_any_length_matches_pytorch() -> None:
    program = Of(lambda a: torch.fft.rfft(a).abs())
    length = torch.export.Dim("length", min=8, max=400)
    exe = ekiden.compile(program, (draw(1, 64),), dynamic_shapes=(({1: length},),))
    for extent in (9, 64, 333):
        x = draw(1, extent)
        np.testing.assert_allclose(exe(x).numpy(), program(x).numpy(), atol=1e-4)


class Rotary(torch.nn.Module):
    """Positions as angles, in a buffer of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(6.0), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        turned = pairs * self.turns[: x.shape[1]][None, :, None]
        return torch.view_as_real(turned).flatten(3)


def test_weights_may_be_complex() -> None:
    x, module = draw(2, 5, 3, 8), Rotary()
    result = ekiden.compile(module, (x,))(x).numpy()
    np.testing.assert_allclose(result, module(x).numpy(), atol=1e-6)


def test_what_is_refused_is_named() -> None:
    x = draw(3)
    with pytest.raises(
        ekiden.UnsupportedError, match=r"output 'complex.*' is complex: .*view_as_real"
    ):
        ekiden.compile(Of(lambda a: z(a, a)), (x,))
    with pytest.raises(ekiden.UnsupportedError, match=r"aten.tan.*complex numbers"):
        ekiden.compile(Of(lambda a: z(a, a).tan().abs()), (x,))
    with pytest.raises(ekiden.UnsupportedError, match=r"input 'args_0'.*dtype complex64"):
        ekiden.compile(Of(lambda a: a.real), (x + 1j,))
