"""Programs without a runtime by `relay.build`, and what tests of them are written with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

import ekiden
from ekiden import micro, relay
from ekiden.backend.crt.c_emitter import emit_files
from ekiden.ir.memory_pools import PoolInfoProperties, WorkspaceMemoryPools, WorkspacePoolInfo
from ekiden.ir.module import IRModule
from ekiden.micro.testing.aot_test_utils import parametrize_aot_options
from ekiden.micro.testing.utils import get_conv2d_relay_module, mlf_extract_workspace_size_bytes
from ekiden.relay.backend import Executor, Runtime
from ekiden.runtime.errors import CompileError, InputError, InternalError, RunError
from ekiden.testing.aot import (
    AOTTestModel,
    AOTTestRunner,
    compile_and_run,
    compile_models,
    generate_ref_data,
)

C = {"interface-api": "c", "unpacked-api": True}


def nested() -> tuple[relay.Function, dict[str, np.ndarray]]:
    """A function of a matrix and a number, whose result is a tuple of tuples."""
    x, n = relay.var("x", shape=(3, 4)), relay.var("n-0", shape=(), dtype="int32")
    y = relay.add(x, relay.const(1.0))
    body = relay.Tuple([y, relay.Tuple([relay.Tuple([x, relay.nn.relu(y)]), n])])
    values = {
        "x": np.linspace(-2, 2, 12, dtype="float32").reshape(3, 4),
        "n-0": np.array(7, "int32"),
    }
    return relay.Function([x, n], body), values


@parametrize_aot_options
def test_models_of_one_library_give_what_the_runtime_gives(
    interface_api: str, use_unpacked_api: bool, test_runner: AOTTestRunner
) -> None:
    function, inputs = nested()
    conv = get_conv2d_relay_module()
    rng = np.random.default_rng(0)
    data = {
        p.name_hint: rng.integers(-128, 127, p.checked_type.concrete_shape).astype("int8")
        for p in conv["main"].params
    }
    params = {"weight": data.pop("weight")}
    models = [
        AOTTestModel(function, inputs, generate_ref_data(function, inputs), name="nested"),
        AOTTestModel(conv, data, generate_ref_data(conv, data, params), 0, "conv", params),
    ]
    assert list(models[0].outputs or {}) == ["output0", "output1", "output2", "output3"]
    assert compile_and_run(models, test_runner, interface_api, use_unpacked_api)


def built(options: dict[str, object], **more: object) -> micro.MicroProgram:
    x, w = relay.var("x", shape=(8, 16)), relay.const(np.ones((4, 16), "float32"))
    y = relay.nn.dense(relay.nn.dense(x, w), relay.const(np.ones((8, 4), "float32")))
    made = relay.build(
        ekiden.IRModule.from_expr(y), "c", executor=Executor("aot", options),
        runtime=Runtime("crt"), **more,
    )  # fmt: skip
    assert isinstance(made, micro.MicroProgram)
    return made


def library(program: micro.MicroProgram, folder: Path) -> Path:
    for path, text in emit_files(program.module).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(text)
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fwrapv", "-shared", "-fPIC"]
    sources = map(str, folder.glob("src/*.c"))
    result = folder / "made.so"
    command = ["cc", *flags, f"-I{folder}/include", *sources, "-lm", "-o", str(result)]
    subprocess.run(command, check=True)
    return result


@pytest.mark.parametrize("interface", ["c", "packed"])
def test_models_of_empty_tensors_run(interface: str) -> None:
    """An empty tensor may have no address, and any strides."""
    x, y = relay.var("x", shape=(0, 4)), relay.var("y", shape=(4,))
    body = relay.Tuple([x + y, relay.exp(y)])
    module = IRModule.from_expr(relay.Function([x, y], body))
    inputs = {"x": np.zeros((0, 4), np.float32), "y": np.ones(4, np.float32)}
    model = AOTTestModel(module, inputs, generate_ref_data(module, inputs))
    assert compile_and_run(model, AOTTestRunner(), interface, True)


def test_packed_function_accepts_only_model_inputs(tmp_path: Path) -> None:
    run = ekiden.runtime.load_module(str(library(built({}), tmp_path)))["tvmgen_default_run"]
    x, y = ekiden.tensor(np.ones((8, 16), "float32")), ekiden.tensor(np.zeros((8, 8), "float32"))
    run(x, y)
    assert (y.numpy() == 64).all()
    short, wide = np.zeros((8, 4), "float32"), np.zeros((8, 8), "float64")
    for wrong in (short, wide):
        with pytest.raises(InternalError):
            run(x, wrong)
    for too_few in ((), (x,), (x, y, y), (1, y), (x, None)):
        with pytest.raises(InternalError):
            run(*too_few)


def test_requested_options_are_honoured_or_refused() -> None:
    assert built(C).module.is_packed is False and built({}).module.is_packed is True
    wide = built({**C, "constant-byte-alignment": 32, "workspace-byte-alignment": 16})
    assert "aligned(32)" in emit_files(wide.module)["src/default_lib2.c"]
    pools = WorkspaceMemoryPools(
        [WorkspacePoolInfo("fast", ["c"], PoolInfoProperties(size_hint_bytes=4096))]
    )
    assert [p.limit for p in built(C, workspace_memory_pools=pools).module.pools] == [4096]
    for options, text in (
        ({"interface-api": "c"}, "unpacked-api == true"),
        ({"interface-api": "rust"}, "interface-api 'c' or 'packed' expected, got 'rust'"),
        ({"workspace-byte-alignment": 64}, "at most 16 bytes expected, got 64"),
        ({"constant-byte-alignment": 12}, "a power of two expected, got 12"),
    ):
        with pytest.raises(CompileError, match=text):
            built(options)
    with pytest.raises(CompileError, match="no parameters for memories"):
        built({}, workspace_memory_pools=pools)
    with pytest.raises(CompileError, match="are for runtime 'crt'"):
        relay.build(nested()[0], workspace_memory_pools=pools)


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("tir.usmp.enable", False, "memory is always planned as a whole"),
        ("tir.usmp.algorithm", "greedy_by_sise", "one of greedy_by_size, .* 'greedy_by_sise'"),
    ],
)
def test_unknown_memory_planners_are_refused(option: str, value: object, text: str) -> None:
    context = relay.transform.PassContext(config={option: value})
    with context, pytest.raises(CompileError, match=text):
        built(C)
    plain = built(C).module.workspace
    with relay.transform.PassContext(config={"tir.usmp.algorithm": "hill_climb"}):
        assert built(C).module.workspace == plain


def test_library_says_its_memory(tmp_path: Path) -> None:
    program = built(C)
    micro.export_model_library_format(program, tmp_path / "a.tar")
    result = mlf_extract_workspace_size_bytes(tmp_path / "a.tar")
    assert result == program.module.workspace > 0


def test_mismatched_elements_are_listed() -> None:
    function, inputs = nested()
    outputs = generate_ref_data(function, inputs)
    outputs["output2"][1, 2] += 1
    model = AOTTestModel(function, inputs, outputs)
    with pytest.raises(
        RunError, match=r"Mismatched elements: 1 / 12 \(8.33%\)\n.*Actual, Ref(.|\n)*\[1, 2\]"
    ):
        compile_and_run(model, AOTTestRunner(), "packed", True, print_output_on_mismatch=True)
    del inputs["x"]
    with pytest.raises(InputError, match="input 'x' is missing"):
        compile_and_run(model, AOTTestRunner(), "c", True)
    with pytest.raises(InputError, match="without a prologue of the runner"):
        compile_and_run(model, AOTTestRunner(prologue="go();"), "c", True)
    assert compile_models([], "c", True) == []
