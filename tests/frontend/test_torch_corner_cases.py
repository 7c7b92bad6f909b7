"""PyTorch converters in corner cases: NaN, limits of dtypes, views, empty axes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ekiden
from ekiden import relay
from ekiden.frontend.torch.export import decompose_program, export_module
from ekiden.frontend.torch.program import import_program
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import CompileError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
INF, NAN = math.inf, math.nan
Function = Callable[..., object]


class Apply(nn.Module):
    """Functions as a module; each gives a result."""

    def __init__(self, functions: tuple[Function, ...]) -> None:
        super().__init__()
        self.functions = functions

    def forward(self, *args: torch.Tensor) -> tuple[object, ...]:
        return tuple(f(*args) for f in self.functions)


def test_single_example_input_without_list_is_refused() -> None:
    for argument in ({"example_inputs": torch.ones(2, 4)}, {}):
        with pytest.raises(CompileError) as caught:
            ekiden.compile(nn.Linear(4, 3), *(() if argument else (torch.ones(2, 4),)), **argument)
        assert str(caught.value) == (
            "compile: example_inputs: a list or a tuple of inputs expected, got one of Tensor: "
            "compile(model, (x,))"
        )


def agree(functions: tuple[Function, ...], *args: torch.Tensor, rtol: float = 1e-6) -> None:
    """The interpreter gives what PyTorch gives, all in one import."""
    model = Apply(functions)
    program = import_program(decompose_program(export_module(model, list(args))), "edges")
    module = relay.infer_type(program.to_module())
    with np.errstate(all="ignore"):
        result = Interpreter(module).evaluate("main", *(a.numpy() for a in args))
    for actual, reference in zip(result, model(*args), strict=True):
        torch.testing.assert_close(
            torch.from_numpy(np.array(actual)), reference, rtol=rtol, atol=rtol, equal_nan=True
        )


def pairs(*values: float, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    one = torch.tensor(values, dtype=dtype)
    return one.repeat_interleave(len(values)), one.repeat(len(values))


def test_nan_division_and_sign_match_pytorch() -> None:
    x, y = pairs(NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 2.5, -7.0)
    agree(
        (
            torch.floor_divide,
            torch.remainder,
            lambda a, b: torch.div(a, b, rounding_mode="floor"),
            lambda a, b: torch.sign(a),
            lambda a, b: torch.ops.aten.threshold_backward(b, a, 0.0),
        ),
        x,
        y,
    )


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.int64])
def test_powers_of_integers_wrap(dtype: torch.dtype) -> None:
    exponents = [n for n in (0, 1, 2, 7, 31, 33, 40, 63, 64, 100) if n <= torch.iinfo(dtype).max]
    bases = torch.tensor([0, 1, 2, 3, 5, 7, 100], dtype=dtype)
    base = bases.repeat_interleave(len(exponents))
    exponent = torch.tensor(exponents, dtype=dtype).repeat(len(bases))
    agree((torch.pow, lambda a, b: a**64, lambda a, b: a**0), base, exponent)


def test_statistics_of_float16_are_wide() -> None:
    x = ((torch.arange(4000) % 37) * 7).reshape(2, 2000).half()
    agree(
        (
            lambda x: x.var(1),
            lambda x: x.std(1),
            lambda x: torch.var_mean(x, 1)[0],
            lambda x: F.instance_norm(x.reshape(2, 1, 2000) * 10),
            lambda x: F.batch_norm(x * 10, None, None, training=True),
        ),
        x,
        rtol=4e-3,
    )


def test_rrelu_inference_slope_is_the_mean() -> None:
    model, x = (
        Apply((lambda x: F.rrelu(x, 0.1, 0.3), lambda x: F.rrelu(x, 1.0, 3.0))),
        torch.ones(5),
    )
    for result, reference in zip(ekiden.compile(model, (x,))(-x), model(-x), strict=True):
        torch.testing.assert_close(torch.from_dlpack(result), reference)
    with pytest.raises(UnsupportedError, match="slopes that are drawn"):
        agree((lambda x: F.rrelu(x, training=True),), torch.randn(5))


def test_cummax_and_cummin_match_pytorch() -> None:
    x = torch.tensor([[1.0, NAN, 3.0, 3.0], [INF, 2.0, -INF, NAN], [3.0, 3.0, 1.0, 0.0]])
    agree(
        (
            lambda x: x.cummax(1)[0],
            lambda x: x.cummax(0)[1],
            lambda x: x.cummin(1)[1],
            lambda x: x.cummin(-1)[0],
            lambda x: x.nan_to_num().int().cummax(1)[1],
            lambda x: (x > 1).cummin(1)[0],
            lambda x: x[:0].cummax(0)[1],
            lambda x: x.flatten().repeat(20).cummax(0)[1],
        ),
        x,
    )


def test_cummax_of_symbolic_extent_matches_pytorch() -> None:
    shapes = {"x": {0: torch.export.Dim("n")}}

    class Running(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, indices = x.cummax(0)
            return values, indices

    example = torch.ones(4, 2)
    exe = ekiden.compile(torch.export.export(Running(), (example,), dynamic_shapes=shapes))
    for size in (1, 7):
        x = torch.randn(size, 2)
        for result, reference in zip(exe(x), x.cummax(0), strict=True):
            assert torch.equal(torch.from_dlpack(result), reference)


def test_argmax_indices_are_valid() -> None:
    x = torch.full((1, 2, 5, 6), -INF)
    x[0, 1, 2:, 3:] = torch.arange(9.0).reshape(3, 3)
    agree(
        tuple(
            lambda x, s=s, d=d: F.max_pool2d(x, (3, 2), s, 1, d, return_indices=True)[1]
            for s in ((1, 1), (2, 3))
            for d in (1, 2)
        ),
        x,
    )


def test_strided_views_of_views() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    agree(
        (
            lambda x: x.permute(2, 0, 1).as_strided((2, 2), (1, 5)),
            lambda x: x[0].t().as_strided((3,), (4,), 1),
            lambda x: x[1:].as_strided((2, 2), (3, 1)),
            lambda x: x[1:].as_strided((2, 2), (3, 1), 13),
        ),
        x,
    )
    with pytest.raises(UnsupportedError, match="has not all elements of its memory"):
        agree((lambda x: x[:, :, ::2].as_strided((2, 2), (1, 5)),), x)
    part = torch.arange(20.0)[5:15]
    agree((lambda x: x.as_strided((2, 2), (1, 2)), lambda x: x.as_strided((3,), (2,), 9)), part)
    with pytest.raises(UnsupportedError, match="memory 5 elements before its input"):
        agree((lambda x: x.as_strided((2, 2), (1, 2), 0),), part)


def test_images_of_one_and_three_axes_by_factors() -> None:
    """Pixels lie where the factor says, not the quotient of the sizes: 5 * 1.7 are 8."""
    row, volume = torch.arange(10.0).reshape(1, 2, 5), torch.arange(120.0).reshape(1, 2, 3, 4, 5)
    factors = (1.7, 0.6, 1.3)
    agree(
        (
            *(
                lambda x, v, m=m: F.interpolate(x, scale_factor=1.7, mode=m)
                for m in ("nearest", "linear", "nearest-exact")
            ),
            *(
                lambda x, v, m=m: F.interpolate(v, scale_factor=factors, mode=m)
                for m in ("nearest", "trilinear", "nearest-exact")
            ),
            lambda x, v: F.interpolate(x, scale_factor=0.55, mode="linear"),
            lambda x, v: F.interpolate(
                x, scale_factor=1.7, mode="linear", recompute_scale_factor=True
            ),
        ),
        row,
        volume,
    )


class Shifted(nn.Module):
    """A module that computes with a number of its own, as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("shift", torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        number = self.shift.item()
        return x.roll(-round(number * 3), -1) * number


def test_constant_element_is_a_number() -> None:
    x = torch.randn(2, 5)
    program = import_program(decompose_program(export_module(Shifted(), [x])), "edges")
    result = Interpreter(relay.infer_type(program.to_module())).evaluate("main", x.numpy())
    np.testing.assert_allclose(result, Shifted()(x).numpy(), 1e-6)


class Attention(torch.nn.Module):
    """Attention under a mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, attn_mask=mask)


@pytest.mark.parametrize("is_bool", [True, False])
def test_queries_that_see_no_key_give_zeros(is_bool: bool) -> None:
    torch.manual_seed(4)
    x, mask = torch.randn(2, 3, 5, 8), torch.ones(2, 1, 5, 5, dtype=torch.bool).tril()
    mask[1, :, 2:4] = False  # as a batch of texts of their own lengths has
    argument = mask if is_bool else torch.where(mask, 0.0, -torch.inf)
    torch._dynamo.reset()
    with torch.no_grad():
        expected = Attention()(x, argument)
        torch.testing.assert_close(
            torch.compile(Attention(), backend="ekiden")(x, argument), expected
        )
    actual = ekiden.compile(Attention(), example_inputs=(x, argument))(x, argument)
    torch.testing.assert_close(torch.from_numpy(actual.numpy()), expected)
