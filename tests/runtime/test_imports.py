"""The runtime package imports no compiler, and little else."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import ekiden

pytestmark = pytest.mark.quick

COMPILER = "arith backend codegen driver frontend ir relay target te tir topi tune".split()
OTHERS = "llvmlite onnx onnxruntime torch tvm_ffi z3 rich platformdirs filelock safetensors".split()


def modules_after(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.slow
def test_runtime_imports_neither_compiler_nor_formats() -> None:
    loaded = modules_after("import ekiden.runtime")
    assert "ekiden.runtime.binding._core" in loaded
    assert not loaded & {f"ekiden.{folder}" for folder in COMPILER}
    assert not {name.partition(".")[0] for name in loaded} & set(OTHERS)


@pytest.mark.slow
def test_runtime_imports_few_modules_beside_numpy() -> None:
    """What it imports beyond NumPy and ml_dtypes is its own and small parts of the library."""
    base = modules_after("import numpy, ml_dtypes")
    added = modules_after("import ekiden.runtime") - base
    assert len({name for name in added if not name.startswith("ekiden")}) < 40


FIRST = re.compile(r"^(?:import|from) (numpy[\w.]*)", re.MULTILINE)
"""What of NumPy a module imports first."""


def test_numpy_is_imported_before_modules_of_it() -> None:
    """Python does not wait for a package that another thread imports before it imports a module of
    it; NumPy's import of its own then got half of that.
    """
    sources = {p: p.read_text("utf-8") for p in Path(ekiden.__file__).parent.rglob("*.py")}
    firsts = {p.name: result[1] for p, text in sources.items() if (result := FIRST.search(text))}
    assert firsts and set(firsts.values()) == {"numpy"}, firsts
