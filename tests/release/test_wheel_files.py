"""Contents of the wheels; the runtime wheel works without the compiler."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest

import ekiden.runtime
from ekiden.runtime.paths import include_dir

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import build_wheels  # noqa: E402
import generate_sbom  # noqa: E402
import wheel_files  # noqa: E402

NOT_INSTALLED = {".pyx", ".pxi", ".pxd", ".pyc"}
INFO = f"ekiden-{ekiden.__version__}.dist-info"
METADATA = f"""\
Metadata-Version: 2.4
Name: ekiden
Version: {ekiden.__version__}
Summary: A deep-learning compiler and virtual machine: one compiled artifact for every shape
License-Expression: Apache-2.0
License-File: LICENSE
Requires-Python: >=3.11
Requires-Dist: numpy>=2.0
Requires-Dist: llvmlite>=0.45
Provides-Extra: torch
Requires-Dist: torch>=2.6; extra == "torch"

A page.
"""


def tree() -> dict[str, Path]:
    """The files of a wheel, from the sources and from what was compiled and installed."""
    python = ROOT / "src"
    native = include_dir().parent
    result = {
        str(path.relative_to(python)): path
        for path in (python / "ekiden").rglob("*")
        if path.is_file() and path.suffix not in NOT_INSTALLED and ".mypy_cache" not in path.parts
    }
    for path in native.rglob("*"):
        if path.is_file() and path.suffix not in NOT_INSTALLED:
            result.setdefault(f"ekiden/runtime/{path.relative_to(native)}", path)
    return result


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of ekiden-runtime, of what is installed here."""
    folder = tmp_path_factory.mktemp("wheels")
    whole = folder / f"ekiden-{ekiden.__version__}-cp311-cp311-linux_x86_64.whl"
    files = {name: path.read_bytes() for name, path in tree().items()}
    files[f"{INFO}/METADATA"] = METADATA.encode()
    files[f"{INFO}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: other 1\nTag: cp311-cp311-linux_x86_64\n"
    )
    files[f"{INFO}/licenses/LICENSE"] = b"text"
    wheel_files.write_wheel(whole, files, INFO)
    return wheel_files.runtime_wheel(whole, folder)


def test_runtime_wheel_has_what_its_table_says(small: Path) -> None:
    names = set(zipfile.ZipFile(small).namelist())
    assert "ekiden/runtime/vm.py" in names
    assert not {n for n in names if n.startswith(("ekiden/relay", "ekiden/tir", "tests"))}
    assert not {n for n in names if n.startswith("ekiden/runtime/src")}
    assert small.name.startswith(f"ekiden_runtime-{ekiden.__version__}-")


def test_entry_that_names_nothing_is_refused() -> None:
    row = {"include": ["ekiden/runtime/", "ekiden/nothing.py"], "exclude": []}
    with pytest.raises(ValueError, match="the wheel has no 'ekiden/nothing.py'"):
        wheel_files.select_files(["ekiden/runtime/vm.py"], row)


def test_runtime_wheel_declares_dependencies(small: Path) -> None:
    with zipfile.ZipFile(small) as wheel:
        info = f"ekiden_runtime-{ekiden.__version__}.dist-info"
        about = BytesParser().parsebytes(wheel.read(f"{info}/METADATA"))
        bill = json.loads(wheel.read(f"{info}/sboms/ekiden-runtime.cdx.json"))
        record = wheel.read(f"{info}/RECORD").decode().splitlines()
    assert about["Name"] == "ekiden-runtime"
    always = [item for item in about.get_all("Requires-Dist", []) if "extra ==" not in item]
    assert always == ["numpy>=2.0"]
    assert bill["metadata"]["component"]["name"] == "ekiden-runtime"
    assert len(record) == len(zipfile.ZipFile(small).namelist())


def test_same_files_give_the_same_wheel(small: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(small) as wheel:
        files = {name: wheel.read(name) for name in reversed(wheel.namelist())}
    info = f"ekiden_runtime-{ekiden.__version__}.dist-info"
    del files[f"{info}/RECORD"]
    wheel_files.write_wheel(tmp_path / small.name, files, info)
    assert (tmp_path / small.name).read_bytes() == small.read_bytes()


def imports_of(name: str, text: str) -> set[str]:
    """The modules of Ekiden that a file imports when it is imported itself."""
    result = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, name
            result.add(str(node.module))
            result |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names}
    return {item for item in result if item.startswith("ekiden.")}


def test_runtime_wheel_imports_nothing_that_is_not_in_it() -> None:
    files = tree()
    taken = wheel_files.select_files(files, wheel_files.runtime_package_table())
    modules = {as_module(n) for n in files if n.endswith(".py")}
    own = {as_module(n) for n in taken if n.endswith(".py")}
    for name in taken:
        if name.endswith(".py"):
            expected = imports_of(name, files[name].read_text()) & modules
            assert expected - own == set(), name


def as_module(name: str) -> str:
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


