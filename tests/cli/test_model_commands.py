"""`ekiden check`, `verify` and `doctor`: what they print, their JSON and their exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ekiden.cli import doctor, main
from ekiden.compiler import verify
from onnx_files import model


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    path = tmp_path / "small.onnx"
    onnx.save(model(), path)
    return path


@pytest.fixture
def strange_file(tmp_path: Path) -> Path:
    graph_model = model()
    graph_model.graph.node.append(helper.make_node("Sigmoidd", ["y"], ["z"], name="last"))
    graph_model.graph.output[0].name = "z"
    path = tmp_path / "strange.onnx"
    onnx.save(graph_model, path)
    return path


def as_json(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    result = json.loads(capsys.readouterr().out)
    assert isinstance(result, dict)
    return result


def test_check_lists_operators_and_inputs(
    onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(onnx_file), "--dim", "n=4"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "  input   x: float32[n, 3]" in lines and "  sizes   n = 4" in lines
    assert lines[-1] == "everything is supported"


def test_check_json_reports_costs(onnx_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", str(onnx_file), "--json", "--dim", "n=4"]) == 0
    result = as_json(capsys)
    assert result["supported"] is True and result["dimensions"] == {"n": 4}
    assert result["host_functions"] == [] and result["unsupported"] == []
    assert isinstance(result["activation_bytes"], int) and result["activation_bytes"] >= 4 * 4 * 4


def test_check_finds_a_valid_size_above_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], name="wide")]
    x, y = (helper.make_tensor_value_info(n, 1, ["b", 1, f"{n}s"]) for n in "xy")
    weight = onnx.numpy_helper.from_array(np.ones((1, 1, 20), np.float32), "w")
    graph = helper.make_graph(nodes, "test", [x], [y], [weight])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "wide.onnx")
    assert main(["check", str(tmp_path / "wide.onnx")]) == 0
    result = capsys.readouterr().out
    assert "b = 1, xs = 64" in result and "MFLOP" in result
    assert main(["check", str(tmp_path / "wide.onnx"), "--dim", "xs=8"]) == 0
    assert "figures are left out" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "wide.onnx"), "--against", "onnx"]) == 0
    assert "agrees with onnx" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "wide.onnx"), "--dim", "xs=8"]) == 1
    assert "xs" in capsys.readouterr().err


def test_check_lists_what_is_not_supported(
    strange_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(strange_file)]) == 3
    out = capsys.readouterr().out
    assert "Sigmoidd 'last' (ai.onnx" in out and "the nearest supported are Sigmoid" in out
    assert "register(domain, operator)" in out
    assert main(["check", str(strange_file), "--json"]) == 3
    problems = as_json(capsys)["problems"]
    assert isinstance(problems, list) and problems[0]["operator"] == "Sigmoidd"


def test_check_refuses_non_models(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("not a model")
    assert main(["check", str(path)]) == 1
    assert capsys.readouterr().err.startswith("ekiden check: import model 'text.onnx'")


@pytest.mark.parametrize("engine", ["onnxruntime", "onnx"])
def test_verify_agrees(engine: str, onnx_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["verify", str(onnx_file), "--against", engine, "--dim", "n=2", "--layers", "--json"]
    assert main(args) == 0
    result = as_json(capsys)
    assert result["agrees"] is True and result["first_difference"] is None
    assert isinstance(result["tensors"], list) and len(result["tensors"]) > 1


def test_verify_refuses_the_tolerance_of_another_comparison(
    onnx_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(onnx_file), "--snr", "40"]) == 1
    assert "--snr: no tolerance of a comparison with an engine" in capsys.readouterr().err
    assert main(["verify", str(onnx_file), "--against", str(onnx_file), "--rtol", "1"]) == 1
    assert "--rtol: no tolerance of a comparison with another model" in capsys.readouterr().err


def test_verify_asks_for_exact_products_of_bytes(tmp_path: Path) -> None:
    """Sums of two such products leave 16 bits, where some processors stop."""
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [2, 64])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [2, 16])
    weight = onnx.numpy_helper.from_array(np.full((64, 16), -128, np.int8), "w")
    graph = helper.make_graph([node], "bytes", [x], [y], [weight])
    graph_model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(graph_model, tmp_path / "bytes.onnx")
    np.save(tmp_path / "x.npy", np.full((2, 64), 255, np.uint8))
    args = ["verify", str(tmp_path / "bytes.onnx"), "--input", f"x={tmp_path / 'x.npy'}"]
    assert main(args) == 0


def test_verify_names_the_first_node_that_differs(
    onnx_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = verify._evaluate_with_reference
    monkeypatch.setattr(
        verify, "_evaluate_with_reference", lambda m, f: [2 * a + 1 for a in real(m, f)]
    )
    args = ["verify", str(onnx_file), "--against", "onnx", "--layers"]
    assert main(args) == 3
    nodes = [n for n in model().graph.node if n.op_type != "Constant"]
    last = capsys.readouterr().out.splitlines()[-1]
    assert f"first in {nodes[0].output[0]!r}, made by {nodes[0].op_type}" in last


def test_verify_comparison_modes() -> None:
    tolerance = verify.ComparisonTolerance(rtol=1e-4, atol=1e-6, of_range=1e-5)
    one, nan = np.ones(2, np.float32), np.array([np.nan, 1], np.float32)
    far, long = np.array([1, 1.1], np.float32), np.ones(3, np.float32)
    whole, inf = np.array([1, 2]), np.array([np.inf, 1], np.float32)
    for actual, expected, agrees in [
        (one, one, True), (one, far, False), (nan, nan, True), (nan, one, False),
        (nan, inf, False), (inf, nan, False), (inf, inf, True), (inf, -inf, False),
        (one, long, False), (whole, whole, True), (whole, whole + 1, False), (one, whole, False),
    ]:  # fmt: skip
        assert verify.compare("node", "t", actual, expected, tolerance).agrees is agrees


def test_doctor_passes_on_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    result = as_json(capsys)
    assert result["works"] is True and isinstance(result["findings"], list)
    names = [f["name"] for f in result["findings"]]
    assert names[:4] == ["system", "processor", "runtime", "compiler"]


def test_doctor_reports_conflicting_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        doctor, "SYSTEM_CHECKS", [row for row in doctor.SYSTEM_CHECKS if row[0] == "packages"]
    )
    monkeypatch.setattr(doctor, "version", lambda name: "0.1.0")
    assert main(["doctor"]) == 3
    printed = " ".join(capsys.readouterr().out.split())
    assert "ekiden and ekiden-runtime 0.1.0 are both installed, over each other" in printed
    assert "pip uninstall ekiden-runtime; pip install --force-reinstall ekiden" in printed


def test_doctor_suggests_fixes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> str:
        raise OSError("no room")

    monkeypatch.setattr(doctor, "SYSTEM_CHECKS", (("kernel cache", broken, "make room"),))
    assert main(["doctor"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["broken", "kernel", "cache", "OSError:", "no", "room"]
    assert lines[1].strip() == "make room"


def test_commands_on_texts_and_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [helper.make_tensor_value_info(name, 8, ["n"]) for name in ("a", "b", "c")]
    rows = helper.make_tensor_sequence_value_info("rows", 1, ["n", 2])
    parts = helper.make_tensor_sequence_value_info("parts", 1, ["n", 2])
    models = {
        "texts": ([helper.make_node("StringConcat", ["a", "b"], ["c"])], texts[:2], texts[2:]),
        "rows": ([helper.make_node("SequenceErase", ["rows", "at"], ["parts"])], [rows], [parts]),
    }
    first = helper.make_tensor("at", 7, [], [0])
    for name, (nodes, inputs, outputs) in models.items():
        graph = helper.make_graph(nodes, name, inputs, outputs, [first][: name == "rows"])
        opset = [helper.make_opsetid("", 20)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), f"{name}.onnx")
        assert main(["bench", f"{name}.onnx", "--seconds", "0.01"]) == 0
        assert main(["verify", f"{name}.onnx"]) == 0
    printed = capsys.readouterr().out
    assert (
        "a string[1], b string[1]" in printed and "rows [float32[1, 2], float32[1, 2]]" in printed
    )
    np.save("a.npy", np.array(["one", "two"]))
    arguments = ["--input", "a=a.npy", "--input", "b=a.npy", "--output-dir", "."]
    assert main(["run", "texts.onnx", *arguments]) == 0
    assert np.load("output0.npy").tolist() == ["oneone", "twotwo"]
