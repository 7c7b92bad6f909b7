"""Model library format: contents, planned memory, and rejected programs."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from micro_models import SMALL, Net

import ekiden
from ekiden import micro, relay
from ekiden.backend.crt.c_emitter import emit_files
from ekiden.backend.crt.micro_module import Pool
from ekiden.cli import main
from ekiden.compiler.export import micro as micro_driver
from ekiden.compiler.export.model_library import build_metadata
from ekiden.ir.module import IRModule
from ekiden.relay import load_param_dict
from ekiden.runtime.errors import CompileError

TARGET = "c -mcpu=cortex-m7"
STRICT = ("-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror", "-fwrapv", "-ffp-contract=off",
          "-fno-math-errno", "-fsanitize=address,undefined", "-fno-sanitize-recover")  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("micro") / "keyword.onnx"
    onnx.save(SMALL["keyword"](), path)
    return path


def archive(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as result:
        files = [(m.name, result.extractfile(m)) for m in result]
        return {name: data.read() for name, data in files if data is not None}


def test_library_has_required_format_contents(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.tar"
    command = ["compile", str(model), "--executor", "aot", "--runtime", "crt", "-f", "mlf"]
    assert main([*command, "--target", TARGET, "--module-name", "spotter", "-o", str(path)]) == 0
    files = archive(path)
    about = json.loads(files["./metadata.json"])
    assert about["version"] == 7
    (own,) = about["modules"].values()
    assert (own["model_name"], own["style"], own["executors"]) == ("spotter", "full-model", ["aot"])
    (memory,) = own["memory"]["functions"]["main"]
    assert memory["inputs"]["x"] == {"size": 800, "dtype": "float32", "shape": [1, 1, 20, 10]}
    assert f"memory workspace {memory['workspace_size_bytes']} bytes" in capsys.readouterr().out
    text = files["./codegen/host/include/tvmgen_spotter.h"].decode()
    assert "int32_t tvmgen_spotter_run(struct tvmgen_spotter_inputs *inputs" in text
    for row in own["memory"]["functions"]["operator_functions"]:
        assert (
            f"int32_t {row['function_name']}("
            in files["./codegen/host/src/spotter_lib1.c"].decode()
        )
    params = load_param_dict(files["./parameters/spotter.params"])
    assert sum(p.nbytes for p in params.values()) <= memory["constants_size_bytes"]
    assert "def @main" in files["./src/relay.txt"].decode()


PROGRAM = """
#include <stdint.h>
#include <stdio.h>
#include "tvmgen_default.h"
static float x[200];
static float y[TVMGEN_DEFAULT_{out}_SIZE / 4];
static uint8_t fast[TVMGEN_DEFAULT_FAST_WORKSPACE_POOL_SIZE] __attribute__((aligned(16)));
static uint8_t slow[TVMGEN_DEFAULT_SLOW_WORKSPACE_POOL_SIZE] __attribute__((aligned(16)));
int main(void) {{
  for (int i = 0; i < 200; i++) x[i] = (float)(i % 7) - 3.0f;
  struct tvmgen_default_inputs inputs = {{x}};
  struct tvmgen_default_outputs outputs = {{y}};
  struct tvmgen_default_workspace_pools pools = {{fast, slow}};
  if (tvmgen_default_run(&inputs, &outputs, &pools) != 0) return 1;
  for (unsigned i = 0; i < sizeof y / sizeof *y; i++) printf("%a\\n", y[i]);
  return 0;
}}
"""


def test_c_programs_give_memories_and_call_run(model: Path, tmp_path: Path) -> None:
    program = micro.compile(
        str(model), TARGET, pools=[micro.Pool("fast", 1500), micro.Pool("slow")]
    )
    fast, slow = program.module.pools
    assert 0 < fast.used <= 1500 and slow.used > 0
    for path, text in emit_files(program.module).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    out = program.module.outputs[0].name.upper()
    (tmp_path / "main.c").write_text(PROGRAM.format(out=out))
    sources = [str(p) for p in (*tmp_path.glob("src/*.c"), tmp_path / "main.c")]
    result = tmp_path / "program"
    command = ["cc", *STRICT, f"-I{tmp_path}/include", *sources, "-lm", "-o", str(result)]
    subprocess.run(command, check=True)
    shown = subprocess.run([str(result)], check=True, capture_output=True, text=True).stdout
    x = (np.arange(200) % 7 - 3).astype(np.float32).reshape(1, 1, 20, 10)
    expected = ekiden.compile(str(model))(x).numpy().ravel()
    np.testing.assert_allclose([float.fromhex(v) for v in shown.split()], expected, atol=1e-6)


def test_dead_tensors_share_workspace_memory(model: Path) -> None:
    module = micro.compile(str(model), TARGET).module
    (pool,) = module.pools
    sizes = [k.workspace for k in module.kernels]
    assert (
        max(sizes)
        <= pool.used
        < sum(p.nbytes for p in (*module.inputs, *module.outputs)) + 40 * module.inputs[0].nbytes
    )
    assert pool.used % 16 == 0
    assert (
        build_metadata(module)["modules"]["default"]["memory"]["functions"]["main"][0][
            "workspace_size_bytes"
        ]
        == pool.used
    )


def copies() -> ekiden.IRModule:
    x = relay.var("x", shape=(2, 2))
    y = relay.nn.relu(x)
    results = [x, y, relay.reshape(y, (4,)), relay.const(np.arange(3, dtype="float32"))]
    return ekiden.IRModule.from_expr(relay.Function([x], relay.Tuple(results)))


def test_results_that_are_inputs_or_constants_are_copied(tmp_path: Path) -> None:
    project = micro.generate_project("host", micro.compile(copies(), "c"), tmp_path / "project")
    project.build()
    x = np.array([[1, -2], [-3, 4]], np.float32)
    with micro.Session(project.open_transport()) as session:
        actual = [y.numpy() for y in session.run(x)]
    expected = [y.numpy() for y in ekiden.compile(copies())(x)]
    for y, expected_value in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(y, expected_value)


def dynamic() -> onnx.ModelProto:
    model = Net("dynamic", (1, 4)).add("Relu").model((1, 4))
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    return model


def test_unsupported_programs_are_refused(model: Path) -> None:
    with pytest.raises(CompileError, match=r"input 'x' has no static shape.*--shape"):
        micro.compile(dynamic(), TARGET)
    with pytest.raises(CompileError, match=r"target kind 'c' expected, got 'llvm'"):
        micro.compile(str(model), "llvm")
    with pytest.raises(CompileError, match=r"tiny \(64 bytes\) are too small: a tensor of \d+"):
        micro.compile(str(model), TARGET, pools=[micro.Pool("tiny", 64)])
    with pytest.raises(CompileError, match=r"one of C, got 'a-b'"):
        micro.compile(str(model), TARGET, name="a-b")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runtime", "crt"], "all three"),
        (["-f", "mlf"], "all three"),
        (["--workspace-pools", "a"], "need -f mlf"),
        (["--executor", "aot", "--runtime", "crt", "-f", "mlf", "--size", "small"], "--size"),
        (["--executor", "aot", "--runtime", "crt", "-f", "mlf", "--workspace-pools", "a=x"], "a=x"),
        (["--executor", "aot", "--runtime", "crt", "-f", "mlf", "--denormals", "flush"], "denorm"),
        (["--executor", "aot", "--runtime", "crt", "-f", "mlf", "--byoc", "auto"], "--byoc"),
        (["--executor", "aot", "--runtime", "crt", "-f", "mlf", "--devices", "auto"], "--devices"),
    ],
)
def test_incomplete_requests_are_refused(
    words: list[str], message: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compile", str(model), *words, "-o", str(tmp_path / "model.tar")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "model.tar").exists()


@pytest.mark.parametrize(
    ("cpu", "wanted", "other"),
    [("cortex-m7", "ek_smlad", "vmladavaq"), ("cortex-m55", "vmladavaq", "fmaf("),
     ("cortex-m3", "ek_dot4", "ek_smlad")],
)  # fmt: skip
def test_int8_products_use_processor_instructions(cpu: str, wanted: str, other: str) -> None:
    x = relay.var("x", shape=(4, 72), dtype="uint8")
    w = relay.const(np.arange(72 * 8).reshape(8, 72).astype(np.int8))
    module = ekiden.IRModule.from_expr(relay.Function([x], relay.nn.dense(x, w, out_dtype="int32")))
    text = emit_files(micro.compile(module, f"c -mcpu={cpu}").module)["src/default_lib1.c"]
    assert wanted in text and other not in text


def test_model_names_are_escaped_in_c() -> None:
    x, y = (relay.var(name, shape=(2,), dtype="float32") for name in ("int", "*/ x"))
    module = IRModule({"main": relay.Function([x, y], relay.add(x, y))})
    program = micro_driver.compile(module, pools=[Pool("register")])
    files = emit_files(program.module)
    header = files["include/tvmgen_default.h"]
    assert "void *_int;" in header and "void *_register;" in header
    assert "*/ x" not in header
