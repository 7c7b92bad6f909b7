"""A program in C runs an artifact against the installed header and library, without Python."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import ekiden
from ekiden import relay, runtime
from ekiden.backend.vm.write_executable import VMFunction, write_executable
from ekiden.runtime.debug.instructions import make_instruction

pytestmark = pytest.mark.quick

SOURCE = Path(__file__).parents[2] / "examples/c/run.c"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    output = tmp_path_factory.mktemp("c") / "run"
    library = runtime.library_path()
    warnings = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
    link = [str(library), f"-Wl,-rpath,{library.parent}"]
    command = [compiler, *warnings, f"-I{runtime.include_dir()}", str(SOURCE), *link]
    subprocess.run([*command, "-o", str(output)], check=True)
    return output


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that returns its argument."""
    path = tmp_path_factory.mktemp("artifact") / "identity.eki"
    main = VMFunction("main", ("x",), 1, (make_instruction("Ret", src=0),))
    path.write_bytes(write_executable([main], [], [], b"", {}))
    return path


def test_c_program_runs_an_artifact(program: Path, artifact: Path) -> None:
    done = subprocess.run([program, artifact, "2", "3"], capture_output=True, text=True, check=True)
    assert done.stdout == "shape 2 3\nfirst 1 1 1 1 1 1\n"


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["eki", "so"])
def test_c_program_runs_native_functions(program: Path, tmp_path: Path, suffix: str) -> None:
    x = relay.var("x", shape=(2, 3))
    both = relay.Tuple([relay.exp(x), x])
    half = relay.If(relay.const(True), relay.TupleGetItem(both, 1) / relay.const(2.0), x)
    exe = ekiden.compile(relay.IRModule.from_expr(relay.Function([x], half)), executor="aot")
    path = tmp_path / f"model.{suffix}"
    (exe.save if suffix == "eki" else exe.export_library)(path)
    done = subprocess.run([program, path, "2", "3"], capture_output=True, text=True, check=True)
    assert done.stdout == "shape 2 3\nfirst 0.5 0.5 0.5 0.5 0.5 0.5\n"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["opencl", "vulkan"])
@pytest.mark.parametrize("suffix", ["eki", "so"])
def test_c_program_fetches_results_from_a_device(
    program: Path, tmp_path: Path, kind: str, suffix: str
) -> None:
    if not runtime.device(kind, 0).exist:
        pytest.skip(
            f"needs a driver of {kind}: apt-get install pocl-opencl-icd mesa-vulkan-drivers"
        )
    x = relay.var("x", shape=(relay.Any(), 3))
    module = relay.IRModule.from_expr(relay.Function([x], x / relay.const(4.0)))
    exe = ekiden.compile(module, kind, executor="aot")
    path = tmp_path / f"model.{suffix}"
    (exe.save if suffix == "eki" else exe.export_library)(path)
    done = subprocess.run([program, path, "2", "3"], capture_output=True, text=True, check=True)
    assert done.stdout == "shape 2 3\nfirst 0.25 0.25 0.25 0.25 0.25 0.25\n"


def test_c_program_sees_why_an_artifact_is_refused(program: Path, artifact: Path) -> None:
    broken = artifact.with_name("broken.eki")
    broken.write_bytes(artifact.read_bytes()[:-1])
    done = subprocess.run([program, broken], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"LoadError: load '{broken}': header: ")


def test_runtime_depends_on_libc_and_threads_alone() -> None:
    readelf = shutil.which("readelf")
    if readelf is None:
        pytest.skip("needs readelf: install binutils")
    command = [readelf, "-d", str(runtime.library_path())]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[([^]]+)\.so", listed))
    assert needed <= {"libc", "libm", "libdl", "libpthread", "ld-linux-x86-64"}


@pytest.mark.skipif(shutil.which("strip") is None, reason="needs strip, as builds of wheels do")
def test_runtime_stays_small(tmp_path: Path) -> None:
    """256 KB: it was 199,500 bytes before it checked arguments against types and had limits."""
    stripped = tmp_path / "stripped.so"
    subprocess.run(["strip", "-o", stripped, runtime.library_path()], check=True)
    assert stripped.stat().st_size < 256_000
