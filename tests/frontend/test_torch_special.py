"""Special functions, composed of basic arithmetic."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from long_runs import share

torch = pytest.importorskip("torch", reason="the package torch is not installed")

WIDE = torch.cat(
    [torch.linspace(-6.3, 40, 999), torch.tensor([0.0, -0.0, 1, 2, -1, -3, torch.inf])]
)
INSIDE = torch.linspace(-1, 1, 999)
NAMES = {
    "lgamma": (torch.lgamma, WIDE),
    "digamma": (torch.digamma, WIDE),
    "erfc": (torch.erfc, torch.cat([WIDE, -WIDE])),
    "erfcx": (torch.special.erfcx, torch.linspace(-5, 60, 999)),
    "trigamma": (lambda x: torch.polygamma(1, x), torch.linspace(-0.45, 30, 998)),
    "polygamma": (lambda x: torch.polygamma(3, x), torch.linspace(0.1, 30, 999)),
    "zeta": (lambda x: torch.special.zeta(1 + x, x), torch.linspace(0.1, 30, 999)),
    "log_ndtr": (torch.special.log_ndtr, torch.linspace(-30, 9, 999)),
    "erfinv": (torch.erfinv, torch.cat([INSIDE, torch.tensor([1 - 2**-20, 1.5])])),
    "i0": (torch.i0, WIDE[:-1]),
    "i0e": (torch.special.i0e, WIDE[:-1] * 20),
    "i1": (torch.special.i1, WIDE[:-1]),
    "i1e": (torch.special.i1e, WIDE[:-1] * 20),
    "k0": (torch.special.modified_bessel_k0, WIDE.abs()),
    "k1": (torch.special.modified_bessel_k1, WIDE.abs()),
    "k0e": (torch.special.scaled_modified_bessel_k0, WIDE.abs() * 20),
    "k1e": (torch.special.scaled_modified_bessel_k1, WIDE),
    "spherical_j0": (torch.special.spherical_bessel_j0, torch.cat([WIDE, -WIDE])),
    "ndtri": (
        torch.special.ndtri,
        torch.cat([torch.logspace(-30, -0.4, 499), torch.linspace(0, 1, 499)]),
    ),
    "exp2": (torch.exp2, torch.arange(-126.0, 128)),
}


THEIRS = {"trigamma": 1e-9}
"""What PyTorch itself is off in float64, where that is more than 1e-10."""


class Of(torch.nn.Module):
    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        return self.function(*args)


def run(function: object, *args: torch.Tensor) -> object:
    return ekiden.compile(Of(function), args)(*args)


@share(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions_match_pytorch(name: str, dtype: torch.dtype) -> None:
    function, data = NAMES[name]
    x = data.to(dtype)
    close = 2e-6 if dtype == torch.float32 else THEIRS.get(name, 1e-10)
    expected = function(x).numpy()
    np.testing.assert_allclose(run(function, x).numpy(), expected, rtol=close, atol=close)


ORDERS = torch.tensor([0.0, 0.01, 1, 2.5, 20, 40, 1e4, torch.inf, -1], dtype=torch.float64)[:, None]
PLACES = torch.cat([torch.tensor([0.0, torch.inf, -1]), torch.logspace(-3, 5, 40)]).double()


@pytest.mark.parametrize("name", ["gammainc", "gammaincc"])
def test_incomplete_gamma_functions(name: str) -> None:
    """On both sides of the middle, at small and large orders, and outside of the domain."""
    from ekiden.frontend.torch import incomplete_gamma

    functions = {"gammainc": incomplete_gamma.igamma, "gammaincc": incomplete_gamma.igammac}
    reference = pytest.importorskip("scipy.special", reason="the package scipy is not installed")
    expected = getattr(reference, name)(ORDERS.numpy(), PLACES.numpy())
    actual = functions[name](ORDERS, PLACES).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-13)


@pytest.mark.long
@pytest.mark.parametrize("function", [torch.special.gammainc, torch.special.gammaincc])
def test_incomplete_gamma_functions_compiled(function: object) -> None:
    expected = function(ORDERS, PLACES).numpy()
    actual = run(function, ORDERS, PLACES).numpy()
    np.testing.assert_allclose(actual, expected, rtol=1e-8, atol=1e-8)


def test_running_logarithms_of_sums_keep_what_is_small() -> None:
    x = torch.randn(3, 13) * 40
    result = run(lambda a: torch.logcumsumexp(a, 1), x).numpy()
    np.testing.assert_allclose(result, torch.logcumsumexp(x, 1).numpy(), rtol=1e-5)


def test_frexp_matches_pytorch() -> None:
    x = torch.tensor([0.0, 1, 2, -4, 0.75, torch.inf, torch.nan, 1e-40, 3e38, -1.1])
    for actual, expected in zip(run(torch.frexp, x), torch.frexp(x), strict=True):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy())


def test_medians_match_pytorch() -> None:
    x = torch.randn(4, 8)
    x[1, 2] = torch.nan
    for actual, expected in zip(run(lambda a: a.median(1), x), x.median(1), strict=True):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy())
    np.testing.assert_array_equal(run(torch.median, x[0]).numpy(), x[0].median().numpy())


@share(6)
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_gcd_and_lcm_match_pytorch(dtype: object) -> None:
    low = 0 if dtype == torch.uint8 else -40
    x, y = (
        torch.randint(low, 40, (4, 5)).to(dtype),
        torch.randint(low, 40, (5,)).to(dtype),
    )
    x[0, 0] = y[0] = 0
    for actual, expected in zip(
        run(lambda a, b: (torch.gcd(a, b), torch.lcm(a, b)), x, y),
        (torch.gcd(x, y), torch.lcm(x, y)),
        strict=True,
    ):
        np.testing.assert_array_equal(actual.numpy(), expected.numpy())


def test_repeat_interleave_and_bincount_match_pytorch() -> None:
    repeats = torch.tensor([1, 0, 2])
    rows = torch.randn(3, 2)
    result = run(lambda a, n: a.repeat_interleave(n, 0), rows, repeats).numpy()
    np.testing.assert_array_equal(result, rows.repeat_interleave(repeats, 0).numpy())
    x = torch.tensor([4, 2, 2])
    for least in (0, 7):
        result = run(lambda a, n=least: torch.bincount(a, minlength=n), x).numpy()
        np.testing.assert_array_equal(result, torch.bincount(x, minlength=least).numpy())
    count = ekiden.compile(Of(torch.bincount), (x,))
    with pytest.raises(IndexError, match="bincount"):
        count(torch.tensor([-1, 2, 0]))
