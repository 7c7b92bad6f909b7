"""Consistency of the repository: pages that list things, public names."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import ekiden
import ekiden.runtime
from ekiden.runtime.errors import ImportModelError

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]


def tracked_folders() -> set[str]:
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not a git checkout: cannot tell sources from build products")
    files = [Path(name) for name in listed.stdout.splitlines()]
    parents = {str(parent) for file in files for parent in file.parents}
    return {name for name in parents if name != "." and not name.startswith("tests/")}


def architecture_rows() -> dict[str, str]:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    return dict(re.findall(r"^\| `([^`]+)/` \| (.+) \|$", text, re.MULTILINE))


def test_every_folder_is_on_the_architecture_page() -> None:
    assert tracked_folders() - set(architecture_rows()) == set()


def test_every_row_of_the_architecture_page_is_a_folder() -> None:
    assert [name for name in architecture_rows() if not (ROOT / name).is_dir()] == []


def test_functions_of_the_architecture_page_stand_in_the_files_that_it_names() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"`(\w+)` in `([\w/]+\.(?:py|c))`", text)
    assert len(named) >= 20
    defined = {path: (ROOT / path).read_text() for _, path in named}
    assert [
        (name, path)
        for name, path in named
        if not re.search(rf"^ *(?:def|class|int) {name}\b", defined[path], re.MULTILINE)
    ] == []


def test_sessions_of_onnx_runtime_are_made_in_one_place() -> None:
    """Which says why its products of bytes are exact; other sessions' are not everywhere."""
    files = [f for f in (ROOT / "tests").rglob("*.py") if f != Path(__file__)]
    assert [f.name for f in files if "InferenceSession(" in f.read_text()] == ["onnx_runtime.py"]


def test_readme_and_the_script_run_the_tests_alike() -> None:
    """By two workers, a file by one of them: its fixtures are made once."""
    workers = "-m pytest -n 2 --dist loadfile"
    readme, script = (ROOT / "README.md").read_text(), (ROOT / "scripts" / "test").read_text()
    assert f".venv-test/bin/python {workers}\n```" in readme
    assert f'exec "$python" {workers} "$@"' in script


def packages() -> list[str]:
    """Ekiden's packages that list their public names."""
    # Read from the folders: pkgutil would import them all, and with them PyTorch, in each worker.
    root = Path(ekiden.__file__).parent
    folders = sorted(path.parent.relative_to(root.parent) for path in root.rglob("__init__.py"))
    return [".".join(folder.parts) for folder in folders]


WITH_FRAMEWORKS = ("ekiden.relay.frontend", "ekiden.frontend.torch", "ekiden.frontend.tensorflow",
                   "ekiden.frontend.tflite", "ekiden.frontend.jax")  # fmt: skip
"""Packages that import PyTorch, TensorFlow and JAX, where these are installed."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(p, marks=[pytest.mark.slow] if p.startswith(WITH_FRAMEWORKS) else [])
        for p in packages()
    ],
)
def test_listed_names_exist(name: str) -> None:
    module = importlib.import_module(name)

    def exists(entry: str) -> bool:
        try:
            return hasattr(module, entry)
        except ImportModelError as error:
            return "is missing; pip install" in str(error)  # an importer without its framework

    assert [entry for entry in getattr(module, "__all__", ()) if not exists(entry)] == []


@pytest.mark.slow
def test_modules_do_not_shadow_lazy_names() -> None:
    """Importing a module sets it in its package, where nothing else of its name is then found."""
    program = """
import importlib, pathlib, re, sys, ekiden
root = pathlib.Path(ekiden.__file__).parent
for path in sorted(root.rglob("__init__.py")):
    if "__getattr__" not in path.read_text():
        continue
    named = re.search(r'rest="(\\w+)"', path.read_text())
    package = ".".join(("ekiden", *path.parent.relative_to(root).parts))
    own = late = importlib.import_module(package)
    if named:
        late = importlib.import_module(f"{package}.{named[1]}")
    for name in sorted(getattr(late, "__all__", ())):
        if any((path.parent / each).exists() for each in (name + ".py", name)):
            importlib.import_module(f"{package}.{name}")
            found = getattr(own, name)
            vars(own).pop(name, None)
            if getattr(late, name, found) is not found:
                print(f"{package}.{name}")
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


