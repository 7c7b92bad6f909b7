"""The C tests: each built with the system's compiler, plain and under sanitizers, and run."""

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "runtime"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
WARNINGS = [
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wshadow",
    "-Wconversion",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
    "-Wwrite-strings",
    "-Wundef",
    "-Werror",
]
INCLUDES = [f"-I{RUNTIME / 'include'}", f"-I{RUNTIME / 'src'}", f"-I{HERE}"]
COMPUTED_GOTO = {"ek_vm.c"}
"""Files that use an extension of the compilers, and so cannot be pedantic."""
TESTS = sorted(p.stem for p in HERE.glob("test_*.c"))
TIMEOUT = 120


@dataclass(frozen=True)
class Build:
    """One way to compile the runtime and its tests."""

    flags: tuple[str, ...]
    only: tuple[str, ...] | None = None
    """The tests worth running in this build; None is all."""


ADDRESS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
BUILDS = {
    "plain": Build(("-O2",)),
    "address": Build(ADDRESS),
    "hard": Build((*ADDRESS, "-DEK_HARD_TEST", "-DEK_VM_SWITCH")),
    "thread": Build(
        ("-O1", "-g", "-fsanitize=thread"),
        ("test_pool", "test_object", "test_registry", "test_alloc"),
    ),
}

if COMPILER is None:
    pytest.skip("needs a C compiler: install gcc or clang", allow_module_level=True)


def compile_file(source: Path, output: Path, flags: tuple[str, ...]) -> None:
    """Compile one file to an object file; a warning is an error."""
    warnings = [w for w in WARNINGS if w != "-Wpedantic" or source.name not in COMPUTED_GOTO]
    command = [str(COMPILER), *warnings, "-D_GNU_SOURCE", "-fPIC", "-fvisibility=hidden"]
    command += [*flags, *INCLUDES, "-c", str(source), "-o", str(output)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, f"{source.name}: {result.stderr}"


def link(objects: list[Path], output: Path, flags: tuple[str, ...]) -> None:
    """Link object files to a program, or to a library with -shared among the flags."""
    command = [str(COMPILER), *flags, *map(str, objects), "-o", str(output), "-pthread", "-ldl"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr


@pytest.fixture(scope="module", params=BUILDS)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all test programs and library.so in one build."""
    build = BUILDS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    wanted = TESTS if build.only is None else build.only
    runtime = sorted((RUNTIME / "src").glob("*.c"))
    sources = [*runtime, HERE / "library.c", *(HERE / f"{t}.c" for t in wanted)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda s: compile_file(s, folder / f"{s.stem}.o", build.flags), sources))
    objects = [folder / f"{s.stem}.o" for s in runtime]
    for test in wanted:
        link([*objects, folder / f"{test}.o"], folder / test, build.flags)
    link([folder / "library.o"], folder / "library.so", ("-shared",))
    return folder


@pytest.mark.parametrize("test", TESTS)
def test_c(built: Path, test: str) -> None:
    if not (built / test).exists():
        pytest.skip("this build runs the tests of threads alone")
    result = subprocess.run(
        [built / test, built / "library.so"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        env={**os.environ, "EKIDEN_NUM_THREADS": "2"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    print(result.stdout, end="")


@pytest.fixture
def tvm_ffi() -> Path:
    """The folder of the published TVM-FFI package."""
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        pytest.skip("needs the published package: pip install apache-tvm-ffi")
    return Path(spec.origin).parent


def test_the_layouts_are_those_of_tvm_ffi(tvm_ffi: Path, tmp_path: Path) -> None:
    compile_file(HERE / "abi_tvm_ffi.c", tmp_path / "abi.o", (f"-isystem{tvm_ffi / 'include'}",))


def test_our_library_loads_in_tvm_ffi(tvm_ffi: Path, tmp_path: Path) -> None:
    compile_file(HERE / "library.c", tmp_path / "library.o", ("-O2",))
    link([tmp_path / "library.o"], tmp_path / "library.so", ("-shared",))
    program = "import sys, tvm_ffi; print(tvm_ffi.load_module(sys.argv[1])['add_one'](41))"
    command = [sys.executable, "-c", program, str(tmp_path / "library.so")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.stdout == "42\n", result.stderr


def test_a_tvm_ffi_library_loads_in_ours(tvm_ffi: Path, tmp_path: Path) -> None:
    library = next((tvm_ffi / "lib").glob("libtvm_ffi.so*"))
    sources = [*sorted((RUNTIME / "src").glob("*.c")), HERE / "load_tvm_ffi.c"]
    objects = [tmp_path / f"{source.stem}.o" for source in sources]
    for source, output in zip(sources, objects, strict=True):
        compile_file(source, output, ("-O1",))
    link(objects, tmp_path / "load", ())
    include = f"-isystem{tvm_ffi / 'include'}"
    compile_file(HERE / "library_tvm_ffi.c", tmp_path / "theirs.o", (include,))
    flags = ("-shared", f"-Wl,-rpath,{library.parent}")
    link([tmp_path / "theirs.o", library], tmp_path / "theirs.so", flags)
    command = [tmp_path / "load", tmp_path / "theirs.so"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.returncode == 0, result.stderr


def test_the_stripped_library_is_small(tmp_path: Path) -> None:
    objects = []
    for source in sorted((RUNTIME / "src").glob("*.c")):
        objects.append(tmp_path / f"{source.stem}.o")
        compile_file(source, objects[-1], ("-O2",))
    library = tmp_path / "libekiden_runtime.so"
    link(objects, library, ("-shared", "-s"))
    size = library.stat().st_size
    assert size < 200_000, f"{size} bytes"
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = [line.split()[-1] for line in symbols.stdout.splitlines()]
    assert len(exported) <= 40
    assert [name for name in exported if not name.startswith("ek_")] == []
