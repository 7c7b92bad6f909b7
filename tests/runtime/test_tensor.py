"""Tensors: sharing, copies, DLPack."""

import ctypes
import gc
import pickle
import weakref

import ml_dtypes
import numpy as np
import pytest

from ekiden import runtime

pytestmark = pytest.mark.quick

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128 bfloat16 float8_e4m3fn float8_e5m2"
).split()


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    return np.dtype(getattr(ml_dtypes, name, name))


class Producer:
    """A DLPack producer that is not a NumPy array, and can be watched."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OldProducer(Producer):
    """One that knows only the form of before DLPack 1.0."""

    def __dlpack__(self, stream: object = None) -> object:
        return self.array.__dlpack__()


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3, 4)])
def test_tensor_shares_the_memory_of_a_numpy_array(name: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, numpy_dtype(name))
    tensor = runtime.tensor(array)
    assert tensor.shape == shape
    assert tensor.ndim == len(shape)
    assert tensor.dtype == name
    assert tensor.nbytes == array.nbytes
    assert tensor.device == (1, 0)
    back = tensor.numpy()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)
    assert array.size == 0 or np.shares_memory(back, array)


def test_writes_are_seen_on_both_sides() -> None:
    array = np.zeros((2, 3), "float32")
    tensor = runtime.tensor(array)
    tensor.numpy()[1, 2] = 7
    assert array[1, 2] == 7


@pytest.mark.slow
def test_array_lives_as_long_as_the_tensor() -> None:
    array = np.arange(6.0)
    watch = weakref.ref(array)
    tensor = runtime.tensor(array)
    del array
    gc.collect()
    assert watch() is not None
    out = tensor.numpy()
    del tensor
    gc.collect()
    np.testing.assert_array_equal(out, np.arange(6.0))
    del out
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4).T,
        np.arange(12.0)[::2],
        np.arange(12.0)[::-1],
        np.arange(4, dtype=">i4"),
        np.frombuffer(b"x" + np.arange(3.0).tobytes(), "u1")[1:].view("float64"),
        np.broadcast_to(np.arange(3.0), (2, 3)),
    ],
    ids=["transposed", "strided", "reversed", "big-endian", "misaligned", "broadcast"],
)
def test_what_kernels_cannot_read_in_place_is_copied(array: np.ndarray) -> None:
    tensor = runtime.tensor(array)
    assert tensor.is_contiguous
    np.testing.assert_array_equal(tensor.numpy(), array)
    assert not np.shares_memory(tensor.numpy(), array)


def test_read_only_array_stays_read_only() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = runtime.tensor(array)
    assert tensor.readonly
    assert not tensor.numpy().flags.writeable
    with pytest.raises(ValueError, match="copy_from: the tensor is read-only"):
        tensor.copy_from(np.zeros(3))
    assert runtime.from_dlpack(tensor).readonly
    assert np.shares_memory(runtime.from_dlpack(tensor).numpy(), array)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_read_only_tensors_are_copied_for_dlpack(library: str) -> None:
    export = pytest.importorskip(library).from_dlpack
    array = np.arange(3.0)
    array.flags.writeable = False
    tensor = runtime.tensor(array)
    exported = export(tensor)
    exported[:] = 7
    assert array.tolist() == [0, 1, 2]
    assert np.asarray(exported).tolist() == [7, 7, 7]
    with pytest.raises(BufferError, match="the tensor is read-only"):
        tensor.__dlpack__(max_version=(1, 0), copy=False)
    assert np.shares_memory(tensor.numpy(), array)


def test_fraction_is_no_number_of_elements() -> None:
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        runtime.empty((1.5,))
    with pytest.raises(TypeError, match="'float' object cannot be interpreted as an integer"):
        runtime.num_threads(1.5)


@pytest.mark.parametrize("source", ["text", [object()], np.array(["a"]), np.zeros(2, "M8[s]")])
def test_other_dtypes_are_refused(source: object) -> None:
    with pytest.raises(TypeError, match="tensor: expected an array of numbers, got one of"):
        runtime.tensor(source)


def test_tensor_of_a_tensor_is_itself() -> None:
    tensor = runtime.empty((2, 2), "int8")
    assert runtime.tensor(tensor) is tensor


@pytest.mark.parametrize("shape", [(), (0, 4), (3, 4)])
def test_dlpack_out_shares_memory(shape: tuple[int, ...]) -> None:
    tensor = runtime.empty(shape, "int32")
    array = np.from_dlpack(tensor)
    assert (array.shape, array.dtype) == (shape, np.dtype("int32"))
    array[...] = 5
    np.testing.assert_array_equal(tensor.numpy(), 5)


def test_dlpack_out_outlives_the_tensor() -> None:
    tensor = runtime.tensor(np.arange(1000))
    array = np.from_dlpack(tensor)
    del tensor
    gc.collect()
    np.testing.assert_array_equal(array, np.arange(1000))


def test_unconsumed_dlpack_capsule_is_released() -> None:
    array = np.arange(5.0)
    watch = weakref.ref(array)
    tensor = runtime.tensor(array)
    for version in (None, (1, 0)):
        tensor.__dlpack__(max_version=version)
    del array, tensor
    gc.collect()
    assert watch() is None


def test_failing_dlpack_consumer_releases_once() -> None:
    """PyTorch calls the deleter and leaves the capsule fresh, for devices that it knows by name."""
    tensor = runtime.tensor(np.arange(5.0))
    capsule = tensor.__dlpack__()
    python = ctypes.pythonapi
    python.PyCapsule_GetPointer.restype = ctypes.c_void_p
    python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
    managed = python.PyCapsule_GetPointer(capsule, b"dltensor")
    behind_tensor_and_context = managed + 48 + ctypes.sizeof(ctypes.c_void_p)
    deleter = ctypes.c_void_p.from_address(behind_tensor_and_context).value
    assert deleter is not None
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(deleter)(managed)
    del capsule
    np.testing.assert_array_equal(tensor.numpy(), np.arange(5.0))


def test_dlpack_out_can_copy() -> None:
    tensor = runtime.tensor(np.zeros(3))
    copied = np.from_dlpack(tensor, copy=True)
    copied[0] = 1
    assert tensor.numpy()[0] == 0


@pytest.mark.parametrize("kind", [Producer, OldProducer])
def test_dlpack_in_shares_memory_and_outlives_its_producer(kind: type[Producer]) -> None:
    array = np.arange(6, dtype="int64").reshape(2, 3)
    tensor = runtime.from_dlpack(kind(array))
    array[0, 0] = 9
    expected = array.copy()
    del array
    gc.collect()
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_dlpack_in_keeps_strides_and_zero_sizes() -> None:
    array = np.arange(24.0).reshape(4, 6)[::2, ::-3]
    tensor = runtime.from_dlpack(Producer(array))
    assert tensor.strides == (12, -3)
    assert not tensor.is_contiguous
    np.testing.assert_array_equal(tensor.numpy(), array)
    np.testing.assert_array_equal(tensor.contiguous().numpy(), array)
    assert runtime.from_dlpack(Producer(np.zeros((2, 0)))).shape == (2, 0)


def test_dlpack_in_keeps_read_only() -> None:
    array = np.arange(3.0)
    array.flags.writeable = False
    assert runtime.from_dlpack(Producer(array)).readonly


def test_capsule_is_taken_once() -> None:
    class Stale:
        capsule = np.arange(3.0).__dlpack__()

        def __dlpack__(self, **options: object) -> object:
            return self.capsule

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    runtime.from_dlpack(Stale())
    with pytest.raises(TypeError, match="from_dlpack: expected a fresh DLPack capsule"):
        runtime.from_dlpack(Stale())


def test_copy_from() -> None:
    tensor = runtime.empty((2, 3), "float64")
    source = np.arange(6.0).reshape(3, 2).T
    tensor.copy_from(source)
    np.testing.assert_array_equal(tensor.numpy(), source)
    with pytest.raises(ValueError, match="shape"):
        tensor.copy_from(np.zeros(6))


def test_tensors_look_like_arrays() -> None:
    tensor = runtime.tensor(np.arange(6.0).reshape(2, 3))
    assert len(tensor) == 2
    np.testing.assert_array_equal(tensor[1], [3.0, 4.0, 5.0])
    np.testing.assert_array_equal(np.asarray(tensor, "float32"), np.arange(6).reshape(2, 3))
    assert np.shares_memory(np.asarray(tensor), tensor.numpy())
    assert repr(tensor) == "Tensor(shape=(2, 3), dtype='float64')"
    assert str(tensor) == "[[0. 1. 2.]\n [3. 4. 5.]]"
    with pytest.raises(TypeError, match="without dimensions"):
        len(runtime.tensor(1.0))


def test_tensor_can_be_pickled() -> None:
    tensor = runtime.tensor(np.arange(4, dtype="float32"))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tensor)).numpy(), tensor.numpy())


def test_empty_refuses_bad_shapes_and_dtypes() -> None:
    assert runtime.empty((2, 3), np.float16).dtype == "float16"
    with pytest.raises(ValueError):
        runtime.empty((2, -1))
    with pytest.raises(ValueError):
        runtime.empty((2**62, 2**62))
    with pytest.raises(ValueError, match="at most 64 dimensions, got 65"):
        runtime.empty((1,) * 65)
    with pytest.raises(TypeError, match="dtype: expected a name such as float32"):
        runtime.empty((1,), "U3")


def test_objects_are_not_made_by_calling_their_class() -> None:
    with pytest.raises(TypeError, match="Tensor: made by the runtime"):
        runtime.Tensor()
