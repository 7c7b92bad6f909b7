"""TVM's command line and its functions."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ekiden import relay
from ekiden.driver import tvmc
from ekiden.driver.tvmc.autotuner import filter_tasks
from ekiden.driver.tvmc.compiler import parse_pass_configs, parse_target
from ekiden.driver.tvmc.main import main, parse_shapes
from ekiden.runtime.errors import InputError, LoadError

SOUND_PACKAGE = b'{"executor": "graph", "target": "llvm"}'
X = np.arange(16, dtype=np.float32).reshape(2, 8)


@pytest.fixture
def model_path(tmp_path: Path) -> Path:
    """A product with a weight of ones, and relu."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])]
    graph = helper.make_graph(
        nodes, "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])],
        [numpy_helper.from_array(np.ones((8, 4), np.float32), "w")],
    )  # fmt: skip
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))
    return path


def test_a_model_is_compiled_and_run_from_the_command_line(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package, inputs, outputs = (tmp_path / n for n in ("m.tar", "in.npz", "out.npz"))
    np.savez(inputs, x=X)
    options = ["--dump-code", "relay,asm", "--pass-config", "tir.disable_vectorize=true"]
    command = ["compile", str(model_path), "--target", "llvm", "-o", str(package)]
    assert main([*command, *options]) == 0
    assert "nn.relu" in (tmp_path / "m.tar.relay").read_text()
    assert "ret" in (tmp_path / "m.tar.asm").read_text()
    with tarfile.open(package) as archive:
        assert {"mod.so", "mod.json", "mod.params", "tvmc.json"} == set(archive.getnames())
    run = ["run", str(package), "-i", str(inputs), "-o", str(outputs)]
    assert main([*run, "--print-time", "--print-top", "2"]) == 0
    printed = capsys.readouterr().out
    assert "mean (ms)" in printed and "92." in printed
    np.testing.assert_allclose(np.load(outputs)["output_0"], X.sum(1, keepdims=True).repeat(4, 1))


def test_mistakes_are_told_with_exit_code_1(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(tmp_path / "none.onnx")]) == 1
    assert "none.onnx' does not exist" in capsys.readouterr().err
    assert main(["compile", str(model_path), "--target", "nothing"]) == 1
    assert "tvmc: " in capsys.readouterr().err
    assert main(["compile", str(model_path), "--executor-aot-unpacked-api", "1"]) == 1
    assert "--executor-aot-unpacked-api is of the executor 'aot'" in capsys.readouterr().err
    assert main([]) == 1


def test_functions_load_compile_and_run(model_path: Path, tmp_path: Path) -> None:
    model = tvmc.load(str(model_path))
    model.save(tmp_path / "again.tar")
    again = tvmc.TVMCModel(model_path=tmp_path / "again.tar")
    package = tvmc.compile(again, "llvm", executor="aot")
    assert package.executor_type == "aot" and package.type == "classic"
    result = tvmc.run(package, "cpu", inputs={"x": X}, repeat=1, number=1)
    np.testing.assert_allclose(result.get_output("output_0")[0], X[0].sum())
    assert "'output_0': (2, 4)" in str(result)
    with pytest.raises(InputError, match="no output 'y'; there are output_0"):
        result.get_output("y")
    with pytest.raises(InputError, match="no input is called 'z'; there are: x"):
        tvmc.run(package, "cpu", inputs={"z": X})
    with pytest.raises(InputError, match="device one of cpu, "):
        tvmc.run(package, "abacus")
    with pytest.raises(LoadError, match="a package of tvmc compile expected"):
        tvmc.TVMCPackage(tmp_path / "again.tar")


def test_programs_without_a_graph_are_packages_too() -> None:
    text = "def @main(%x: Tensor[(), int32]) { if (equal(%x, 0)) { %x } else { @main(%x - 1) } }"
    package = tvmc.compile(tvmc.TVMCModel(relay.parse(text)), "llvm")
    assert package.graph is None
    result = tvmc.run(package, "cpu", inputs={"x": np.int32(3)}, repeat=1, number=1)
    assert result.get_output("output_0") == 0