def imported_names(path: str, above: str) -> set[str]:
    """What a file has of modules whose name starts so."""
    return {
        alias.asname or alias.name
        for node in ast.walk(ast.parse((ROOT / path).read_text()))
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(above)
        for alias in node.names
    }


def test_public_names_of_the_runtime_are_listed() -> None:
    seen = imported_names("src/ekiden/runtime/__init__.py", "ekiden.runtime.")
    seen -= {"archive", "engines", "late_bound"}  # imported for what they register
    assert sorted(ekiden.runtime.__all__) == sorted(seen)


def test_public_names_of_the_root_are_listed() -> None:
    seen = imported_names("src/ekiden/__init__.py", "ekiden")
    assert sorted(ekiden.__all__) == sorted({*seen, "__version__"})


def test_readme_commands_are_marked() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^<!-- command: (\w+) -->\n```sh\n(.+)\n```$", readme, re.MULTILINE)
    assert [name for name, _ in commands] == ["demo", "test"]


def imported_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter has after a statement."""
    program = f"import sys; {statement}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


def test_runtime_imports_nothing_of_the_compiler() -> None:
    modules = imported_by("import ekiden.runtime")
    assert modules & {"llvmlite", "onnx", "rich", "filelock", "platformdirs"} == set()
    own = {name for name in modules if name.startswith("ekiden.")}
    assert {name for name in own if not name.startswith("ekiden.runtime")} == {
        "ekiden._lazy",
        "ekiden._locks",
    }


def test_import_ekiden_loads_nothing() -> None:
    modules = imported_by("import ekiden")
    assert "numpy" not in modules
    assert {name for name in modules if name.startswith("ekiden.")} == set()


@pytest.mark.slow
def test_import_loads_only_needed_converters() -> None:
    """Neither converters of operators that it has not, nor what schedules are made with."""
    modules = imported_by("import ekiden; from ekiden.frontend.onnx import register; import onnx")
    modules |= imported_by("import ekiden.compiler.build, ekiden.kernels.cpu.dense")
    assert not [name for name in modules if name.startswith("ekiden.tir.schedule.")]
    assert not modules & {f"ekiden.frontend.onnx.converters.{n}" for n in ("text", "ml_models")}


QUICK = """
import sys, threading, ekiden, numpy as np
start = threading.Thread.start  # what comes after the answer is compiled in the background
threading.Thread.start = lambda self: None if self.name == "ekiden-tiers" else start(self)
exe = ekiden.compile(sys.argv[1], tier="quick")
exe(np.ones((2, 4), np.float32))
print(*sys.modules)
"""


@pytest.mark.slow
def test_quick_answer_imports_what_it_needs(tmp_path: Path) -> None:
    """Neither what only other models, messages of errors or kernels' own code take."""
    tensor, kind = onnx.helper.make_tensor, onnx.TensorProto.FLOAT
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        onnx.helper.make_node("Softmax", ["h"], ["y"]),
    ]
    values = [onnx.helper.make_tensor_value_info(n, kind, (2, d)) for n, d in (("x", 4), ("y", 3))]
    weights = [tensor("w", kind, (4, 3), range(12)), tensor("b", kind, (3,), range(3))]
    graph = onnx.helper.make_graph(nodes, "small", values[:1], values[1:], weights)
    opset = [onnx.helper.make_opsetid("", 17)]  # of newest ones the package is asked
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset), tmp_path / "small.onnx")
    environment = os.environ | {"EKIDEN_CACHE_DIR": str(tmp_path / "cache")}
    done = subprocess.run(
        [sys.executable, "-c", QUICK, tmp_path / "small.onnx"],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    modules = set(done.stdout.split())
    of_python = {"hashlib", "logging", "pathlib", "uuid", "difflib", "concurrent.futures"}
    assert modules & {*of_python, "ml_dtypes", "google.protobuf.internal.python_message"} == set()
    own = ["relay.interpreter", "relay.packing.conv", "te.gradient", "te.scan", "tir.interpreter"]
    own += [
        "tir.printer",
        "tir.verifier",
        "arith.pattern",
        "kernels.cpu.loops",
        "codegen.llvm.emit",
    ]
    assert modules & {f"ekiden.{name}" for name in own} == set()


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'ekiden' has no attribute 'nothing'"):
        ekiden.nothing  # noqa: B018
