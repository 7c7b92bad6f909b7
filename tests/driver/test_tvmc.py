"""tvmc: TVM's command line and its Python functions."""

from __future__ import annotations

import argparse
import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ekiden as tvm
from ekiden import relay
from ekiden.driver import tvmc
from ekiden.driver.tvmc.autotuner import filter_tasks
from ekiden.driver.tvmc.composite_target import get_codegen_by_target, get_codegen_names
from ekiden.driver.tvmc.config_options import convert_config_json_to_cli
from ekiden.driver.tvmc.frontends import guess_frontend
from ekiden.driver.tvmc.main import main
from ekiden.driver.tvmc.pass_config import parse_configs
from ekiden.driver.tvmc.pass_list import parse_pass_list_str
from ekiden.driver.tvmc.registry import generate_registry_args, reconstruct_registry_entity
from ekiden.driver.tvmc.result_utils import get_top_results
from ekiden.driver.tvmc.shape_parser import ArgumentError, parse_shape_string
from ekiden.driver.tvmc.target import parse_target, target_from_cli, tokenize_target
from ekiden.driver.tvmc.tracker import tracker_host_port_from_cli
from ekiden.driver.tvmc.transform import apply_graph_transforms, convert_graph_layout
from ekiden.driver.tvmc.workspace_pools import (
    generate_workspace_pools_args,
    workspace_pools_recombobulate,
)
from ekiden.relay.backend import Executor
from ekiden.runtime.errors import CompileError, EkidenError, InputError, LoadError
from ekiden.target import Target

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


def test_model_is_compiled_and_run_from_the_command_line(
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


def test_errors_exit_with_code_1(
    model_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(tmp_path / "none.onnx")]) == 1
    assert "none.onnx' does not exist" in capsys.readouterr().err
    assert main(["compile", str(model_path), "--target", "nothing"]) == 1
    assert "tvmc: " in capsys.readouterr().err
    assert main(["compile", str(model_path), "--executor-aot-unpacked-api", "1"]) == 1
    assert "Passed --executor-aot-unpacked-api but did not specify aot" in capsys.readouterr().err
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


def test_shapes_of_inputs_are_parsed_from_text() -> None:
    shapes = parse_shape_string("x:[1, 3] b/y:0:[2,-1],z:[4]")
    assert shapes["x"] == [1, 3] and shapes["z"] == [4]
    assert shapes["b/y:0"][0] == 2 and isinstance(shapes["b/y:0"][1], type(relay.Any()))
    assert parse_shape_string('"a b":[4]') == {"a b": [4]}
    for text in ("x=1,2", "x:[a]", "x:1,2", ""):
        with pytest.raises(ArgumentError, match="expected, got"):
            parse_shape_string(text)


def test_options_of_passes_are_parsed_by_their_type() -> None:
    assert parse_configs(["tir.disable_vectorize=true"]) == {"tir.disable_vectorize": True}
    for text in ("nothing=1", "tir.disable_vectorize=2", "tir.disable_vectorize", ""):
        with pytest.raises(InputError, match="--pass-config"):
            parse_configs([text])
    added = parse_configs([
        "tir.add_lower_pass=1,tir.transform.UnrollLoop", "tir.add_lower_pass=2,os.path.join"
    ])["tir.add_lower_pass"]  # fmt: skip
    assert isinstance(added, list) and [phase for phase, _ in added] == [1, 2]
    for text in ("a,tir.transform.UnrollLoop", "1", "1,ekiden.tir.nothing"):
        with pytest.raises(InputError, match="--pass-config"):
            parse_configs([f"tir.add_lower_pass={text}"])
    assert parse_pass_list_str("FoldConstant,FuseOps") == ["FoldConstant", "FuseOps"]
    with pytest.raises(ArgumentError, match="no pass is called Foo, Bar"):
        parse_pass_list_str("Foo,FuseOps,Bar")


