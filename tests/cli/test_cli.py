"""The command line: output, and one-line errors."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.cli import COMMANDS, main
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.target import Target
from onnx_files import arguments, expected, model

pytestmark = pytest.mark.quick


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    return path


def arrays(folder: Path, n: int = 2) -> list[str]:
    options = []
    for name, array in arguments(n).items():
        np.save(folder / f"{name}.npy", array)
        options += ["--input", f"{name}={folder / name}.npy"]
    return options


def fails(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The one line that a command prints when it ends with 1."""
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith(f"ekiden {argv[0]}: ")
    return err.removeprefix(f"ekiden {argv[0]}: ").rstrip("\n")


def test_compile_writes_an_artifact(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small.eki"
    assert main(["compile", str(onnx_file), "-o", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{out}: ") and lines[1:] == [
        "  input x: float32[n, 3]",
        "  input b: float32[n, 1]",
        "  output y: float32[n, 4]",
    ]
    assert out.read_bytes()[:8] == b"\x89EKIDEN\n"


@pytest.mark.slow
def test_compile_prints_phase_times(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "small.eki"
    chart, rows = tmp_path / "t.speedscope.json", tmp_path / "t.json"
    args = ["compile", str(onnx_file), "-o", str(out), "--timings", "--timings-file"]
    assert main([*args, str(chart)]) == 0
    text = capsys.readouterr().out
    table = [line[:44].rstrip() for line in text[text.index("phase ") :].splitlines()[1:-1]]
    top = [row for row in table if not row.startswith(" ")]
    assert top[:4] == ["start", "load compiler", "import", "InferType"]
    assert top[4:8] == ["NameDimensions", "DeclareConditions", "vm", "kernels"]
    assert "bytecode" in top and "write" in top
    inner = ["  FuseOps", "  MemoryPlan", "  link"]
    assert [r for r in table if r in inner] == inner
    assert json.loads(chart.read_text())["profiles"][0]["type"] == "evented"
    assert main([*args, str(rows)]) == 0
    phases = [item["phase"] for item in json.loads(rows.read_text())["phases"]]
    assert ["import"] in phases and ["vm", "FuseOps"] in phases


def test_run_writes_its_outputs(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    assert main(["run", str(artifact), *arrays(tmp_path), "--output-dir", str(out)]) == 0
    assert capsys.readouterr().out == "y: float32 (2, 4)\n"
    actual = np.load(out / "output0.npy")
    np.testing.assert_allclose(actual, expected(**arguments(2)), rtol=1e-5, atol=1e-6)


def test_run_prints_its_outputs(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(artifact), *arrays(tmp_path)]) == 0
    assert "[[" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("command", [["bench", "--seconds", "0.02"], ["profile"]])
def test_model_is_compiled_first(
    onnx_file: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], str(onnx_file), *command[1:], "--dim", "n=4"]) == 0
    assert capsys.readouterr().out


@pytest.mark.slow
def test_run_compiles_for_the_given_target(
    onnx_file: Path, artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--target", "llvm -mcpu=x86-64" if Target.host().architecture == "x86-64" else "c"]
    bench = ["bench", str(onnx_file), "--seconds", "0.01", "--dim", "n=4", "--json", *target]
    assert main(bench) == 0
    assert Target(json.loads(capsys.readouterr().out)["target"]) == Target(target[1])
    assert main(["verify", str(onnx_file), "--dim", "n=3", *target]) == 0
    for command in (["run", str(artifact)], ["verify", str(artifact), "--model", str(onnx_file)]):
        assert main([*command, *target]) == 1
        assert "is an artifact, which already has its targets" in capsys.readouterr().err
    assert main(["run", str(onnx_file), "--target", "rocm"]) == 1
    assert "no code generator for target kind 'rocm'" in capsys.readouterr().err


def test_bench_prints_times(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", str(artifact), "--seconds", "0.05", "--dim", "n=4"]) == 0
    out = capsys.readouterr().out
    assert "x float32[4, 3]" in out and "median" in out


def test_bench_adds_a_line_of_tvms_log(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.json"
    options = ["--seconds", "0.01", "--dim", "n=4", "--log"]
    for _ in range(2):
        assert main(["bench", str(artifact), *options, str(log)]) == 0
    first, second = map(json.loads, log.read_text().splitlines())
    assert first["timestamp"] <= second["timestamp"] and first["schema_version"] == "0.1"
    assert (first["workload"], first["engine"]) == (artifact.name, "ekiden") and first["hardware"]
    assert first["workload_args"]["inputs"]["x"] == "float32[4, 3]"
    raw = [item["runtime_ms"] for item in first["runtime_raw"]]
    assert len(raw) == first["execution_config"]["repeat"] >= 5
    assert first["runtime_ms_mean"] == pytest.approx(np.mean(raw))
    assert first["runtime_ms_std"] == pytest.approx(np.std(raw), abs=1e-9)
    capsys.readouterr()
    missing = str(tmp_path / "none" / "log.json")
    assert main(["bench", str(artifact), *options, missing]) == 1
    assert f"write '{missing}': no folder" in capsys.readouterr().err


def test_bench_gives_an_object_of_json(artifact: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = runtime.num_threads()
    options = ["--seconds", "0.02", "--dim", "n=4", "--threads", "1", "--json"]
    try:
        assert main(["bench", str(artifact), *options]) == 0
    finally:
        runtime.num_threads(before)
    result = json.loads(capsys.readouterr().out)
    assert result["threads"] == 1 and result["inputs"]["x"] == "float32[4, 3]"
    assert result["runs"] >= 5 and result["file"] == str(artifact)
    assert 0 < result["min_ms"] <= result["median_ms"] <= result["p90_ms"]


@pytest.mark.parametrize(
    ("stage", "expected_text"),
    [
        ("relay", "nn.dense"),
        ("schedule", "tensor_intrin='register_tile("),
        ("tir", "def kernel0("),
        ("llvm", "define "),
        ("asm", "vfmadd"),
        ("c", "_compute(float *"),
        ("bytecode", "fused_nn_contrib_dense_pack"),
    ],
)
def test_inspect_prints_each_stage(
    onnx_file: Path, stage: str, expected_text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "c" if stage == "c" else "llvm -mcpu=x86-64-v3"
    target = [] if stage == "bytecode" else ["--target", text]
    assert main(["inspect", str(onnx_file), "--stage", stage, *target]) == 0
    assert expected_text in capsys.readouterr().out


def test_inspect_shows_target_specific_stages(
    onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = fails(capsys, "inspect", str(onnx_file), "--stage", "asm", "--target", "c")
    assert message == "--stage asm: target kind 'c' has none; it has tir, c"
    message = fails(capsys, "inspect", str(onnx_file), "--stage", "tir", "--target", "rocm")
    there = "there are 'llvm', 'c', 'cuda', 'nvptx', 'opencl', 'vulkan', 'metal' and 'webgpu'"
    assert message == f"there is no code generator for target kind 'rocm'; {there}"


def test_inspect_prints_around_a_pass(onnx_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(onnx_file), "--before", "FuseOps", "--after", "FuseOps"]) == 0
    before, after = capsys.readouterr().out.split("// after FuseOps")
    assert before.startswith("// before FuseOps")
    assert "Primitive=1" not in before and "Primitive=1" in after


def test_inspect_of_an_artifact_is_its_bytecode(
    artifact: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(artifact)]) == 0
    assert "fused_nn_contrib_dense_pack" in capsys.readouterr().out
    message = fails(capsys, "inspect", str(artifact), "--stage", "relay")
    assert message == f"inspect '{artifact}': an artifact holds bytecode alone"


def test_inspect_refuses_unknown_pass(onnx_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = fails(capsys, "inspect", str(onnx_file), "--before", "Fuse")
    assert message.startswith("no pass 'Fuse'; there are RemoveUnusedFunctions, CallPrimFuncs, ")


def _saved(array: np.ndarray[Any, Any]) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


NO_ARRAYS = {
    "text.npy": (b"1,2,3", "another format"),
    "empty.npy": (b"", "an empty one"),
    "objects.npy": (
        _saved(np.array([{}], object)),
        "one of Python's objects, or one cut short",
    ),
    "short.npy": (_saved(np.ones(9))[:-8], "one of Python's objects, or one cut short"),
}
"""Files that are no arrays of ours, and what is said of each."""


def test_run_refuses_file_as_output_folder(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    message = fails(capsys, "run", str(artifact), *arrays(tmp_path), "--output-dir", str(taken))
    assert message == f"--output-dir '{taken}': it is a file, a folder expected"


def test_interrupt_during_import_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ekiden.cli._import_command_module", interrupted)
    assert main(["run", "model.eki"]) == 130


def test_bench_images_grow_in_both_dimensions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A window of five by five takes neither height nor width of 1: one alone does not help."""
    n, h, w = (SizeVar(name) for name in "nhw")
    x = relay.var("x", shape=(n, 1, h, w))
    taken = relay.Function([x], relay.op.nn.avg_pool2d(x, (5, 5)))
    ekiden.compile(IRModule.from_expr(taken)).save(tmp_path / "pool.eki")
    assert main(["bench", str(tmp_path / "pool.eki"), "--seconds", "0.01", "--json"]) == 0
    assert "float32[1, 1, 8, 8]" in capsys.readouterr().out


def test_invalid_inputs_are_refused(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = arrays(tmp_path)

    def refused(*inputs: str) -> str:
        return fails(capsys, "run", str(artifact), *inputs)

    assert refused(*options[:2]) == "input 'b' is missing; there are 'x', 'b'"
    assert refused("--input", "x") == "read an argument: expected NAME=array.npy, got 'x'"
    assert refused(*options, *options) == "read an argument: 'x' is given twice"
    for name, (data, result) in NO_ARRAYS.items():
        path = tmp_path / name
        path.write_bytes(data)
        expected_value = "expected a file of numpy.save, of numbers or text"
        assert (
            refused("--input", f"x={path}")
            == f"input 'x': read '{path}': {expected_value}, got {result}"
        )
    np.savez(packed := tmp_path / "packed.npz", x=np.ones(1))
    assert refused("--input", f"x={packed}") == (
        f"input 'x': expected one array in '{packed}', got an archive"
    )
    assert "nothing.npy" in refused("--input", "x=nothing.npy")
    assert fails(capsys, "bench", str(artifact), "--dim", "m=2") == (
        "read a dimension: no symbol is named 'm'; there are 'n'"
    )
    assert fails(capsys, "bench", str(artifact), "--dim", "n=two") == (
        "read a dimension: expected a number above 0 for 'n', got 'two'"
    )


def test_non_artifact_files_are_refused(
    artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.eki"
    short.write_bytes(artifact.read_bytes()[:1000])
    assert "header" in fails(capsys, "run", str(short))
    nothing = tmp_path / "nothing.eki"
    assert fails(capsys, "run", str(nothing)) == f"load '{nothing}': no such file or directory"


@pytest.mark.slow
def test_nothing_is_left_when_compiling_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(model().SerializeToString()[:-20])
    fails(capsys, "compile", str(broken), "-o", str(tmp_path / "out.eki"))
    unknown = tmp_path / "unknown.onnx"
    onnx.save(model("NoSuchOperator"), unknown)
    assert main(["compile", str(unknown), "-o", str(tmp_path / "out.eki")]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "ekiden compile: import model 'unknown.onnx': 1 node is not supported",
        "  NoSuchOperator 'last': unknown operator",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["broken.onnx", "unknown.onnx"]


def test_output_is_checked_before_compiling(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "nowhere"
    message = fails(capsys, "compile", str(onnx_file), "-o", str(folder / "a.eki"))
    assert message == f"write '{folder / 'a.eki'}': no folder '{folder}'"


@pytest.mark.parametrize("shape", ["x", "x=2,-3", "x=2,3,,", "x=²,3", f"x={'9' * 5000},3"])
def test_malformed_shape_is_refused(
    onnx_file: Path, tmp_path: Path, shape: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "a.eki")
    message = fails(capsys, "compile", str(onnx_file), "-o", out, "--shape", shape)
    assert message.startswith("read ")


def test_unused_cc_option_is_refused(
    onnx_file: Path, artifact: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix in (".eki", ".c", ".tar"):
        for command in (["compile", str(onnx_file)], ["export", str(artifact)]):
            message = fails(capsys, *command, "-o", str(tmp_path / f"a{suffix}"), "--cc", "cc")
            assert f"a{suffix}': no C compiler makes {suffix}, got cc='cc'" in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "--dim", "n=²"], "read a dimension: expected a number above 0 for 'n', got '²'"),
        (
            ["run", "--remote", "here:²"],
            "read an address: host:port expected, got 'here:²'",
        ),
        (
            ["run", "--remote", "here:65536"],
            "read an address: host:port expected, got 'here:65536'",
        ),
    ],
)
def test_invalid_numbers_are_refused(
    artifact: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fails(capsys, words[0], str(artifact), *words[1:]) == message


@pytest.mark.parametrize("number", ["257", "9999999999"])
def test_too_many_threads_are_refused(
    artifact: Path, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["bench", str(artifact), "--threads", number])
    assert caught.value.code == 2
    assert f"expected at most 256 threads, got {number}" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [2**63 - 1, 10**20])
def test_oversized_tensor_is_refused(
    onnx_file: Path, tmp_path: Path, rows: int, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "a.eki")
    message = fails(capsys, "compile", str(onnx_file), "-o", out, "--shape", f"x={rows},3")
    most = "no more than 576460752303423488 elements fit in memory"
    assert message.endswith(f"input 'x': a tensor's type: {most}, got ({rows}, 3)")


def test_folder_without_model_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "a.c")
    message = fails(capsys, "export", str(tmp_path), "-o", out)
    assert message == f"import '{tmp_path}': it is a folder, in which there is no model"


@pytest.mark.slow
def test_non_utf8_file_names_are_accepted(onnx_file: Path, tmp_path: Path) -> None:
    out = os.fsencode(tmp_path / "a") + b"\xff.eki"
    done = subprocess.run(
        [sys.executable, "-m", "ekiden.cli", "compile", str(onnx_file), "-o", out],
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    assert os.path.exists(out) and b"a\\udcff.eki: " in done.stdout


@pytest.mark.slow
def test_unwritable_output_is_an_error(artifact: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ekiden.cli", "inspect", str(artifact)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "ekiden inspect: [Errno 28] No space left on device\n"


def test_wrong_usage_ends_with_2() -> None:
    with pytest.raises(SystemExit) as caught:
        main(["nonsense"])
    assert caught.value.code == 2


def test_help_loads_no_compiler() -> None:
    code = (
        "import sys; from ekiden.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "assert not {'numpy', 'llvmlite', 'onnx', 'rich'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "compile" in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert f"usage: ekiden {command}" in capsys.readouterr().out


@pytest.mark.slow
def test_running_loads_no_compiler(artifact: Path) -> None:
    code = (
        f"import sys, ekiden; ekiden.load({str(artifact)!r})\n"
        "assert not {'llvmlite', 'onnx', 'rich', 'ekiden.relay'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_closed_stdout_pipe_is_no_error(onnx_file: Path) -> None:
    command = f"{sys.executable} -m ekiden.cli inspect {onnx_file} --stage tir | head -n 1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert "Error" not in done.stderr and done.stdout


def test_compile_asks_for_bfloat16(tmp_path: Path, onnx_file: Path) -> None:
    out = tmp_path / "model.eki"
    assert main(["compile", str(onnx_file), "-o", str(out), "--precision", "bfloat16"]) == 0
    assert ekiden.load(out).inputs
