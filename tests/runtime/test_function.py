"""Calls across the boundary: values both ways, errors both ways, the registry."""

import gc
import threading
import traceback
import weakref
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ekiden import runtime
from ekiden.runtime.errors import InputError, LoadError

pytestmark = pytest.mark.quick


@pytest.fixture
def name() -> Iterator[str]:
    yield "test.function"
    runtime.remove_global_func("test.function")


def same(value: object) -> object:
    return value


echo = runtime.convert_to_function(same)

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)


@pytest.mark.slow
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # of a busy machine
@given(st.lists(scalars, max_size=20))
def test_any_number_of_arguments(items: list[object]) -> None:
    collect = runtime.convert_to_function(lambda *args: list(args))
    assert collect(*items) == items


def test_rare_value_types_cross() -> None:
    assert echo(np.float32(1.5)) == 1.5
    assert echo(np.int8(-3)) == -3
    assert echo(np.bool_(True)) is True
    assert echo(np.dtype("float16")) == "float16"
    assert echo(bytearray(b"ab")) == b"ab"
    assert echo(runtime.Device(2, 1)) == runtime.Device(2, 1)
    assert echo(runtime.ADT(3, (1, "x"))) == runtime.ADT(3, (1, "x"))
    assert repr(echo(runtime.ADT(3, (1, "x")))) == "ADT(3, (1, 'x'))"
    assert runtime.ADT(3, (1,)) != runtime.ADT(4, (1,))


def test_arrays_are_shared_not_copied() -> None:
    array = np.zeros(4)

    def fill(tensor: runtime.Tensor) -> None:
        tensor.numpy()[:] = 2

    runtime.convert_to_function(fill)(array)
    np.testing.assert_array_equal(array, 2)


def test_object_comes_back_as_the_same_object() -> None:
    tensor = runtime.empty((2,))
    back = echo(tensor)
    assert back == tensor
    assert hash(back) == hash(tensor)
    assert isinstance(back, runtime.Tensor)


def test_functions_are_values() -> None:
    def twice(function: Callable[[object], object], value: object) -> object:
        return function(function(value))

    assert runtime.convert_to_function(twice)(lambda x: x + 1, 5) == 7
    assert runtime.convert_to_function(echo) is echo


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (
            2**63,
            OverflowError,
            "argument 1: expected an integer of 64 bits, got 9223372036854775808",
        ),
        (
            np.zeros((3, 4)).T,
            ValueError,
            "argument 1: expected a contiguous, aligned array in this machine's byte order; "
            "numpy.ascontiguousarray makes one",
        ),
        (
            {1},
            TypeError,
            "argument 1: expected None, a bool, int, float, str, bytes, tuple, list, dict, "
            "function, NumPy array, DLPack producer or runtime object, got builtins.set",
        ),
        ((0, [{1}]), TypeError, "argument 1: argument 1: argument 0: expected None, .*"),
    ],
    ids=["wide", "strided", "set", "nested"],
)
def test_unsupported_values_are_named(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        runtime.convert_to_function(lambda *args: None)(0, value)


class OwnError(Exception):
    """A class the runtime has never heard of."""


@pytest.mark.parametrize(
    "error", [ValueError("no"), KeyError("key"), OwnError("mine"), LoadError("x"), SystemExit(3)]
)
def test_exception_crosses_with_its_traceback(error: BaseException) -> None:
    def fail() -> None:
        raise error

    outer = runtime.convert_to_function(lambda: runtime.convert_to_function(fail)())
    with pytest.raises(type(error)) as caught:
        outer()
    assert caught.value is error
    assert "raise error" in "".join(traceback.format_exception(caught.value))


def test_error_of_c_becomes_the_class_of_its_kind() -> None:
    with pytest.raises(TypeError, match=r"ek\.runtime\.num_threads: expected one int"):
        runtime.get_global_func("ek.runtime.num_threads")("two")


def test_errors_leave_nothing_behind() -> None:
    class Witness(Exception):
        pass

    def fail() -> None:
        raise Witness

    error_gone = []
    function = runtime.convert_to_function(fail)
    try:
        function()
    except Witness as error:
        error_gone.append(weakref.ref(error))
    gc.collect()
    assert error_gone[0]() is None


def test_callback_that_gives_no_value_is_an_error() -> None:
    with pytest.raises(TypeError, match="expected None, a bool"):
        runtime.convert_to_function(lambda: object())()


def test_callable_dies_with_its_function() -> None:
    class Callable_:
        def __call__(self) -> int:
            return 1

    target = Callable_()
    watch = weakref.ref(target)
    function = runtime.convert_to_function(target)
    del target
    assert function() == 1
    del function
    gc.collect()
    assert watch() is None


@pytest.mark.slow
def test_global_function_registry(name: str) -> None:
    assert runtime.get_global_func(name, allow_missing=True) is None
    with pytest.raises(ValueError, match="no function is registered as 'test.function'"):
        runtime.get_global_func(name)
    assert runtime.register_func(name, lambda x: x + 1)(1) == 2
    assert runtime.get_global_func(name)(41) == 42
    assert name in runtime.list_global_func_names()
    assert runtime.list_global_func_names() == sorted(runtime.list_global_func_names())
    with pytest.raises(ValueError, match=f"'{name}': the name is taken"):
        runtime.register_func(name, same)
    runtime.register_func(name, same, override=True)
    assert runtime.get_global_func(name)(1) == 1
    assert runtime.remove_global_func(name) is True
    assert runtime.remove_global_func(name) is False


def test_register_func_decorates(name: str) -> None:
    @runtime.register_func(name)
    def negate(x: int) -> int:
        return -x

    assert negate(3) == runtime.get_global_func(name)(3) == -3


def test_functions_may_be_called_from_many_threads() -> None:
    results = []

    def work() -> None:
        results.append(sum(echo(i) for i in range(500)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [sum(range(500))] * 4


def test_registered_classes_come_back() -> None:
    @runtime.register_object("test.Thing")
    class Thing(runtime.Object):
        pass

    with pytest.raises(TypeError, match="expected a subclass of Object"):
        runtime.register_object("test.Other")(int)
    with pytest.raises(TypeError, match="Thing: made by the runtime"):
        Thing()


def test_errors_have_two_parents_where_python_has_the_idea() -> None:
    assert issubclass(InputError, ValueError)


def test_checksums_of_bytes_are_those_of_zlib() -> None:
    crc32 = runtime.get_global_func("ek.runtime.crc32")
    data = np.random.default_rng(0).integers(0, 256, 1000).astype("uint8")
    for size in (0, 1, 63, 64, 65, 1000):  # by tables, by folding, and what is left of it
        assert crc32(runtime.tensor(data[:size])) == zlib.crc32(data[:size])
    with pytest.raises(TypeError, match=r"^ek.runtime.crc32: bytes of the host expected$"):
        crc32(runtime.tensor(data.astype("float32")))
    with pytest.raises(TypeError, match=r"^ek.runtime.crc32: wrong arguments, see runtime.h$"):
        crc32(b"bytes")