def test_targets_are_parsed_with_their_hosts_and_engines() -> None:
    assert target_from_cli("llvm", {"llvm": {"mcpu": "haswell"}})[0].mcpu == "haswell"
    target, engines = target_from_cli("cmsis-nn, opencl, llvm -mtriple=aarch64-linux-gnu")
    assert target.kind.name == "opencl" and target.host is not None
    assert "aarch64" in str(target.host.attrs["mtriple"])
    assert [engine["name"] for engine in engines] == ["cmsis-nn"]
    assert tokenize_target("c -mattr=+a,+b --flag, llvm -x='1, 2'") == [
        "c", "-mattr=+a,+b", "--flag", ",", "llvm", "-x='1, 2'"
    ]  # fmt: skip
    assert parse_target("c -mattr='+a,+b' --flag")[0]["opts"] == {"mattr": "+a,+b", "flag": True}
    for text in ("llvm, llvm", "cuda, opencl, llvm", "abacus", "llvm, abacus", "abacus, llvm"):
        with pytest.raises(InputError, match="tvmc: --target"):
            target_from_cli(text)
    with pytest.raises(InputError, match="did not specify opencl target"):
        target_from_cli("llvm", {"opencl": {"max_num_threads": 2}})


def test_engine_that_only_tvm_has_is_refused(model_path: Path) -> None:
    assert "ethos-n" in get_codegen_names()
    with pytest.raises(CompileError, match="no code is made for Arm's CMSIS-NN"):
        tvmc.compile(tvmc.load(str(model_path)), "cmsis-nn, llvm")
    with pytest.raises(InputError, match="no code generator is called 'word'"):
        get_codegen_by_target("word")


def test_regions_are_offloaded_to_an_engine_of_the_target(model_path: Path) -> None:
    package = tvmc.compile(tvmc.load(str(model_path)), "onnxruntime, llvm")
    result = tvmc.run(package, "cpu", inputs={"x": X}, repeat=1, number=1)
    np.testing.assert_allclose(result.get_output("output_0"), X.sum(1, keepdims=True).repeat(4, 1))


def test_arguments_of_executors_are_those_of_the_chosen_one() -> None:
    parser = argparse.ArgumentParser()
    generate_registry_args(parser, Executor)
    parse = parser.parse_args
    chosen = reconstruct_registry_entity(
        parse(["--executor=aot", "--executor-aot-interface-api=c"]), Executor
    )
    assert chosen is not None and chosen["interface-api"] == "c"
    assert reconstruct_registry_entity(parse([]), Executor) is None
    for words in (["--executor=x"], ["--executor=aot", "--executor-graph-link-params=1"]):
        with pytest.raises(InputError, match="is not defined|did not specify graph executor"):
            reconstruct_registry_entity(parse(words), Executor)


def test_memory_pools_are_described_by_arguments() -> None:
    parser = argparse.ArgumentParser()
    generate_workspace_pools_args(parser)
    words = ["--workspace-pools=a,b", "--workspace-pools-targets=a:c",
             "--workspace-pools-targets=b:c", "--workspace-pools-size-hint-bytes=b:64",
             "--workspace-pools-target-burst-bytes=b:c:8"]  # fmt: skip
    targets = [Target("c")]
    pools = workspace_pools_recombobulate(parser.parse_args(words), targets, None)
    assert pools is not None and [p.pool_name for p in pools.pools] == ["a", "b"]
    assert [p.size_hint_bytes for p in pools.pools] == [-1, 64]
    assert pools.pools[1].target_burst_bytes == {targets[0]: 8}
    assert workspace_pools_recombobulate(parser.parse_args([]), targets, None) is None
    for word in ("--workspace-pools-targets=c:c", "--workspace-pools-targets=a:llvm",
                 "--workspace-pools-size-hint-bytes=a:x"):  # fmt: skip
        with pytest.raises(InputError, match="tvmc: "):
            workspace_pools_recombobulate(parser.parse_args([*words, word]), targets, None)


