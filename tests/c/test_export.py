"""A model as a shared library: run from Python, C and C++, and by the published apache-tvm-ffi."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import ekiden
from ekiden import runtime
from ekiden.compiler.export.library import export_library
from ekiden.runtime.errors import ExportError, InputError
from long_runs import LONG

ROOT = Path(__file__).parents[2]
TIMEOUT = 120
WEIGHT = np.arange(32, dtype=np.float32).reshape(8, 4) - 16

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
needs_tvm_ffi = pytest.mark.skipif(
    importlib.util.find_spec("tvm_ffi") is None, reason="pip install apache-tvm-ffi"
)
pytestmark = needs_compiler


def model_of(outputs: list[str]) -> ekiden.Executable:
    """y = relu(x @ WEIGHT), z = x @ WEIGHT for float32 x of n rows."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["z"]), helper.make_node("Relu", ["z"], ["y"])]
    weight = helper.make_tensor("w", TensorProto.FLOAT, WEIGHT.shape, WEIGHT.ravel())
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])
    infos = [helper.make_tensor_value_info(o, TensorProto.FLOAT, ["n", 4]) for o in outputs]
    graph = helper.make_graph(nodes, "model", [x], infos, [weight])
    return ekiden.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one.so, one.eki (y) and two.so (y and z)."""
    folder = tmp_path_factory.mktemp("exported")
    one = model_of(["y"])
    one.save(folder / "one.eki")
    one.export_library(folder / "one.so")
    model_of(["y", "z"]).export_library(folder / "two.so")
    return folder


def run_python(program: str, *arguments: object) -> str:
    """What a fresh Python prints."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def x_and_y() -> tuple[np.ndarray, np.ndarray]:
    x = np.random.default_rng(0).random((3, 8), dtype=np.float32)
    return x, np.maximum(x @ WEIGHT, 0)


@pytest.mark.parametrize("name", ["one.so", "one.eki"])
def test_exported_library_runs_in_both_module_kinds(exported: Path, name: str) -> None:
    x, y = x_and_y()
    module = runtime.load_module(exported / name)
    np.testing.assert_allclose(module["main"](x).numpy(), y, rtol=1e-5)
    assert "main" in module.names()
    expected = re.escape("input 'x': expected Tensor[(n, 8), float32], got a string")
    with pytest.raises(InputError, match=expected):
        module["main"]("text")


def test_several_results_are_a_tuple(exported: Path) -> None:
    x, y = x_and_y()
    result = runtime.load_module(exported / "two.so")["main"](x)
    assert isinstance(result, tuple)
    np.testing.assert_allclose(result[0].numpy(), y, rtol=1e-5)
    np.testing.assert_allclose(result[1].numpy(), x @ WEIGHT, rtol=1e-5)


def test_result_outlives_its_module(exported: Path) -> None:
    x, y = x_and_y()
    result = runtime.load_module(exported / "one.so")["main"](x)
    np.testing.assert_allclose(result.numpy(), y, rtol=1e-5)


TVM_FFI = """
import sys
{first}
import numpy as np, torch, tvm_ffi
weight = (np.arange(32, dtype=np.float32) - 16).reshape(8, 4)
x = torch.rand(3, 8)
y = np.maximum(x.numpy() @ weight, 0)
one = tvm_ffi.load_module(sys.argv[1])["main"]
for argument in (x, x.numpy(), tvm_ffi.from_dlpack(x), x.T.contiguous().T):
    np.testing.assert_allclose(np.from_dlpack(one(argument)), y, rtol=1e-5)
two = tvm_ffi.load_module(sys.argv[2])["main"](x)
np.testing.assert_allclose(np.from_dlpack(two[0]), y, rtol=1e-5)
np.testing.assert_allclose(np.from_dlpack(two[1]), x.numpy() @ weight, rtol=1e-5)
for bad in ((torch.rand(3, 7),), (), ("a",), (x.double(),), (tvm_ffi.convert(lambda: 0),)):
    try:
        one(*bad)
    except Exception as error:
        print(type(error).__name__, error)
"""

REFUSALS = """\
ValueError input 'x': expected Tensor[(n, 8), float32], got (3, 7) float32
ValueError call 'main': 1 arguments expected, got 0
ValueError input 'x': expected Tensor[(n, 8), float32], got a string
ValueError input 'x': expected Tensor[(n, 8), float32], got (3, 8) float64
"""


@needs_tvm_ffi
@pytest.mark.parametrize("first", ["", "import ekiden.runtime"], ids=["alone", "beside ours"])
def test_exported_library_runs_in_apache_tvm_ffi(exported: Path, first: str) -> None:
    pytest.importorskip("torch")
    program = TVM_FFI.format(first=first)
    printed = run_python(program, exported / "one.so", exported / "two.so")
    *known, last = printed.splitlines(keepends=True)
    assert known == REFUSALS.splitlines(keepends=True)
    assert last.startswith("ValueError input 'x': expected Tensor[(n, 8), float32], got ")


@needs_tvm_ffi
def test_many_libraries_fit_in_one_process(exported: Path, tmp_path: Path) -> None:
    copies = [shutil.copy(exported / "one.so", tmp_path / f"copy{i}.so") for i in range(24)]
    program = (
        "import sys, numpy as np, tvm_ffi\n"
        "x = np.ones((1, 8), np.float32)\n"
        "f = [tvm_ffi.load_module(path)['main'] for path in sys.argv[1:]]\n"
        "print({float(np.from_dlpack(g(x)).sum()) for g in f})\n"
    )
    total = float(np.maximum(np.ones((1, 8), np.float32) @ WEIGHT, 0).sum())
    assert run_python(program, *copies) == f"{{{total}}}\n"