def test_microcontrollers_get_a_library(model_path: Path, tmp_path: Path) -> None:
    command = [
        "compile", str(model_path), "--target", "c", "--executor", "aot", "--runtime", "crt",
        "--executor-aot-interface-api", "c", "--executor-aot-unpacked-api", "1",
        "-f", "mlf", "-o", str(tmp_path / "m.tar"),
    ]  # fmt: skip
    assert main(command) == 0
    package = tvmc.TVMCPackage(tmp_path / "m.tar")
    assert package.type == "mlf"
    with pytest.raises(InputError, match="is for a microcontroller"):
        tvmc.run(package, "cpu")


def test_records_choose_kernels(model_path: Path, tmp_path: Path) -> None:
    assert main(["tune", str(model_path), "-o", str(tmp_path / "r.json"), "--trials", "1"]) == 0
    package = tvmc.compile(tvmc.load(str(model_path)), "llvm", tuning_records=tmp_path / "r.json")
    assert package.lib_name == "mod.so"
    with pytest.raises(FileNotFoundError, match="tuning records .* do not exist"):
        tvmc.compile(tvmc.load(str(model_path)), "llvm", tuning_records=tmp_path / "none.json")


def test_texts_of_options() -> None:
    assert parse_shapes("x:[1, 3] b/y:0:[2,-1]") == {"x": [1, 3], "b/y:0": [2, -1]}
    assert parse_shapes('"a b":[4]') == {"a b": [4]}
    with pytest.raises(InputError, match="--input-shapes"):
        parse_shapes("x=1,2")
    assert parse_pass_configs(["tir.disable_vectorize=true"]) == {"tir.disable_vectorize": True}
    for text in ("nothing=1", "tir.disable_vectorize=2", "tir.disable_vectorize"):
        with pytest.raises(InputError, match="--pass-config"):
            parse_pass_configs([text])
    assert parse_target("llvm", options={"llvm": {"mcpu": "haswell"}}).mcpu == "haswell"
    with pytest.raises(InputError, match="one target expected"):
        parse_target("clml, llvm")
    with pytest.raises(InputError, match="numbers or ranges expected, got 'x'"):
        filter_tasks([], "x")
    with pytest.raises(InputError, match="no format is called 'word'"):
        tvmc.load("model.doc", model_format="word")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"mod.so": b"x", "tvmc.json": b"[" * 100_000}, "RecursionError"),
        ({"mod.so": b"x", "tvmc.json": b"{}"}, "KeyError"),
        ({"mod.so": b"x", "tvmc.json": b"9" * 5000}, "ValueError"),
        ({"mod.so": b"x", "tvmc.json": b"[]"}, "an object expected"),
        ({"metadata.json": b'{"modules": {}}'}, "ValueError"),
        ({"metadata.json": b'{"modules": {"a": 3}}'}, "TypeError"),
        ({"mod.so": b"x", "tvmc.json": SOUND_PACKAGE, "mod.json": b"\xff"}, "Unicode"),
        ({"../x": b"x"}, "a file outside of it"),
        ({"a": b"x", "a/b": b"x"}, "a file and a folder"),
        ({"a": b"x"}, "a package of tvmc compile expected"),
    ],
)  # fmt: skip
def test_hostile_packages_are_refused(
    tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with pytest.raises(LoadError, match=message):
        tvmc.TVMCPackage(tmp_path / "a.tar")


def test_a_package_that_expands_without_end_is_refused(tmp_path: Path) -> None:
    """A member says two gigabytes, of which a packed archive needs two megabytes."""
    member = tarfile.TarInfo("mod.so")
    member.size = 2 << 30
    (tmp_path / "a.tar").write_bytes(gzip.compress(member.tobuf() + bytes(1 << 20)))
    with pytest.raises(LoadError, match="an archive of at most 1073741824 bytes expected"):
        tvmc.TVMCPackage(tmp_path / "a.tar")
    whole = gzip.compress(member.tobuf() + bytes(1 << 20))
    (tmp_path / "a.tar").write_bytes(whole[:40] + b"damaged" + whole[47:])
    with pytest.raises(LoadError, match="no tar"):
        tvmc.TVMCPackage(tmp_path / "a.tar")
