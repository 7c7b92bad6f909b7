"""ONNX's own backend interface, and ONNX's tests run through it."""

from __future__ import annotations

import importlib.util
import re
import sys
import zlib
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ekiden import runtime
from ekiden.driver import onnx_backend
from ekiden.runtime.errors import UnsupportedError
from long_runs import alike, share, sizes

pytestmark = pytest.mark.early


def _reduce_model() -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "sum",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3]),
            helper.make_tensor_value_info("axes", TensorProto.INT64, [None]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def test_run_node_runs_one_operator() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"])
    a, b = np.ones((2, 3), np.float32), np.arange(3, dtype=np.float32)
    (result,) = onnx_backend.run_node(node, [a, b])
    np.testing.assert_array_equal(result, a + b)


def test_outputs_are_returned_by_name() -> None:
    node = helper.make_node("Split", ["x"], ["left", "right"], axis=0, num_outputs=2)
    result = onnx_backend.run_node(node, {"x": np.arange(4, dtype=np.float32)})
    np.testing.assert_array_equal(result.right, [2, 3])


def test_rank_determining_input_is_specialized() -> None:
    rep = onnx_backend.prepare(_reduce_model())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for axis in (0, 1, 0):
        (result,) = rep.run([x, np.array([axis])])
        np.testing.assert_array_equal(result, x.sum(axis))
    assert rep.fixed == ("axes",)


def test_onnx_backend_devices() -> None:
    assert onnx_backend.supports_device("CPU") and onnx_backend.supports_device("CPU:0")
    assert not onnx_backend.supports_device("CUDA")
    with pytest.raises(UnsupportedError, match="CUDA"):
        onnx_backend.prepare(_reduce_model(), "CUDA")


# ONNX's own tests. docs/onnx-coverage.md says which pass.

ROOT = Path(__file__).parents[2]
PARTS = 16


@cache
def coverage() -> ModuleType:
    """The script that runs the tests and writes the table."""
    spec = importlib.util.spec_from_file_location(
        "onnx_coverage", ROOT / "scripts/onnx_coverage.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@cache
def tables() -> dict[str, dict[str, str]]:
    """Kind of tests -> test -> what the table says of it."""
    result: dict[str, dict[str, str]] = {}
    for line in (ROOT / "docs/onnx-coverage.md").read_text().splitlines():
        if line.startswith("## "):
            rows = result.setdefault(line[3:], {})
        elif (match := re.fullmatch(r"\| (test_\w+) \| (.+) \|", line)) is not None:
            rows[match[1]] = match[2]
    return result


@cache
def cases(kind: str) -> list[tuple[str, object]]:
    return sorted((c.name, c) for c in coverage().load_cases(kind))


def check(kind: str, part: int, parts: int, device: str = "CPU") -> None:
    """Every test of a part that passes by the table passes."""
    check_cases(kind, cases(kind)[part::parts], device)


def check_cases(kind: str, actual: Sequence[tuple[str, object]], device: str = "CPU") -> None:
    """Every one of these tests that passes by the table passes."""
    rows = tables()[kind]
    expected = [c for name, c in actual if rows[name].startswith("pass")]
    run = partial(coverage().run_and_classify, device=device)
    outcomes = [(c.name, run(c)) for c in expected]  # type: ignore[attr-defined]
    assert {name: o.reason for name, o in outcomes if o.reason} == {}


def node_cases(expanded: bool) -> list[tuple[str, object]]:
    """The tests of operators, or those of the same operators written out in others."""
    return [(name, c) for name, c in cases("node") if ("_expanded" in name) is expanded]


def one_in(count: int, result: list[tuple[str, object]]) -> list[tuple[str, object]]:
    """The tests with an operator that none before has, and one in so many of the others."""
    seen: set[str] = set()
    kept = []
    for name, case in result:
        operators = {node.op_type for node in case.model.graph.node}  # type: ignore[attr-defined]
        if not operators <= seen or zlib.crc32(name.encode()) % count == 0:
            kept.append((name, case))
        seen |= operators
    return kept


@alike(4)
@sizes("one_of", 40, 1)
@pytest.mark.parametrize("part", range(PARTS))
def test_node_tests_pass(part: int, one_of: int) -> None:
    check_cases("node", one_in(one_of, node_cases(False))[part::PARTS])


@share(16, by=lambda part: None)
@pytest.mark.parametrize("part", range(PARTS))
def test_expanded_node_tests_pass(part: int) -> None:
    check_cases("node", node_cases(True)[part::PARTS])


OPENCL_PARTS = 96
"""Of about 20 tests; drivers take half a second for each kernel."""


@pytest.fixture(scope="module")
def opencl() -> None:
    """Skips where there is no such device."""
    if not runtime.device("opencl").exist:
        pytest.skip("needs an OpenCL driver: apt-get install pocl-opencl-icd")


@pytest.mark.parametrize("part", [163, 326])
def test_sample_of_node_tests_passes_on_opencl(opencl: None, part: int) -> None:
    check("node", part, 489, "OPENCL")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(OPENCL_PARTS))
def test_node_tests_pass_on_opencl(opencl: None, part: int) -> None:
    check("node", part, OPENCL_PARTS, "OPENCL")


@sizes("one_of", 3, 1)
@pytest.mark.parametrize("kind", ["simple", "pytorch-converted", "pytorch-operator"])
def test_model_tests_pass(kind: str, one_of: int) -> None:
    check(kind, 0, one_of)


@pytest.mark.parametrize("kind", ["node", "simple", "pytorch-converted", "pytorch-operator"])
def test_table_has_every_test(kind: str) -> None:
    assert list(tables()[kind]) == [name for name, _ in cases(kind)]
