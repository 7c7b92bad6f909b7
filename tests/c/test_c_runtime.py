"""The C tests: each built with the system's compiler, plain and under sanitizers, and run.

`scripts/check_c` runs them alone.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from c_builds import (
    ADDRESS,
    BUILDS,
    COMPILER,
    HERE,
    RUNTIME,
    TESTS,
    TIMEOUT,
    Objects,
    compile_file,
    link,
)
from ekiden.runtime.paths import library_path
from long_runs import LONG, sizes

pytestmark = pytest.mark.early

if COMPILER is None:
    pytest.skip("needs a C compiler: install gcc or clang", allow_module_level=True)


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Objects:
    return Objects(tmp_path_factory)


@pytest.fixture(params=[pytest.param(b, marks=LONG if b == "plain" else ()) for b in BUILDS])
def build(request: pytest.FixtureRequest) -> str:
    """The name of a build; its test programs are linked as they are asked for."""
    return str(request.param)


def test_header_contents_do_not_depend_on_build() -> None:
    """Or files that do not name its macros would be other ones, too."""
    headers = [*RUNTIME.rglob("*.h"), *HERE.glob("*.h")]
    assert headers and not [
        h.name for h in headers for b in BUILDS.values() if b.like and b.is_own(h)
    ]


def run(program: Path, *arguments: object, timeout: int = TIMEOUT, leaks: bool = True) -> str:
    """What a test program prints; it must end well, and without leaks where they are looked for."""
    result = subprocess.run(
        [program, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd=program.parent,
        env={
            **os.environ,
            "EKIDEN_NUM_THREADS": "2",
            "ASAN_OPTIONS": f"allocator_may_return_null=1:detect_leaks={leaks:d}",
        },
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


OF_ADDRESSES = ("test_vm", "test_alloc", "test_limit", "test_program")
"""How the names of tests begin that usually run under `address`: of the machine's loop and of what
keeps memory, which are others under `hard`. All else `hard` watches too, where allocations fail."""


def is_usual(build: str, test: str) -> bool:
    """Whether a build runs a test usually."""
    return build != "plain" and (build != "address" or test.startswith(OF_ADDRESSES))


@pytest.mark.parametrize(
    ("build", "test"),
    [
        pytest.param(name, test, marks=() if is_usual(name, test) else LONG)
        for name, build in BUILDS.items()
        for test in TESTS
        if build.only is None or test in build.only
    ],
    indirect=["build"],
)
def test_c_test_program_passes(objects: Objects, build: str, test: str) -> None:
    print(run(objects.program(build, test), objects.program(build, "library.so")), end="")


def within(rounds: int) -> int:
    """Seconds for so many rounds of objects or damaged files."""
    return TIMEOUT + rounds // 500


@sizes("rounds", 20_000, 5_000_000)
def test_calls_from_four_threads_and_flat_memory(objects: Objects, build: str, rounds: int) -> None:
    """A million calls, each with a callback, where threads are watched; ten in a long run."""
    calls = min(50 * rounds, 10_000_000) if build == "thread" else 100_000
    print(run(objects.program(build, "soak"), calls, rounds, timeout=within(rounds)), end="")


@sizes("calls", 10_000, 100_000)
def test_kernels_are_swapped_behind_calls_from_four_threads(
    objects: Objects, build: str, calls: int
) -> None:
    if build != "thread":
        pytest.skip("races are looked for where threads are watched")
    run(objects.program(build, "test_swap"), objects.program(build, "library.so"), calls)


@sizes("files", 1000, 1_000_000)
def test_damaged_files_do_not_crash(objects: Objects, build: str, files: int) -> None:
    if build == "thread":
        pytest.skip("damage is looked for where addresses are watched")
    # objects that come to own themselves leak; the hard build looks for other leaks
    program = objects.program(build, "fuzz_load")
    print(run(program, files, 1, timeout=within(files), leaks=False), end="")


def test_hardened_build_reports_leaked_blocks(objects: Objects, tmp_path: Path) -> None:
    source = tmp_path / "leak.c"
    source.write_text(
        '#include "check.h"\n'
        "static ek_object *kept;\n"
        "int main(void) { return ek_array_new(NULL, 0, &kept); }\n"
    )
    compile_file(source, tmp_path / "leak.o", ADDRESS)
    link([*objects.runtime("hard"), tmp_path / "leak.o"], tmp_path / "leak", ADDRESS)
    result = subprocess.run([tmp_path / "leak"], capture_output=True, text=True, check=False)
    assert result.returncode == 3
    assert result.stderr == "ekiden: 1 blocks are in use at exit\n"


@pytest.mark.parametrize("text", ["many", "0", "-2", "4 threads", "1000"])
def test_invalid_thread_count_is_reported(text: str) -> None:
    program = "from ekiden import runtime; runtime.num_threads(); runtime.num_threads()"
    environment = {**os.environ, "EKIDEN_NUM_THREADS": text}
    command = [sys.executable, "-c", program]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=TIMEOUT, env=environment, check=True
    )
    start = f"ekiden: EKIDEN_NUM_THREADS: a number from 1 to 256 expected, got '{text}'; using "
    assert result.stderr.startswith(start)
    assert result.stderr.count("\n") == 1


@pytest.fixture
def tvm_ffi() -> Path:
    """The folder of the published TVM-FFI package."""
    spec = importlib.util.find_spec("tvm_ffi")
    if spec is None or spec.origin is None:
        pytest.skip("needs the published package: pip install apache-tvm-ffi")
    return Path(spec.origin).parent


def test_abi_layouts_match_tvm_ffi(tvm_ffi: Path, tmp_path: Path) -> None:
    compile_file(HERE / "abi_tvm_ffi.c", tmp_path / "abi.o", (f"-isystem{tvm_ffi / 'include'}",))


def test_ekiden_library_loads_in_tvm_ffi(tvm_ffi: Path, tmp_path: Path) -> None:
    compile_file(HERE / "library.c", tmp_path / "library.o", ("-O2",))
    link([tmp_path / "library.o"], tmp_path / "library.so", ("-shared",))
    program = "import sys, tvm_ffi; print(tvm_ffi.load_module(sys.argv[1])['add_one'](41))"
    command = [sys.executable, "-c", program, str(tmp_path / "library.so")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT)
    assert result.stdout == "42\n", result.stderr


def test_tvm_ffi_library_loads_in_ours(tvm_ffi: Path, tmp_path: Path, objects: Objects) -> None:
    library = next((tvm_ffi / "lib").glob("libtvm_ffi.so*"))
    compile_file(HERE / "load_tvm_ffi.c", tmp_path / "load.o", ("-O1",))
    link([*objects.runtime("address"), tmp_path / "load.o"], tmp_path / "load", ADDRESS)
    include = f"-isystem{tvm_ffi / 'include'}"
    compile_file(HERE / "library_tvm_ffi.c", tmp_path / "theirs.o", (include,))
    flags = ("-shared", f"-Wl,-rpath,{library.parent}")
    link([tmp_path / "theirs.o", library], tmp_path / "theirs.so", flags)
    run(tmp_path / "load", tmp_path / "theirs.so", leaks=False)  # their library keeps its own


def test_tvm_ffi_reads_our_maps_and_shapes(tvm_ffi: Path, tmp_path: Path, objects: Objects) -> None:
    library = next((tvm_ffi / "lib").glob("libtvm_ffi.so*"))
    reference = tmp_path / "theirs.so"
    command = ["c++", "-std=c++17", "-O1", "-shared", "-fPIC", f"-isystem{tvm_ffi / 'include'}"]
    command += [str(HERE / "map_tvm_ffi.cpp"), str(library), f"-Wl,-rpath,{library.parent}"]
    subprocess.run([*command, "-o", str(reference)], check=True, timeout=TIMEOUT)
    compile_file(HERE / "load_map_tvm_ffi.c", tmp_path / "load.o", ("-O1",))
    link([*objects.runtime("address"), tmp_path / "load.o"], tmp_path / "load", ADDRESS)
    run(tmp_path / "load", reference, leaks=False)


def test_stripped_library_is_small(tmp_path: Path) -> None:
    library = tmp_path / "libekiden_runtime.so"
    subprocess.run(["strip", "-o", library, library_path()], check=True)
    size = library.stat().st_size
    assert size < 256_000, f"{size} bytes"
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    exported = [line.split()[-1] for line in symbols.stdout.splitlines()]
    # The last one that came takes a C function, which no global function can be given.
    assert len(exported) <= 42, "each is a promise: rather a global function by name"
    assert [name for name in exported if not name.startswith("ek_")] == []
