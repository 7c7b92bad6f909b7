"""Invalid arguments give one-line errors: numbers, files, names without a match."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from test_cli import fails

import ekiden
from ekiden import runtime
from ekiden.cli import main
from ekiden.frontend.onnx import survey
from ekiden.ir.pass_context import PassContext
from ekiden.runtime import environment
from ekiden.runtime.devices.memory import free_memory, within_free_memory
from ekiden.runtime.errors import CompileError, ImportModelError, InputError, PassError
from onnx_files import arguments, model

pytestmark = pytest.mark.quick


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    return path


NUMBERS = [
    ("bench", "--seconds", "-1", "expected a number above 0, got '-1'"),
    ("bench", "--seconds", "0", "expected a number above 0, got '0'"),
    ("bench", "--seconds", "nan", "expected a number above 0, got 'nan'"),
    ("bench", "--seconds", "soon", "expected a number above 0, got 'soon'"),
    ("bench", "--threads", "0", "expected a whole number above 0, got '0'"),
    ("profile", "--top", "0", "expected a whole number above 0, got '0'"),
    ("verify", "--rtol", "-1", "expected a number, 0 or above, got '-1'"),
    ("verify", "--atol", "inf", "expected a number, 0 or above, got 'inf'"),
    ("verify", "--of-range", "x", "expected a number, 0 or above, got 'x'"),
]


@pytest.mark.parametrize(("command", "option", "value", "message"), NUMBERS)
def test_invalid_numbers_name_the_argument(
    command: str, option: str, value: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "file", option, value])
    assert caught.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"ekiden {command}: error: argument {option}: {message}"


@pytest.mark.parametrize("command", ["bench", "profile", "debug", "check", "verify"])
@pytest.mark.parametrize("size", ["0", "-2", "1.5"])
def test_invalid_sizes_name_the_argument(
    command: str, size: str, onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(capsys, command, str(onnx_file), "--dim", f"n={size}")
    assert message == f"read a dimension: expected a number above 0 for 'n', got '{size}'"


@pytest.mark.parametrize("dim", ["0", "-1"])
def test_invalid_shapes_name_the_argument(
    dim: str, onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out.eki")
    message = fails(capsys, "compile", str(onnx_file), "-o", out, "--shape", f"x={dim},3")
    assert message == f"read a shape: expected a number above 0 or a symbol's name, got '{dim}'"


def test_random_inputs_beyond_free_memory_are_refused(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(capsys, "bench", str(artifact), "--dim", "n=1000000000000")
    asked, there = message.split("; ")
    assert asked == (
        "random inputs: 16,000.0 GB of memory asked for, most by input 'x' of shape "
        "(1000000000000, 3)"
    )
    assert there.endswith(" GB are free")


def test_run_is_limited_to_free_memory(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside its inputs, which were made: the system would end the process."""
    argument = arguments(200_000)
    exe = ekiden.load(artifact)
    exe(**arguments(2))
    free = free_memory()
    assert free is not None and free > 0
    monkeypatch.setattr("ekiden.runtime.devices.memory.free_memory", lambda: 1 << 20)
    runtime.trim_pools()
    with within_free_memory(), pytest.raises(MemoryError, match="3200000 bytes"):
        exe(**argument)
    assert runtime.memory_limit() == 0
    assert exe(**argument).shape == (200_000, 4)