def test_exported_library_has_only_its_symbols(exported: Path) -> None:
    command = ["nm", "-D", "--defined-only", exported / "one.so"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1] for line in listed.splitlines()}
    assert names == {"__ek_executable", "__ek_executable_size", "__tvm_ffi_main"}


def test_library_needs_libc_and_threads_alone(exported: Path) -> None:
    command = ["readelf", "-d", exported / "one.so"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[([^]]+)\.so", listed))
    assert needed <= {"libc", "libdl", "libpthread", "ld-linux-x86-64", "ld-linux-aarch64"}


def test_without_a_compiler_the_error_says_what_to_install(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = runtime.Executable.load(exported / "one.eki")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ziglang" else find_spec(name)
    )
    message = "a C compiler expected .cc, gcc or clang., got none; install one, or: pip install"
    with pytest.raises(ExportError, match=message):
        export_library(raw, tmp_path / "none.so")


def test_compiler_errors_are_shown(exported: Path, tmp_path: Path) -> None:
    raw = runtime.Executable.load(exported / "one.eki")
    with pytest.raises(ExportError, match=r"the C compiler failed:\n(?s:.*)nonsense"):
        export_library(raw, tmp_path / "bad.so", options=["-fnonsense"])
    with pytest.raises(ExportError, match="run 'no-such-cc'"):
        export_library(raw, tmp_path / "bad.so", cc="no-such-cc")
    with pytest.raises(FileNotFoundError, match="no folder"):
        export_library(raw, tmp_path / "missing" / "bad.so")
    assert list(tmp_path.iterdir()) == []


def cmake(*arguments: object) -> None:
    """Run cmake; what it says is shown if it fails."""
    command = ["cmake", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def build_example(language: str, build: Path, found_by: str) -> Path:
    """The program of an example, built afresh over an installed package."""
    if shutil.which("c++") is None or shutil.which("cmake") is None:
        pytest.skip("needs cmake and a C++ compiler")
    cmake("-S", ROOT / "examples" / language, "-B", build, found_by)
    cmake("--build", build)
    return build / "run"


def expect_right_numbers(program: Path, exported: Path, name: str) -> None:
    command = [program, exported / name, "2", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    y = np.maximum(np.ones((2, 8), np.float32) @ WEIGHT, 0)
    numbers = " ".join(f"{value:g}" for value in y.ravel()[:8])
    assert done.stdout.splitlines()[:2] == ["shape 2 4", f"first {numbers}"]
    assert done.stdout.splitlines()[2:] in ([], [f"sum {y.sum():g}"])


@pytest.mark.parametrize("language", ["c", "cpp"])
def test_example_prints_the_right_numbers(exported: Path, tmp_path: Path, language: str) -> None:
    found_by = f"-Dekiden-runtime_DIR={runtime.cmake_dir().resolve()}"
    program = build_example(language, tmp_path / "build", found_by)
    expect_right_numbers(program, exported, "one.so")
    expect_right_numbers(program, exported, "one.eki")
    command = [program, exported / "one.so", "2", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 1
    expected = "input 'x': expected Tensor[(n, 8), float32], got (2, 7) float32"
    assert expected in done.stderr


@pytest.mark.parametrize("compiler, source", [("cc", "c/run.c"), ("c++", "cpp/run.cpp")])
def test_example_builds_by_one_command(
    exported: Path, tmp_path: Path, compiler: str, source: str
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip("needs a C++ compiler")
    shared, program = runtime.library_path().resolve(), tmp_path / "run"
    command = [compiler, str(ROOT / "examples" / source), f"-I{runtime.include_dir()}"]
    command += [str(shared), f"-Wl,-rpath,{shared.parent}", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    expect_right_numbers(program, exported, "one.so")


def test_runtime_installs_without_python(exported: Path, tmp_path: Path) -> None:
    build, prefix = tmp_path / "runtime", tmp_path / "prefix"
    cmake("-S", ROOT, "-B", build, "-DEKIDEN_PYTHON=OFF", "-DCMAKE_BUILD_TYPE=Debug")
    cmake("--build", build, "--parallel", str(os.cpu_count() or 1))
    cmake("--install", build, "--prefix", prefix)
    program = build_example("cpp", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    expect_right_numbers(program, exported, "one.so")


FLAGS = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-O0", "-g1"]


@pytest.mark.parametrize(
    "sanitize",
    [pytest.param([], marks=LONG), ["-fsanitize=address,undefined"]],
    ids=["plain", "asan"],
)
def test_cpp_header_runs_exported_library(tmp_path: Path, sanitize: list[str]) -> None:
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    include = f"-I{ROOT / 'runtime/include'}"
    library, program = tmp_path / "library.so", tmp_path / "test_hpp"
    c = ["cc", "-shared", "-fPIC", include, str(ROOT / "tests/c/library.c"), "-o", str(library)]
    subprocess.run(c, check=True, timeout=TIMEOUT)
    shared = runtime.library_path().resolve()
    link = [str(shared), f"-Wl,-rpath,{shared.parent}", "-o", str(program)]
    source = str(ROOT / "tests/c/test_hpp.cpp")
    command = [compiler, *FLAGS, *sanitize, include, source, *link]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([program, library], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