def test_layout_and_precision_of_a_model_are_transformed() -> None:
    data, weight = relay.var("data", shape=(1, 3, 8, 8)), relay.var("w", shape=(4, 3, 3, 3))
    module = relay.transform.InferType()(
        tvm.IRModule.from_expr(relay.nn.conv2d(data, weight, kernel_size=(3, 3), channels=4))
    )
    assert "NHWC" in str(convert_graph_layout(module, "NHWC:HWIO", ["nn.conv2d"]))
    assert apply_graph_transforms(module, None) is module
    small = apply_graph_transforms(module, {"mixed_precision": True})
    assert "float16" in str(small)
    assert relay.op.get("nn.conv2d").get_attr("FTVMMixedPrecisionConversionType") is None
    with pytest.raises(InputError, match="1 or 1 layouts expected, got 2"):
        convert_graph_layout(module, ["NHWC", "NCHW"], ["nn.conv2d"])


def test_arguments_come_from_a_configuration(model_path: Path, tmp_path: Path) -> None:
    config = {"targets": [{"kind": "llvm", "mcpu": "x86-64-v3"}], "output": str(tmp_path / "c.tar"),
              "executor": {"kind": "aot"}, "pass-config": {"tir.disable_vectorize": "1"},
              "opt-level": "2"}  # fmt: skip
    assert {"pass_config": ["tir.disable_vectorize=1"]} in convert_config_json_to_cli(config)
    (tmp_path / "c.json").write_text(json.dumps(config))
    assert main(["compile", "--config", str(tmp_path / "c.json"), str(model_path)]) == 0
    package = tvmc.TVMCPackage(tmp_path / "c.tar")
    assert package.executor_type == "aot" and "x86-64-v3" in str(package.targets)
    (tmp_path / "c.json").write_text('{"word": 1}')
    assert main(["compile", "--config", str(tmp_path / "c.json"), str(model_path)]) == 1
    assert main(["compile", "--config", str(tmp_path / "none.json"), str(model_path)]) == 1


def test_relay_programs_are_loaded_from_text_of_any_suffix(tmp_path: Path) -> None:
    (tmp_path / "model.txt").write_text("def @main(%x: Tensor[(2), float32]) { nn.relu(%x) }")
    model = tvmc.load(str(tmp_path / "model.txt"), model_format="relay")
    assert "nn.relu" in model.mod.astext() and model.params == {}


def test_other_options_are_parsed(tmp_path: Path) -> None:
    assert tracker_host_port_from_cli("1.2.3.4:91") == ("1.2.3.4", 91)
    assert tracker_host_port_from_cli("1.2.3.4") == ("1.2.3.4", 9090)
    assert tracker_host_port_from_cli("") == (None, None)
    with pytest.raises(InputError, match="HOST:PORT expected"):
        tracker_host_port_from_cli("1.2.3.4:x")
    result = tvmc.TVMCResult({"output_0": np.array([[1, 9], [5, 3]])}, None)  # type: ignore[arg-type]
    assert get_top_results(result, 2).tolist() == [[1, 2], [9, 5]]
    with pytest.raises(InputError, match="numbers or ranges expected, got 'x'"):
        filter_tasks([], "x")
    with pytest.raises(InputError, match="no format is called 'word'"):
        tvmc.load("model.doc", model_format="word")
    with pytest.raises(InputError, match="'doc' is of no format"):
        guess_frontend("model.doc")
    assert guess_frontend("a.onnx").name() == "onnx"
    assert issubclass(InputError, tvmc.TVMCException)


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


def test_package_that_expands_without_end_is_refused(tmp_path: Path) -> None:
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


def test_shapes_of_a_relay_file_are_honoured(tmp_path: Path) -> None:
    path = tmp_path / "net.txt"
    path.write_text("def @main(%x: Tensor[(n, 3), float32]) { nn.relu(%x) }")
    model = tvmc.load(path, "relay", {"x": [2, -1]})
    assert "Tensor[(2, 3), float32]" in str(model.mod)
    with pytest.raises(EkidenError, match="'x': dimension 1 is 3"):
        tvmc.load(path, "relay", {"x": [2, 4]})
    path.write_bytes(b"# \xff")
    with pytest.raises(EkidenError, match="no text of Relay"):
        tvmc.load(path, "relay")