def test_missing_files_are_refused(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    message = "no such file or directory"
    assert fails(capsys, "run", str(artifact), "--input", f"x={gone}") == (
        f"input 'x': read '{gone}': {message}"
    )
    assert fails(capsys, "inspect", str(gone)) == f"read '{gone}': {message}"
    assert fails(capsys, "debug", str(gone)) == f"load '{gone}': {message}"
    assert fails(capsys, "demo", str(gone)) == f"read '{gone}': {message}"
    state = fails(capsys, "debug", str(artifact), "--state", str(gone))
    assert state == f"load state '{gone}': {message}"
    state = fails(capsys, "debug", str(artifact), "--state", str(artifact))
    assert state.startswith(f"load state '{artifact}': resume state: ")
    trace = fails(capsys, "profile", str(artifact), "--trace", str(gone / "trace"))
    assert trace == f"write '{gone / 'trace'}': no folder '{gone}'"
    assert fails(capsys, "run", str(artifact)) == "expected 2 inputs ('x', 'b'), got 0"


def test_unmatched_names_are_refused(
    onnx_file: Path, artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = tmp_path / "one.npy"
    np.save(one, np.ones(1))
    small = str(onnx_file)
    stage = ["--stage", "tir"]
    for argument, message in (
        (["inspect", small, *stage, "--kernel", "nokernel"],
         "no kernel is of a node 'nokernel'; there are "),
        (["inspect", small, "--kernel", "last"], "--kernel: expected --stage decisions, schedule,"),
        (["inspect", small, *stage, "--after", "FuseOps"], "--stage: --before and --after print"),
        (["inspect", str(artifact), "--target", "llvm"], "--target: an artifact is already"),
        (["profile", str(artifact), "--input", f"z={one}"],
         "no input is named 'z'; there are 'x', 'b'"),
    ):  # fmt: skip
        assert fails(capsys, *argument).startswith(message)
    assert main(["inspect", small, *stage, "--kernel", "last"]) == 0


WRONG = ["hello", None, object(), {"a": 1}, np.array(["a"]), np.zeros(2, "M8[s]")]
BY_NAME = "dict; inputs by name are keywords: executable(**inputs)"
GOT = ["str", "NoneType", "object", BY_NAME, "one of <U1", "one of datetime64[s]"]


@pytest.mark.parametrize(("argument", "result"), list(zip(WRONG, GOT, strict=True)))
def test_non_array_arguments_are_refused(argument: object, result: str, artifact: Path) -> None:
    with pytest.raises(InputError) as caught:
        ekiden.load(artifact)(argument, argument)
    assert str(caught.value) == f"input 'x': expected an array of float32, got {result}"


def test_unknown_dtype_suggests_similar_names() -> None:
    with pytest.raises(TypeError) as caught:
        runtime.empty((2,), "flot32")
    text = str(caught.value)
    assert text.startswith("dtype: expected a name such as float32, ") and text.count(",") <= 4
    with pytest.raises(TypeError) as caught:
        runtime.tensor(["a"])
    assert str(caught.value) == "tensor: expected an array of numbers, got one of <U1"


def test_negative_model_dimensions_are_refused() -> None:
    graph_model = model()
    dim = graph_model.graph.input[0].type.tensor_type.shape.dim[0]
    dim.dim_value = -7
    with pytest.raises(ImportModelError) as caught:
        ekiden.compile(graph_model)
    assert str(caught.value).endswith(
        "input 'x': dimension 0 is -7; 0 or more, a name, or -1 for any expected"
    )
    dim.dim_value = -1
    assert ekiden.compile(graph_model).inputs[0].shape == ("x_dim0", 3)
    assert survey(graph_model).inputs[0].shape == ("x_dim0", 3)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"x": (-2, 3)}, "shape of 'x': a number from 0 on, a name, or None or -1 for any expected,"
         " got -2"),
        ({"x": (True, 3)}, "shape of 'x': a number from 0 on, a name, or None or -1 for any"
         " expected, got True"),
        ({"x": "n,3"}, "shape of 'x': a sequence of dimensions expected, got str: 'n,3'"),
        ({"x": 3}, "shape of 'x': a sequence of dimensions expected, got int: 3"),
        (3, "compile: shape: expected a mapping of names of inputs to shapes, got int"),
    ],
)  # fmt: skip
def test_invalid_python_shapes_are_refused(shape: object, message: str) -> None:
    with pytest.raises(CompileError) as caught:
        ekiden.compile(model(), shape=shape)  # type: ignore[arg-type]
    assert str(caught.value) == message
    rows = ekiden.compile(model(), shape={"x": (np.int64(2), -1)}).inputs[0].shape
    assert rows == (2, 3) or rows[0] == 2


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("EKIDEN_COMPILE_JOBS", "-3", "a whole number above 0"),
        ("EKIDEN_COMPILE_JOBS", "many", "a whole number above 0"),
        ("EKIDEN_CACHE_LIMIT", "lots", "bytes, such as 500M"),
    ],
)
def test_invalid_environment_variables_are_refused(
    name: str, value: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    read = {"EKIDEN_COMPILE_JOBS": environment.num_compile_jobs}.get(
        name, environment.cache_limit_bytes
    )
    with pytest.raises(InputError) as caught:
        read()
    assert str(caught.value) == f"the variable {name}: expected {wanted}, got '{value}'"


@pytest.mark.slow
def test_option_table_is_independent_of_imports() -> None:
    code = "import json; from ekiden.ir.pass_context import PassContext\n"
    show = "print(json.dumps(PassContext.list_configs()))"
    whole = "import ekiden.compiler.build, ekiden.contrib, ekiden.tir.transform\n"
    result = [
        json.loads(subprocess.check_output([sys.executable, "-c", text + show]))
        for text in (code, code + whole)
    ]
    assert result[0] == result[1] and "relay.FuseOps.max_depth" in result[0]
    with pytest.raises(PassError) as caught:
        PassContext(config={"relay.FuseOp.depth": 3})
    assert str(caught.value).endswith(
        "nearest: relay.FuseOps.max_depth; PassContext.list_configs() has all"
    )
