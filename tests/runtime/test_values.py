"""Values of every kind, there and back, and tensors that are only lent."""

import copy
import ctypes
import gc
import pickle
import shutil
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ekiden import relay, runtime
from ekiden.runtime.errors import RunError

echo: Any = runtime.convert(lambda value: value)

keys = st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary()
leaves = (
    keys
    | st.none()
    | st.booleans()
    | st.floats(allow_nan=False)
    | st.lists(st.integers(0, 2**40)).map(runtime.Shape)
    | st.sampled_from("bool int8 float32 bfloat16 float8_e5m2 int4".split()).map(runtime.DataType)
    | st.builds(runtime.Device, st.integers(1, 18), st.integers(0, 7))
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.builds(runtime.ADT, st.integers(0, 9), st.lists(inner, max_size=3))
    ),
)


@settings(max_examples=50, deadline=None)
@given(values)
def test_values_and_their_types_come_back(value: object) -> None:
    back = echo(value)
    assert back == value
    assert isinstance(back, type(value))  # a tuple comes back as data of tag 0


@settings(max_examples=50, deadline=None)
@given(values)
def test_json_gives_values_back(value: object) -> None:
    back = runtime.load_json(runtime.save_json(value))
    assert back == value
    assert type(back) is type(value)


@settings(max_examples=50, deadline=None)
@given(values)
def test_equal_values_are_equal_in_structure(value: object) -> None:
    assert runtime.structural_equal(value, echo(value))
    assert runtime.structural_hash(value) == runtime.structural_hash(echo(value))
    assert not runtime.structural_equal(value, [value])


def test_rare_value_types_round_trip() -> None:
    assert echo(ctypes.c_void_p(0xABC)).value == 0xABC
    assert echo(ctypes.c_void_p()).value is None
    error = echo(error_in := ValueError("an error is a value too"))
    assert error is error_in
    module = runtime.convert(lambda: 1)
    assert echo(module) == module
    assert repr(echo(runtime.Shape((1, 2)))) == "Shape([1, 2])"


def test_nodes_of_the_compiler_come_back_as_themselves() -> None:
    var = relay.var("x")
    assert echo(var) is var
    assert echo([var, {"v": var}])[1]["v"] is var
    assert runtime.convert([var]) == [var]


def test_deeply_nested_values_round_trip() -> None:
    cells: Any = ()
    for i in range(50_000):
        cells = runtime.ADT(1, (i, cells))
    back, count = echo(cells), 0
    while back:
        back, count = back[1], count + 1
    assert count == 50_000


def test_lists_too_deep_for_python_are_an_error() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(RecursionError):
        echo(deep)


def test_endless_callbacks_are_an_error() -> None:
    def again() -> object:
        return function()

    function: Any = runtime.convert(again)
    with pytest.raises(RecursionError):
        function()
    assert echo(1) == 1


def test_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="a PackedFunc takes no keyword arguments, got value"):
        echo(value=1)


def test_convert_refuses_what_cannot_cross() -> None:
    assert runtime.convert(3) == 3
    assert isinstance(runtime.convert(np.zeros(2)), runtime.Tensor)
    with pytest.raises(TypeError, match="got builtins.object"):
        runtime.convert(object())


SOURCE = r"""
#include <ekiden/runtime.h>

/* f(x), with x lent as a bare DLTensor over memory of this function. */
EK_API int __tvm_ffi_lend(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs;
  double data[4] = {0, 1, 2, 3};
  int64_t shape[1] = {2}, strides[1] = {2};
  ek_dltensor tensor = {data, {EK_CPU, 0}, 1, {EK_DTYPE_FLOAT, 64, 1}, shape, strides, 0};
  ek_value lent = {EK_DLTENSOR_PTR, 0, {0}};
  lent.v.ptr = &tensor;
  int code = ek_function_call(args[0].v.obj, &lent, 1, ret);
  if (code == 0 && ret->type_index == EK_NONE) {
    ret->type_index = EK_FLOAT;
    ret->v.f64 = data[0] + data[2];
  }
  for (int i = 0; i < 4; i++) ((volatile double *)data)[i] = -1;
  return code;
}

EK_API int __tvm_ffi_call(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  return ek_function_call(args[0].v.obj, args + 1, nargs - 1, ret);
}

/* Calls, and puts an error of its own before one that comes. */
EK_API int __tvm_ffi_wrap(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self;
  if (ek_function_call(args[0].v.obj, args + 1, nargs - 1, ret) == 0) return 0;
  ek_object *cause = ek_error_take();
  ek_error("ValueError", "wrap: the function failed");
  ek_object *error = ek_error_take();
  ((ek_error_object *)(void *)error)->cause = cause;
  ek_error_set(error);
  ek_object_release(error);
  return -1;
}

EK_API int __tvm_ffi_trace(void *self, const ek_value *args, int32_t nargs, ek_value *ret) {
  (void)self, (void)nargs;
  if (ek_function_call(args[0].v.obj, NULL, 0, ret) == 0) return 0;
  ek_object *error = ek_error_take();
  ek_error_object *cell = (ek_error_object *)(void *)error;
  ek_bytes line = {"  trace at values.c:47", 22};
  cell->update_backtrace(cell, &line, 1);
  ek_error_set(error);
  ek_object_release(error);
  return -1;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> runtime.Module:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    folder: Path = tmp_path_factory.mktemp("values")
    (folder / "values.c").write_text(SOURCE)
    output = folder / "values.so"
    command = [compiler, "-shared", "-fPIC", f"-I{runtime.include_dir()}"]
    command += [str(folder / "values.c"), str(runtime.library_path()), "-o", str(output)]
    subprocess.run(command, check=True)
    return runtime.load_module(output)


def test_callback_writes_to_borrowed_tensor_are_visible(library: runtime.Module) -> None:
    def fill(tensor: runtime.Tensor) -> None:
        assert tensor.strides == (2,)
        tensor.numpy()[:] = [5, 6]

    assert library["lend"](fill) == 11


def test_retained_borrowed_tensor_is_copied(library: runtime.Module) -> None:
    kept: list[runtime.Tensor] = []
    library["lend"](kept.append)
    returned: Any = library["lend"](lambda tensor: tensor)
    for tensor in (*kept, returned):
        np.testing.assert_array_equal(tensor.numpy(), [0, 2])


def test_array_of_borrowed_tensor_must_not_be_retained(library: runtime.Module) -> None:
    kept: list[object] = []
    with pytest.raises(RuntimeError, match="kept an array of a tensor that was lent to it"):
        library["lend"](lambda tensor: kept.append(tensor.numpy()))
    library["lend"](lambda tensor: kept.append(tensor.numpy().copy()))


def test_failing_callback_may_hold_its_lent_tensor(library: runtime.Module) -> None:
    def fail(tensor: runtime.Tensor) -> None:
        raise KeyError("lent")

    with pytest.raises(KeyError) as caught:
        library["lend"](fail)
    tensor = caught.traceback[-1].frame.f_locals["tensor"]
    np.testing.assert_array_equal(tensor.numpy(), [0, 2])


class OwnError(Exception):
    """A class that only this test knows."""


def test_exception_through_c_keeps_its_identity_and_traceback(library: runtime.Module) -> None:
    def fail(code: int) -> None:
        raise OwnError(code)

    with pytest.raises(OwnError) as caught:
        library["call"](library["call"], fail, 3)
    assert caught.value.args == (3,)
    assert "raise OwnError(code)" in "".join(traceback.format_exception(caught.value))


def test_error_of_c_is_chained_to_its_cause(library: runtime.Module) -> None:
    def fail() -> None:
        raise OwnError("deep")

    with pytest.raises(ValueError, match="wrap: the function failed") as caught:
        library["wrap"](fail)
    assert isinstance(caught.value.__cause__, OwnError)
    assert "raise OwnError" in "".join(traceback.format_exception(caught.value))


def test_c_frames_become_a_note(library: runtime.Module) -> None:
    def fail() -> None:
        raise OwnError

    with pytest.raises(OwnError) as caught:
        library["trace"](fail)
    assert "trace at values.c:47" in caught.value.__notes__[0]


def test_registered_errors_have_their_class(library: runtime.Module) -> None:
    name = "test.values.fail"

    @runtime.register_error("TestValuesError")
    class Registered(Exception):
        pass

    @runtime.register_error
    class TestValuesPlain(Exception):
        pass

    assert runtime.kind_of_error(Registered("why")) == ("TestValuesError", "why")
    assert type(runtime.error_from("TestValuesError", "why")) is Registered
    assert type(runtime.error_from("TestValuesPlain", "why")) is TestValuesPlain
    assert type(runtime.error_from("NeverHeardOf", "why")) is RunError
    assert type(runtime.error_from("UnicodeDecodeError", "why")) is RunError
    with pytest.raises(TypeError, match="expected an exception class"):
        runtime.register_error("x")(int)  # type: ignore[type-var]
    assert runtime.get_global_func(name, allow_missing=True) is None


def test_callbacks_leave_no_references(library: runtime.Module) -> None:
    tensor = runtime.empty((2,))
    array = np.zeros(3)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(1000):
        library["call"](echo, tensor)
        library["call"](echo, [array, {"k": tensor}, "a string that is long enough"])
    gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert runtime.WeakRef(tensor)() == tensor


@pytest.mark.quick
def test_data_prints_and_compares_as_its_tags_and_fields() -> None:
    data = runtime.ADT
    nested = data(0, (data(2, (4, 5)), (1,), ()))
    assert repr(nested) == "(ADT(2, (4, 5)), (1,), ())"
    assert nested == (data(2, (4, 5)), (1,), ()) == nested
    assert data(1) != ()
    assert data(1, (2,)) != data(2, (2,)) != (2,)
    assert hash(data(1, (2, data(3)))) == hash(data(1, (2, data(3))))


@pytest.mark.parametrize("fields", [(), (1,), (1, (2,)), (runtime.ADT(0), 3)])
def test_data_of_the_first_constructor_has_its_tag(fields: tuple[object, ...]) -> None:
    back = echo(runtime.ADT(0, fields))
    assert type(back) is runtime.ADT and back.tag == 0 and back.fields == fields
    assert echo(runtime.ADT(1, (back,)))[0].tag == 0


@pytest.mark.parametrize(
    "twin", [lambda v: pickle.loads(pickle.dumps(v)), copy.copy, copy.deepcopy]
)
def test_data_can_be_pickled_and_copied(twin: Callable[[Any], Any]) -> None:
    shared = runtime.ADT(3, ("a",))
    value = runtime.ADT(1, (shared, (2, shared), runtime.ADT(0)))
    result = twin(value)
    assert type(result) is runtime.ADT and result == value and repr(result) == repr(value)
    assert result[0] is result[1][1] and type(result[1]) is tuple
    for number in range(20_000):
        value = runtime.ADT(1, (number, value))
    assert twin(value) == value


def test_list_of_many_cells_prints_and_compares() -> None:
    made = [runtime.ADT(1) for _ in range(2)]
    for i in range(100_000):
        made = [runtime.ADT(0, (i, each)) for each in made]
    one, two = made
    assert one == two
    assert hash(one) == hash(two)
    assert repr(one).startswith("(99999, (99998, ")
    assert repr(one).endswith(", (0, ADT(1, ()))" + ")" * 99_999)
    assert echo(one) == two
