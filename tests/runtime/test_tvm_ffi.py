"""The open ABI: functions, values and errors of the published `apache-tvm-ffi`, both ways."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekiden import runtime

tvm_ffi: Any = None


@pytest.fixture(scope="module", autouse=True)
def package() -> None:
    """The package, imported when the first test runs: it takes seconds."""
    global tvm_ffi
    tvm_ffi = pytest.importorskip("tvm_ffi")


SOURCE = r"""
#include <ekiden/runtime.h>

EK_API int __tvm_ffi_add_one(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs, (void)ret;
  const ek_dltensor *x = ek_value_tensor(&args[0]), *y = ek_value_tensor(&args[1]);
  for (int64_t i = 0; i < x->shape[0]; i++) {
    ((float *)ek_dltensor_data(y))[i] = ((float *)ek_dltensor_data(x))[i] + 1;
  }
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One library for both runtimes, which needs neither."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    folder: Path = tmp_path_factory.mktemp("open_abi")
    (folder / "add_one.c").write_text(SOURCE)
    output = folder / "add_one.so"
    command = [compiler, "-shared", "-fPIC", f"-I{runtime.include_dir()}"]
    subprocess.run([*command, str(folder / "add_one.c"), "-o", str(output)], check=True)
    return output


def theirs(function: object) -> Any:  # noqa: ANN401
    """Their function, as one of ours."""
    return runtime.convert(tvm_ffi.convert(function))


def ours(function: object) -> Any:  # noqa: ANN401
    """Our function, as one of theirs."""
    return tvm_ffi.convert(runtime.convert(function))


def test_library_runs_on_arrays_of_both_runtimes(library: Path) -> None:
    torch = pytest.importorskip("torch")
    for module in (runtime.load_module(library), tvm_ffi.load_module(str(library))):
        source, target = torch.arange(4, dtype=torch.float32), torch.zeros(4)
        module["add_one"](source, target)
        assert target.tolist() == [1, 2, 3, 4]
    source, target = np.arange(4, dtype="float32"), np.zeros(4, "float32")
    tvm_ffi.load_module(str(library))["add_one"](runtime.tensor(source), runtime.tensor(target))
    assert target.tolist() == [1, 2, 3, 4]


VALUES = [None, True, 5, 2.5, "short", "a string of some length", b"bytes", [1, [2]], {"k": [1]}]


def test_tvm_ffi_functions_exchange_ekiden_values() -> None:
    assert theirs(lambda *args: list(args))(*VALUES) == VALUES
    assert theirs(lambda *args: len(args))(*range(20)) == 20
    assert theirs(lambda pair: pair[1])((1, "tuples cross as arrays")) == "tuples cross as arrays"
    assert theirs(lambda x: x)(runtime.Shape((2, 3))) == (2, 3)
    big = {f"key {i}": i for i in range(100)}
    assert theirs(lambda x: x)(big) == big


def test_ekiden_functions_exchange_tvm_ffi_values() -> None:
    back = ours(lambda *args: list(args))(*VALUES)
    assert [back[i] for i in range(7)] == VALUES[:7]
    assert list(back[7][1]) == [2]
    assert back[8]["k"][0] == 1
    assert ours(lambda *args: len(args))(*range(20)) == 20


def test_tensors_cross_without_copying() -> None:
    array = np.zeros(3)

    def fill(tensor: Any) -> Any:  # noqa: ANN401
        np.from_dlpack(tensor)[:] += 1
        return tensor

    returned = theirs(fill)(array)
    assert isinstance(returned, runtime.Tensor)
    assert not returned.readonly
    returned.numpy()[:] += 1
    taken = ours(fill)(tvm_ffi.from_dlpack(array))
    assert isinstance(taken, tvm_ffi.Tensor)
    np.testing.assert_array_equal(array, 3)
    assert np.shares_memory(runtime.from_dlpack(taken).numpy(), array)
    del taken
    np.testing.assert_array_equal(returned.numpy(), 3)


def test_cpp_function_call_bypasses_python() -> None:
    names: Any = runtime.convert(tvm_ffi.get_global_func("ffi.FunctionListGlobalNamesFunctor"))()
    assert names(-1) > 0
    assert isinstance(names(0), str)


def test_functions_cross_as_arguments_and_results() -> None:
    apply = theirs(lambda function, value: function(value) + 1)
    assert apply(lambda value: value * 2, 5) == 11
    assert ours(lambda function, value: function(value) + 1)(lambda value: value * 2, 5) == 11
    adder = theirs(lambda n: tvm_ffi.convert(lambda value: value + n))(3)
    assert isinstance(adder, runtime.PackedFunc)
    assert adder(4) == 7


class OwnError(Exception):
    """A class that neither side knows."""


def test_tvm_ffi_errors_become_ekiden_errors() -> None:
    def fail() -> None:
        raise IndexError("out of their range")

    with pytest.raises(IndexError, match="out of their range") as caught:
        theirs(fail)()
    assert "in fail" in caught.value.__notes__[0]


def test_ekiden_errors_become_tvm_ffi_errors() -> None:
    def fail() -> None:
        raise IndexError("out of our range")

    with pytest.raises(IndexError, match="out of our range") as caught:
        ours(fail)()
    frames = [entry.frame.code.name for entry in caught.traceback]
    assert "fail" in frames, "the frames of the function are in the traceback"


def test_error_of_ours_comes_back_through_theirs_as_itself() -> None:
    def fail(value: int) -> None:
        raise OwnError(value)

    with pytest.raises(OwnError) as caught:
        theirs(lambda function, value: function(value))(fail, 3)
    assert caught.value.args == (3,)
    assert "tvm_ffi.core.Function.__call__" in caught.value.__notes__[0]


def test_tvm_ffi_containers_and_scalars_convert() -> None:
    assert runtime.convert(tvm_ffi.Array([1, "two"])) == [1, "two"]
    assert runtime.convert(tvm_ffi.Map({"a": 1})) == {"a": 1}
    assert runtime.convert(tvm_ffi.Shape((2, 3))) == runtime.Shape((2, 3))
    assert runtime.convert(tvm_ffi.dtype("float16")) == runtime.DataType("float16")
    assert runtime.convert(tvm_ffi.device("cuda:1")) == runtime.Device(2, 1)


def test_tvm_ffi_modules_load_in_ekiden(library: Path) -> None:
    module: Any = runtime.convert(tvm_ffi.load_module(str(library)))
    assert isinstance(module, runtime.Module)
    assert module.kind == "tvm_ffi"
    target = np.zeros(2, "float32")
    module["add_one"](np.zeros(2, "float32"), target)
    assert target.tolist() == [1, 1]
    assert "missing" not in module


def test_untranslatable_values_are_refused() -> None:
    @runtime.register_object("test.tvm_ffi.Thing")
    class Thing(runtime.Object):
        value: int = 0

    with pytest.raises(TypeError, match=r"an object of type 'test\.tvm_ffi\.Thing' means nothing"):
        theirs(lambda x: x)(Thing())
    with pytest.raises(TypeError, match="an object of type index .* means nothing outside"):
        theirs(lambda x: tvm_ffi.List([x]))(1)


def test_tvm_ffi_is_never_imported() -> None:
    program = (
        "import sys, numpy; from ekiden import runtime; f = runtime.convert(lambda x: x)\n"
        "f(numpy.zeros(2)), f([1]), f({1: 2}), f(len), f(print)\n"
        "print('tvm_ffi' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr
