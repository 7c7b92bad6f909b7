"""Modules: shared libraries built here, and invalid images."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from ekiden import runtime
from ekiden.runtime.errors import LoadError

pytestmark = pytest.mark.quick

SOURCE = r"""
#include <ekiden/runtime.h>

EK_API int __tvm_ffi_add_one(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (nargs != 1 || args[0].type_index != EK_INT) return ek_error("ValueError", "add_one: an int");
  *ret = ek_value_int(args[0].v.i64 + 1);
  return 0;
}

EK_API int __tvm_ffi_scale(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)ret, (void)nargs;
  const ek_dltensor *x = ek_value_tensor(&args[0]);
  for (int64_t i = 0; i < x->shape[0]; i++) ((double *)ek_dltensor_data(x))[i] *= args[1].v.f64;
  return 0;
}

EK_API int __tvm_ffi_fail(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)args, (void)nargs, (void)ret;
  return ek_error("StrangeError", "nobody knows %d", 42);
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared library that a C user builds against the installed runtime."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    folder = tmp_path_factory.mktemp("library")
    source = folder / "functions.c"
    source.write_text(SOURCE)
    output = folder / "functions.so"
    runtime_path = runtime.library_path()
    command = [compiler, "-std=c11", "-shared", "-fPIC", f"-I{runtime.include_dir()}", str(source)]
    subprocess.run([*command, str(runtime_path), "-o", str(output)], check=True)
    return output


def test_functions_of_a_library(library: Path) -> None:
    module = runtime.load_module(library)
    assert module["add_one"](41) == 42
    array = np.arange(3.0)
    module["scale"](array, 2.0)
    np.testing.assert_array_equal(array, [0.0, 2.0, 4.0])
    assert "add_one" in module
    assert "missing" not in module
    with pytest.raises(AttributeError, match="module: no function named 'missing'"):
        module.get_function("missing")
    with pytest.raises(AttributeError, match="module: no function named 'missing'"):
        module["missing"]


def test_function_keeps_its_library(library: Path) -> None:
    function = runtime.load_module(str(library))["add_one"]
    assert function(1) == 2


def test_error_of_unknown_kind_keeps_its_name(library: Path) -> None:
    with pytest.raises(runtime.errors.RunError, match="^StrangeError: nobody knows 42$"):
        runtime.load_module(library)["fail"]()


def test_invalid_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing.so"):
        runtime.load_module(tmp_path / "missing.so")


@pytest.mark.parametrize("data", [b"", b"EKIMG\0\0\1", b"\x7fELF" + bytes(5000)])
def test_invalid_image_is_refused(data: bytes) -> None:
    with pytest.raises(LoadError):
        runtime.load_image(data)


def test_services_have_addresses() -> None:
    assert runtime.service_address("ek_parallel_for") != runtime.service_address("memcpy")
    with pytest.raises(ValueError, match="the runtime has no service 'system'"):
        runtime.service_address("system")


def test_threads_and_pools() -> None:
    before = runtime.num_threads()
    assert before >= 1
    try:
        assert runtime.num_threads(3) == 3
        assert runtime.num_threads() == 3
    finally:
        runtime.num_threads(before)
    stats = runtime.memory_stats()
    assert stats.allocations == runtime.allocation_count()
    assert 0 <= stats.free <= stats.held
    runtime.trim_pools()


def test_small_objects_come_from_the_pool() -> None:
    def work() -> None:
        for _ in range(100):
            runtime.empty((16,))

    work()
    before = runtime.allocation_count()
    work()
    assert runtime.allocation_count() == before
