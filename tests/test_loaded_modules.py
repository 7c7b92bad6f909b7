"""What Python loads for `import ekiden` and for an answer from the cache: sets of modules, as their
number and size are most of the time that these take.

Whoever adds a module to a set says why it is needed before the first answer; a module that moves
takes its line along.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

IMPORTED = {"ekiden"}
"""By `import ekiden`."""
CACHED_ANSWER = {
    "ekiden",
    *(
        f"ekiden.{name}"
        for name in """
        _lazy _locks
        compiler compiler.artifact compiler.cache compiler.cache.artifacts compiler.cache.cache_keys
        compiler.compile compiler.options compiler.relaxed_gc compiler.time_limit
        frontend frontend.common frontend.common.options frontend.packages
        frontend.rejected_kinds frontend.registry
        ir ir.cache_folders ir.compiler_digest ir.user_extensions ir.hashes ir.digest_cache
        ir.package_versions ir.pass_context
        runtime runtime.artifact runtime.artifact.archive runtime.artifact.external_region
        runtime.artifact.late_bound runtime.artifact.metadata
        runtime.binding runtime.binding._core runtime.binding.dtypes runtime.binding.layout
        runtime.binding.objects runtime.compiler_import runtime.debug runtime.debug.short_repr
        runtime.devices runtime.devices.engines runtime.devices.device_constructors
        runtime.environment runtime.errors
        runtime.executable runtime.executable.vm_pool
        runtime.executable.executable runtime.executable.formats runtime.executable.loading
        runtime.executable.state
        runtime.cached_property runtime.files runtime.lazy_dataclass runtime.lazy_logger
    """.split()
    ),
}
"""By a program that compiles a file whose artifact is in the cache, and runs it."""
OF_PYTHON = 40
"""Modules of Python that such a program loads besides, at most, after NumPy: 20 in Python 3.11, and
some more where another process writes to the cache just then."""

ANSWER = """
import sys, numpy
before = set(sys.modules)
import ekiden
ekiden.compile(sys.argv[1])(numpy.ones((2, 4), numpy.float32))
print(*sorted(set(sys.modules) - before))
"""


def printed(program: str, *arguments: object, **environment: str) -> set[str]:
    """The words that a program prints in a fresh interpreter, of whose environment neither what
    other tests have set nor what they import is a part."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    ran = subprocess.run(
        command, capture_output=True, text=True, check=True, env=plain | environment
    )
    return set(ran.stdout.split())


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "ekiden"}


@pytest.mark.quick
def test_import_ekiden_loads_the_modules_of_the_list_alone() -> None:
    loaded = printed("import sys; import ekiden; print(*sys.modules)")
    assert own(loaded) - IMPORTED == set()


def test_answer_from_the_cache_loads_the_modules_of_the_list_alone(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[n, 4] x) => (float[n, 3] y)
          <float[4, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}> {
          h = MatMul (x, w)
          y = Softmax (h) }""")
    onnx.save(model, tmp_path / "model.onnx")
    environment = {"EKIDEN_CACHE_DIR": str(tmp_path / "cache"), "EKIDEN_CACHE_LIMIT": "100M"}
    first = printed(ANSWER, tmp_path / "model.onnx", **environment)
    assert "ekiden.relay.expr" in first, "nothing was cached before"
    second = printed(ANSWER, tmp_path / "model.onnx", **environment)
    assert own(second) - CACHED_ANSWER == set()
    others = second - own(second)
    assert len(others) <= OF_PYTHON, others
    frameworks = {"onnx", "llvmlite", "ml_dtypes", "google", "rich", "platformdirs", "filelock"}
    assert {name.partition(".")[0] for name in others} & frameworks == set()
