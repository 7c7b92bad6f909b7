"""Every language runs bindings/conformance.json: the same steps, results and errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from toolchains import BINDINGS, BRIEF, LIBRARY, NEEDS_JDK, NEEDS_NODE, ROOT, go, jdk, needs, run

import ekiden
from ekiden import relay, runtime
from long_runs import LONG


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script and its models."""
    result = tmp_path_factory.mktemp("conformance")
    script = json.loads((BINDINGS / "conformance.json").read_text())
    for name, text in script["models"].items():
        executable = ekiden.compile(relay.parse(text))
        executable.save(result / f"{name}.eki")
        if name == "scaled" and shutil.which("cc"):
            executable.export_library(result / f"{name}.so")
    if not (result / "scaled.so").exists():
        script["cases"] = [c for c in script["cases"] if c["name"] != "a shared library"]
    (result / "damaged.eki").write_bytes((result / "scaled.eki").read_bytes()[:500])
    (result / "model.onnx").write_bytes(b"")
    (result / "conformance.json").write_text(json.dumps(script))
    return result


@dataclass(frozen=True)
class Program:
    """What runs the script of a folder, and what else must say "right"."""

    command: Sequence[object]
    cwd: Path = ROOT
    variables: Mapping[str, str] = field(default_factory=dict)
    checks: tuple[Sequence[object], ...] = ()


def python(folder: Path, _: Path, library: Path) -> Program:
    here = Path(__file__).parent
    return Program(
        [sys.executable, here / "conformance.py", folder],
        checks=([sys.executable, here / "check.py", folder],),
    )


def cpp(folder: Path, tmp_path: Path, library: Path) -> Program:
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-pthread"]
    linked = [library / "libekiden_runtime.so", f"-Wl,-rpath,{library}"]
    for name in ("conformance", "check"):
        source = Path(__file__).with_name(f"{name}.cpp")
        words = [*flags, f"-I{runtime.include_dir()}", source, *linked, "-o", tmp_path / name]
        run(["c++", *words], ROOT)
    return Program([tmp_path / "conformance", folder], checks=([tmp_path / "check", folder],))


def rust(folder: Path, tmp_path: Path, library: Path) -> Program:
    places = {
        "EKIDEN_CONFORMANCE": str(folder),
        "CARGO_TARGET_DIR": str(tmp_path),
        "EKIDEN_LIB_DIR": str(library),
    }
    words = ["cargo", "test", "--offline", "--no-run", "--message-format=json", "--quiet"]
    lines = run(words, BINDINGS / "rust", **places).splitlines()
    programs = [json.loads(line).get("executable") for line in lines if line.startswith("{")]
    # The folder of the test has "conformance" in its name too.
    (program,) = [each for each in programs if each and Path(each).name.startswith("conformance")]
    return Program([program, "--nocapture"], BINDINGS / "rust", places)


def node(folder: Path, tmp_path: Path, library: Path) -> Program:
    addon = tmp_path / "ekiden.node"
    include = str(runtime.include_dir())
    places = {"EKIDEN_LIB_DIR": str(library), "EKIDEN_INCLUDE_DIR": include}
    run(["node", "build.js", addon], BINDINGS / "node", **places)
    return Program(
        ["node", "conformance.js", folder],
        BINDINGS / "node",
        {"EKIDEN_NODE_ADDON": str(addon)},
        (["node", "--expose-gc", "check.js", folder],),
    )


def golang(folder: Path, tmp_path: Path, library: Path) -> Program:
    result = tmp_path / "conformance.test"
    run(["go", "test", "-c", "-o", result, "."], BINDINGS / "go", **go(library))
    places = {"EKIDEN_CONFORMANCE": str(folder)}
    return Program([result, "-test.v", "-test.timeout=2h"], BINDINGS / "go", places)


def java(folder: Path, tmp_path: Path, library: Path) -> Program:
    programs = jdk()
    assert programs is not None
    sources = sorted((BINDINGS / "java").glob("*/dev/**/*.java"))
    brief = [f"-J{option}" for option in BRIEF]
    run([programs / "javac", *brief, "-d", tmp_path, *sources], ROOT)
    options = [*BRIEF, "--enable-native-access=ALL-UNNAMED", "-Xmx64m", "-cp", tmp_path]
    places = {"EKIDEN_LIB_DIR": str(library)}
    command = [programs / "java", *options, "dev.ekiden.Conformance", folder]
    return Program(command, variables=places)


