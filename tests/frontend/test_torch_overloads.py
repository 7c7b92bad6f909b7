"""Converter rows cover all overloads of PyTorch's operators."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import nn

import ekiden
from ekiden.frontend.torch import registry
from long_runs import alike

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations

DTYPES = (
    torch.float32, torch.int32, torch.uint8, torch.int16, torch.float16, torch.bfloat16,
    torch.float64, torch.int64, torch.uint32, torch.complex64, torch.float8_e4m3fn,
)  # fmt: skip
ALIKE = (
    "Tensor", "Scalar", "Scalar_Tensor", "Tensor_Scalar", "Tensor_Tensor", "default", "self",
    "ScalarOther", "ScalarSelf", "Scalar_mode", "Tensor_mode",
)  # fmt: skip
"""Overloads that differ in which arguments are numbers alone."""
LOOKED_AT = {
    "_assert_async": ("msg",), "_native_batch_norm_legit": ("no_stats",),
    "flatten": ("using_ints",), "log_softmax": ("int",), "scatter_reduce": ("two",),
    "softmax": ("int",), "transpose": ("int",), "unflatten": ("int",),
    "_unsafe_index": ("Tensor_hacked_twin",),
    "_unsafe_index_put": ("hacked_twin",), "all": ("dim",), "any": ("dim",), "bernoulli": ("p",),
    "eye": ("m",), "fake_quantize_per_tensor_affine": ("tensor_qparams",),
    "index": ("Tensor_hacked_twin",), "index_put": ("hacked_twin",),
    "mean": ("dim",), "prod": ("dim_int",), "rand": ("generator",), "rand_like": ("generator",),
    "randn": ("generator",), "randn_like": ("generator",), "randperm": ("generator",),
    "round": ("decimals",), "scatter": ("reduce", "src", "value", "value_reduce"),
    "select": ("int",), "sort": ("stable",), "split": ("sizes",), "squeeze": ("dim", "dims"),
    "squeeze_copy": ("dim", "dims"), "sum": ("dim_IntList",), "sym_size": ("int",),
    "var": ("correction", "dim"), "var_mean": ("correction", "dim"),
    **{f"upsample_{kind}": ("vec",) for kind in (
        "bicubic2d", "bilinear2d", "linear1d", "nearest1d", "nearest2d", "nearest3d",
        "trilinear3d")},
    **{f"_upsample_nearest_exact{rank}d": ("vec",) for rank in (1, 2, 3)},
}  # fmt: skip
"""Row of all overloads -> those of them that take other arguments, which its converter knows."""


def _overloads(key: str) -> Sequence[str]:
    """The overloads of tensors that a row of all overloads answers for."""
    library, _, name = key.partition("::")
    packet = getattr(getattr(torch.ops, library), name, None)
    result = []
    for overload in packet.overloads() if packet is not None else ():
        target = getattr(packet, overload)
        schema = target._schema
        kinds = [str(item.type) for item in schema.arguments]
        is_of_tensors = any("Tensor" in kind and "Dict" not in kind for kind in kinds)
        if schema.is_mutable or "out" in overload.split("_") or not is_of_tensors:
            continue
        if any("Dimname" in str(item) or "str[]" in str(item) for item in (schema, *kinds)):
            continue
        if registry.target_key(target) not in registry.CONVERTER_TABLE and registry.find_converter(
            target
        ):
            result.append(overload)
    return result


def test_rows_of_all_overloads_know_each_of_them() -> None:
    """An overload that PyTorch adds is looked at before a row answers for it."""
    unknown = []
    for key in registry.CONVERTER_TABLE:
        if "." in key or not key.startswith("aten::"):
            continue
        overloads = [o for o in _overloads(key) if o not in ALIKE]
        known = LOOKED_AT.get(key.removeprefix("aten::"), ())
        unknown += [f"{key}.{o}" for o in overloads if o not in known]
    left = {"aten::eq.Tensor_list", "aten::ne.Tensor_list", "aten::index.list_Tensor"}
    assert set(unknown) <= left, "of TorchScript's lists alone"


def _check(function: Callable[..., object], *inputs: torch.Tensor) -> None:
    """The same by both roads as eagerly, bit for bit."""

    class Apply(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> object:
            return function(*inputs)

    torch._dynamo.reset()
    expected = function(*inputs)
    many = list(expected) if isinstance(expected, tuple) else [expected]
    compiled = torch.compile(function, backend="ekiden")(*inputs)
    _same(list(compiled) if isinstance(compiled, tuple) else [compiled], many)
    if any(isinstance(item, torch.Tensor) and item.is_complex() for item in many):
        return
    results = ekiden.compile(Apply(), inputs)(*inputs)
    results = results if isinstance(results, tuple) else (results,)
    _same([torch.utils.dlpack.from_dlpack(item) for item in results], many)


def _same(result: list[object], reference: list[object]) -> None:
    for a, b in zip(result, reference, strict=True):
        assert isinstance(a, torch.Tensor)
        assert isinstance(b, torch.Tensor)
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        same = [t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b)]
        assert torch.equal(*same)


@alike(12)
@pytest.mark.parametrize(("before", "after"), [*itertools.permutations(DTYPES, 2)])
def test_views_of_other_dtypes_are_of_the_same_bits(
    before: torch.dtype, after: torch.dtype
) -> None:
    data = (torch.arange(96) * 7 % 61).to(torch.uint8).view(before).reshape(3, -1)
    _check(lambda x: x.view(after).clone(), data)


def test_views_of_truth_values_are_bytes() -> None:
    _check(lambda x: x.view(torch.uint8) + 1, torch.tensor([True, False]))
    _check(lambda x: x.view(torch.bool), torch.tensor([1, 0], dtype=torch.uint8))


def test_where_of_a_condition_returns_indices() -> None:
    _check(lambda x: torch.where(x > 0), torch.tensor([[1.0, -1.0], [0.0, 2.0]]))


@pytest.mark.parametrize("dims", [(), (0,), (0, 1)])
def test_any_over_no_axis_is_elementwise(dims: tuple[int, ...]) -> None:
    x = torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    _check(lambda x: (torch.any(x, dim=dims), torch.all(x, dim=dims)), x)


def test_extremes_with_a_constant_that_is_no_number() -> None:
    """A NaN wins on either side, whatever its sign."""
    nan = float("nan")
    _check(lambda x: (x.clamp(min=nan).isnan(), x.clamp(max=-nan).isnan()), torch.ones(40))


def test_linear_resizing_copies_along_an_axis_that_keeps_its_size() -> None:
    x = torch.arange(16.0).reshape(1, 1, 2, 2, 4)

    class Resize(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.interpolate(x, scale_factor=1.3, mode="trilinear")

    result = torch.utils.dlpack.from_dlpack(ekiden.compile(Resize(), (x,))(x))
    torch.testing.assert_close(result, Resize()(x))
