"""Every way that quantisers write a convolution or a product of bytes ends in a kernel that
multiplies bytes, and gives the integers that it says.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import ekiden
from ekiden.backend.vm.module_kernels import primitive_functions
from ekiden.backend.vm.pipeline import vm_pipeline
from ekiden.compiler.build import import_model
from ekiden.target import Target
from integer_grid import Case, families_of, grid, multiplies
from long_runs import alike, share
from processor import processors

CASES = list(grid())
CLASSES = ("cascadelake", "x86-64-v3", "sapphirerapids")
WORDS = {
    "cascadelake": ("dot4_u8s8",),
    "x86-64-v3": ("madd",),
    "sapphirerapids": ("amx_int8", "dot4_u8s8"),
}
"""Class of processors -> how it multiplies words of bytes: of the second there are two ways, of the
third tiles pay only where rows have several words."""


@alike(5)
@pytest.mark.quick
@pytest.mark.parametrize("cpu", CLASSES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_integer_forms_use_int8_kernels(case: Case, cpu: str) -> None:
    small = case.small
    result = families_of(small.model(), Target.parse(f"llvm -mcpu={cpu}"))
    if small.groups == small.channels:
        assert result == ["depthwise_conv_nhwc"]  # which reads bytes and adds up floats
        return
    few = small.groups > 1 and small.channels // small.groups % 4
    for family in result:
        assert family.startswith(("conv_nhwc_pack", "dense_pack", "winograd_conv2d")), result
        assert few or family == "winograd_conv2d" or any(word in family for word in WORDS[cpu]), (
            result
        )


@pytest.mark.parametrize("window", [0, 3])
def test_weight_whose_zero_point_is_a_vector_of_one_zero_is_multiplied_once(window: int) -> None:
    case = Case("linear", channels=32, out=32, size=8, window=window)
    module = vm_pipeline(Target.parse("llvm -mcpu=x86-64-v3"))(import_model(case.model()))
    kernels = [function for function, _ in primitive_functions(module) if multiplies(function)]
    assert len(kernels) == 1
    assert "sum(" not in str(kernels[0])


def kernels_of(case: Case) -> list[str]:
    """The kernels of a case as text, on a processor with dot products of bytes."""
    module = vm_pipeline(Target.parse("llvm -mcpu=cascadelake"))(import_model(case.model()))
    return [str(function) for function, _ in primitive_functions(module)]


def test_convolution_and_window_sums_share_packed_data() -> None:
    case = Case("linear", weight="uint8", channels=16, out=32, size=9, stride=2)
    kernels = kernels_of(case)
    assert sum("nn.conv2d(" in kernel for kernel in kernels) == 2
    (layout,) = [kernel for kernel in kernels if "axes=[0, 2, 3, 1]" in kernel]
    assert "nn.pad(" in layout


@pytest.mark.parametrize(("columns", "is_direct"), [(128, True), (100, False)])
def test_computed_weight_of_whole_panels_is_packed_in_one_pass(
    columns: int, is_direct: bool
) -> None:
    case = Case("integer", window=0, channels=64, out=columns, size=9, batch=3)
    moving = [k for k in kernels_of(case) if "transpose(" in k or "contrib_pack_weight(" in k]
    assert (len(moving) == 1) == is_direct
    assert any("contrib_pack_weight(" in kernel for kernel in moving) != is_direct


@share(6)
@pytest.mark.parametrize("text", processors())
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.way == "integer"], ids=lambda case: case.name
)
def test_integer_forms_match_integer_sums(case: Case, text: str) -> None:
    small = case.small
    model, feed = small.model(), small.feed()
    (expected,) = ReferenceEvaluator(model).run(None, feed)
    np.testing.assert_array_equal(ekiden.compile(model, text)(**feed).numpy(), expected)
