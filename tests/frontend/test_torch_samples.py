"""A sample of PyTorch's operator tests; scripts/pytorch_coverage.py runs all."""

from __future__ import annotations

import importlib.util
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from long_runs import alike

pytest.importorskip(
    "expecttest", reason="PyTorch's table of operators needs the package expecttest"
)
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, of what its tests use


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    path = Path(__file__).parents[2] / "scripts" / "pytorch_coverage.py"
    spec = importlib.util.spec_from_file_location("pytorch_coverage", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@alike(4)
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("atan2", torch.float32),
        ("cumsum", torch.int64),
        ("gather", torch.float32),
        ("index_put", torch.float32),
        ("pow", torch.int64),
        ("scatter_reduce", torch.float32),
        ("slice_scatter", torch.float32),
        ("sort", torch.int64),
        ("where", torch.bool),
        ("nn.functional.avg_pool2d", torch.int64),
    ],
)
def test_samples_agree(coverage: Any, name: str, dtype: torch.dtype) -> None:  # noqa: ANN401
    torch.manual_seed(0)
    entry = next(o for o in coverage.op_db if o.name == name)
    result = [
        coverage.check_sample(case) for case in islice(coverage.iter_samples(entry, dtype), 2)
    ]
    assert result and all(item == "" or item.startswith("skipped") for item in result), result


def test_modules_agree(coverage: Any) -> None:  # noqa: ANN401
    for name in ("nn.Conv1d", "nn.GroupNorm", "nn.LSTM"):
        torch.manual_seed(0)
        entry = next(m for m in coverage.module_db if m.name == name)
        (case,) = islice(coverage.iter_samples(entry, torch.float32), 1)
        assert coverage.check_sample(case) == ""


def test_coverage_page_counts_agreeing_samples(coverage: Any) -> None:  # noqa: ANN401
    lines = [
        {"name": "a", "variant": "", "dtype": "int64", "results": ["", "differs: | 3"]},
        {"name": "b", "variant": "", "dtype": "int64", "results": ["skipped: complex"]},
        {"name": "nn.C", "variant": "module", "dtype": "float32", "results": [""]},
        {"name": "rand", "variant": "", "dtype": "float32", "results": ["differs"]},
    ]
    text = coverage.page(lines)
    assert "1 of 2 (50.0 %)" in text and "1 of 1 (100.0 %)" in text
    assert (
        "| `a` | int64 | 1 of 2 | differs: \\| 3 |" in text and "rand" not in text.split("|", 1)[1]
    )
