"""`ekiden fit` predicts the memory of a run, and the largest size that fits."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden
from ekiden import cli, relay
from ekiden.compiler.memory_fit import MAX_SIZE, find_largest_size, fit_memory, run_memory
from ekiden.runtime.devices.memory import memory_stats, reset_peak_memory
from ekiden.runtime.errors import CompileError, InputError


def mlp() -> onnx.ModelProto:
    """Return a layer over a batch of n rows, and k numbers that pass by."""
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["k"]),
    ]
    outputs = [
        helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 8]),
        helper.make_tensor_value_info("b", TensorProto.FLOAT, ["k"]),
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Softmax", ["h"], ["a"]),
        helper.make_node("Exp", ["y"], ["b"]),
    ]
    weight = numpy_helper.from_array(np.ones((4, 8), np.float32), "w")
    graph = helper.make_graph(nodes, "mlp", inputs, outputs, [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(mlp(), path)
    return str(path)


def test_memory_fit_components_match_compiled_model() -> None:
    memory = run_memory(mlp(), {"n": 100, "k": 3})
    shape = {"x": (100, 4), "y": (3,)}
    exe = ekiden.compile(mlp(), shape=shape)
    assert memory.weights == exe.weight_bytes[1]
    assert memory.activations == exe.peak_memory
    assert memory.inputs == 100 * 4 * 4 + 3 * 4
    assert memory.total == memory.weights + memory.inputs + memory.activations


def test_run_uses_predicted_memory() -> None:
    size = 100_000
    exe = ekiden.compile(mlp())
    inputs = np.ones((size, 4), np.float32), np.ones(1, np.float32)
    exe(*inputs)  # what later runs reuse is allocated
    before = memory_stats().in_use
    reset_peak_memory()
    exe(*inputs)
    peak = memory_stats().peak - before
    message = run_memory(mlp(), {"n": size, "k": 1}).activations
    # The pool rounds each buffer up, by an eighth at most.
    assert peak <= 1.125 * message + (1 << 16)


@pytest.mark.parametrize(
    "grow",
    [
        lambda a, b: lambda n: a + b * n,
        lambda a, b: lambda n: a + b * n // 64 * 64,
        lambda a, b: lambda n: a + b * n * n,
        lambda a, b: lambda n: a + b * (n if n < 5000 else 3 * n),
    ],
    ids=["linear", "steps", "square", "kinked"],
)
def test_largest_size_is_found(grow: Callable[[int, int], Callable[[int], int]]) -> None:
    source = random.Random(1)
    for _ in range(50):
        bytes_of = grow(source.randrange(10_000), source.randrange(1, 1000))
        limit = source.randrange(1, 10**9)
        largest = find_largest_size(bytes_of, limit)
        assert largest is not None
        assert largest == 0 or bytes_of(largest) <= limit
        assert bytes_of(largest + 1) > limit


def test_linear_growth_needs_few_trials() -> None:
    sizes: list[int] = []
    assert find_largest_size(lambda n: sizes.append(n) or 7 + 4096 * n, 10**9) == 244140
    assert len(sizes) <= 5


def test_memory_that_does_not_grow_fits_any_size() -> None:
    assert find_largest_size(lambda n: 100, 100) is None
    assert find_largest_size(lambda n: 100, 99) == 0
    assert find_largest_size(lambda n: 0 if n < MAX_SIZE else 9, 5) == MAX_SIZE - 1


def test_largest_batch_fits_and_the_next_does_not() -> None:
    fit = fit_memory(mlp(), {"k": 5}, growing_dim="n", free_bytes=1 << 20)
    assert fit.dims == {"n": 1, "k": 5} and fit.fits
    assert fit.largest_size is not None
    sizes = {"n": fit.largest_size, "k": 5}
    assert run_memory(mlp(), sizes).total <= 1 << 20
    assert run_memory(mlp(), {**sizes, "n": fit.largest_size + 1}).total > 1 << 20


def test_sizes_are_required_and_known() -> None:
    with pytest.raises(InputError, match="^fit: dimension 'k' needs a size: --dim k=N$"):
        run_memory(mlp(), {"n": 1})
    with pytest.raises(InputError, match="^fit: no dimension 'm' in the inputs; there are: n, k$"):
        run_memory(mlp(), {"n": 1, "k": 1, "m": 1})


def test_symbols_of_a_relay_program_get_sizes() -> None:
    module = relay.parse(
        "def @main(%x: Tensor[(n, 4), float32], %y: Tensor[(2 * n,), float32]) { exp(%x) }"
    )
    memory = run_memory(module, {"n": 3})
    assert memory.inputs == 3 * 4 * 4 + 6 * 4
    assert memory.activations >= 3 * 4 * 4


def test_memory_that_depends_on_data_is_refused() -> None:
    module = relay.parse("def @main(%x: Tensor[(4,), bool]) { argwhere(%x) }")
    with pytest.raises(CompileError, match="^fit: the memory of a run depends on data"):
        run_memory(module, {})


def test_command_prints_the_parts(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fit", model, "--dim", "k=2", "--grow", "n", "--memory", "1M"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "bytes with n = 1, k = 2:"
    assert [line.split()[0] for line in lines[1:5]] == ["weights", "inputs", "activations", "a"]
    assert lines[5].split() == ["free", "1,048,576"]
    assert lines[6].startswith("largest n that fits: ")


def test_command_says_that_a_model_does_not_fit(
    model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["fit", model, "--dim", "n=100000", "--dim", "k=1", "--memory", "1M", "--json"]
    assert cli.main(options) == 3
    answer = json.loads(capsys.readouterr().out)
    assert (answer["fits"], answer["grow"], answer["largest"]) == (False, None, None)
    assert answer["total"] == answer["weights"] + answer["inputs"] + answer["activations"]


def test_fit_refuses_wrong_arguments(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fit", model, "--memory", "much"]) == 1
    assert "--memory: bytes such as 500M or 8G expected, got 'much'" in capsys.readouterr().err
    artifact = tmp_path / "model.eki"
    ekiden.compile(mlp()).save(artifact)
    assert cli.main(["fit", str(artifact)]) == 1
    assert "is planned already: ekiden inspect shows its memory" in capsys.readouterr().err