Build = Callable[[Path, Path, Path], Program]
LANGUAGES = [
    pytest.param(python, id="python"),
    pytest.param(cpp, id="cpp", marks=needs("c++")),
    pytest.param(rust, id="rust", marks=needs("cargo", "cc")),
    pytest.param(node, id="node", marks=[needs("node", "cc"), NEEDS_NODE]),
    pytest.param(golang, id="go", marks=needs("go", "cc")),
    pytest.param(java, id="java", marks=NEEDS_JDK),
]


@pytest.mark.parametrize("build", LANGUAGES)
def test_conformance_script_passes(build: Build, folder: Path, tmp_path: Path) -> None:
    program = build(folder, tmp_path, LIBRARY)
    assert " steps" in run(program.command, program.cwd, **program.variables)
    for check in program.checks:
        assert run(check, program.cwd, **program.variables) == "right\n"


def often(folder: Path, result: Path, times: int) -> Path:
    """The script's case of what is done many times, that often."""
    shutil.copytree(folder, result)
    script = json.loads((folder / "conformance.json").read_text())
    script["cases"] = [case for case in script["cases"] if case["name"] == "many times"]
    for step in script["cases"][0]["steps"]:
        if "times" in step:
            step["times"] = times
    (result / "conformance.json").write_text(json.dumps(script))
    return result


MOST_GROWN = 16 << 10
"""KB that a process may have more after so many times more; 24 bytes each, the least object, would
be 21 MB."""


@pytest.mark.parametrize("build", LANGUAGES)
@pytest.mark.parametrize("_", [pytest.param(0, marks=LONG, id="long")])
def test_one_million_calls_do_not_leak(build: Build, folder: Path, tmp_path: Path, _: int) -> None:
    sizes = []
    for times in (100_000, 1_000_000):
        place = tmp_path / str(times)
        place.mkdir()
        program = build(often(folder, place / "script", times), place, LIBRARY)
        variables = {**os.environ, "EKIDEN_LIB_DIR": str(LIBRARY), **program.variables}
        with subprocess.Popen(
            list(map(str, program.command)),
            cwd=program.cwd,
            env=variables,
            stdout=subprocess.DEVNULL,
        ) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        sizes.append(usage.ru_maxrss)
    print(f"{build.__name__}: {sizes[1] - sizes[0]} KB more")
    assert sizes[1] - sizes[0] <= MOST_GROWN, sizes


@pytest.fixture(scope="module")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a runtime that AddressSanitizer watches."""
    result = tmp_path_factory.mktemp("sanitized")
    options = ["-DEKIDEN_PYTHON=OFF", "-DEKIDEN_SANITIZE=address", "-DCMAKE_BUILD_TYPE=Debug"]
    run(["cmake", "-S", ROOT, "-B", result, *options], ROOT)
    run(["cmake", "--build", result, "--target", "ekiden_runtime"], ROOT)
    return next(result.rglob("libekiden_runtime.so")).parent


NOT_PYTHON = [each for each in LANGUAGES if each.id != "python"]
"""Python's extension has the runtime inside: tests/c watches that one."""
EXACT = ("cpp", "rust")
"""Languages without a collector, where what is left at the end is lost."""


@pytest.mark.parametrize("build", NOT_PYTHON)
@pytest.mark.parametrize("_", [pytest.param(0, marks=LONG, id="long")])
def test_million_steps_under_address_sanitizer(
    build: Build, folder: Path, sanitized: Path, tmp_path: Path, _: int
) -> None:
    program = build(often(folder, tmp_path / "script", 200_000), tmp_path, sanitized)
    leaks = int(build.__name__ in EXACT)
    options = f"detect_leaks={leaks}:handle_segv=0:verify_asan_link_order=0"  # a JVM has its own
    result = subprocess.run(["cc", "-print-file-name=libasan.so"], capture_output=True, text=True)
    watch = {"LD_PRELOAD": result.stdout.strip(), "ASAN_OPTIONS": options}
    assert " steps" in run(program.command, program.cwd, **program.variables, **watch)
    for check in program.checks:
        assert run(check, program.cwd, **program.variables, **watch) == "right\n"