PROGRAM = """
import sys

class NumPyAlone:
    def find_spec(self, name, path=None, target=None):
        if name in ("ml_dtypes", "llvmlite", "onnx", "rich", "filelock", "platformdirs"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NumPyAlone())
import importlib.util
whole = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "ml_dtypes" else whole(name, *rest)
root, numpy, artifact = sys.argv[1:]
sys.path = [root, numpy, *[p for p in sys.path if "site-packages" not in p]]
import ekiden, numpy as np
assert ekiden.__file__.startswith(root), ekiden.__file__
exe = ekiden.load(artifact)
print(exe(np.int32(4), np.float32([1, 2])).numpy().tolist())
print("vm" in exe.disassemble().lower())
for ask in (lambda: ekiden.compile, lambda: ekiden.relay, lambda: exe.export_library("model.so")):
    try:
        ask()
    except ekiden.runtime.errors.MissingCompilerError as error:
        print(error)
try:
    ekiden.runtime.empty((2,), "bfloat16").numpy()
except TypeError as error:
    print(error)
"""


def test_runtime_wheel_runs_an_artifact_alone(small: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    zipfile.ZipFile(small).extractall(root)
    numpy = Path(importlib.metadata.distribution("numpy").locate_file(""))
    artifact = ROOT / "tests/compat" / ekiden.__version__.rpartition(".")[0] / "loop.eki"
    words = [sys.executable, "-I", "-S", "-c", PROGRAM, str(root), str(numpy), str(artifact)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.stderr == ""
    need = (
        "the compiler is needed, and only ekiden-runtime is installed, which runs compiled models;"
        " pip uninstall ekiden-runtime, then pip install ekiden"
    )
    assert done.stdout.splitlines() == [
        "[81.0, 162.0]",
        "True",
        f"ekiden.compile: {need}",
        f"ekiden.relay: {need}",
        f"export_library: {need}",
        "numpy: no such dtype in NumPy: bfloat16; pip install ml_dtypes",
    ]


def test_entry_points_name_what_there_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {
        "ekiden": "ekiden.cli:main",
        "tvmc": "ekiden.driver.tvmc.main:main",
    }
    named = [
        *project["scripts"].values(),
        *project["entry-points"]["torch_dynamo_backends"].values(),
    ]
    for item in named:
        module, _, function = item.partition(":")
        assert callable(getattr(importlib.import_module(module), function))


def test_installed_metadata_are_those_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    installed = importlib.metadata.distribution("ekiden")
    assert installed.version == ekiden.__version__ == generate_sbom.package_version()
    needed = {generate_sbom.normalized_name(item) for item in project["dependencies"]}
    message = {
        generate_sbom.normalized_name(r) for r in installed.requires or () if "extra ==" not in r
    }
    assert message == needed


def test_sbom_lists_every_dependency() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    rows = {"ekiden": table["project"], "ekiden-runtime": table["tool"]["ekiden-runtime"]}
    for name, row in rows.items():
        bill = json.loads((ROOT / "sbom" / f"{name}.cdx.json").read_text())
        required = {c["name"] for c in bill["components"] if c["scope"] == "required"}
        assert required >= {generate_sbom.normalized_name(item) for item in row["dependencies"]}
        assert bill["metadata"]["component"]["version"] == ekiden.__version__


@pytest.mark.parametrize("arch", build_wheels.PLATFORMS)
def test_wheel_headers_are_architecture_independent(arch: str, tmp_path: Path) -> None:
    """As Debian has them: a file that includes that of the processor, and one of those."""
    headers = tmp_path / "include/python3.14"
    own = tmp_path / "include/x86_64-linux-gnu/python3.14"
    for folder in (headers, own):
        folder.mkdir(parents=True)
    (own / "pyconfig.h").write_text("int found;\n")
    (headers / "pyconfig.h").write_text(f"#include <{arch}-linux-gnu/python3.14/pyconfig.h>\n")
    flags = build_wheels.toolchain(tmp_path / "bin", arch, headers)["CMAKE_C_FLAGS"].split()
    words = ["cc", "-E", *flags, str(headers / "pyconfig.h")]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert "int found;" in done.stdout, done.stderr


def test_sbom_has_versions_and_licenses_of_bundled_code() -> None:
    release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]["release"]
    for name in ("ekiden", "ekiden-runtime"):
        bill = json.loads((ROOT / "sbom" / f"{name}.cdx.json").read_text())
        bundled = [c for c in bill["components"] if c["bom-ref"].startswith("built-in/")]
        assert {c["name"] for c in bundled} == set(generate_sbom.BUNDLED_PACKAGES)
        for component in bundled:
            assert f"{component['name']}=={component['version']}" in release
            assert component["purl"].endswith(f"@{component['version']}")
            assert component["licenses"]
    with pytest.raises(SystemExit, match="cython: the extra 'release' must pin it"):
        generate_sbom.pinned_versions(["cython>=3", "numpy==2.4.6", "ziglang==0.15.1"])
