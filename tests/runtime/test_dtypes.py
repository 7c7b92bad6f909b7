"""Data types: all that NumPy, ml_dtypes and DLPack share, in and out without copying."""

import ctypes
import shutil
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ekiden import runtime

pytestmark = pytest.mark.quick

WHOLE = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 "
    "complex128 bfloat16 float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn float8_e4m3fnuz "
    "float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
).split()
PACKED = "int1 int2 int4 uint1 uint2 uint4 float4_e2m1fn float6_e2m3fn float6_e3m2fn".split()


def numpy_dtype(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def all_codes(name: str, count: int) -> np.ndarray:
    """An array whose elements run through the bit patterns of a small type."""
    bits = runtime.DataType(name).bits
    return (np.arange(count) % 2**bits).astype("uint8").view(numpy_dtype(name))


@pytest.mark.parametrize("name", WHOLE)
def test_array_is_shared(name: str) -> None:
    array = np.zeros((3, 4), numpy_dtype(name))
    for tensor in (runtime.tensor(array), runtime.from_dlpack(array)):
        assert (tensor.dtype, tensor.nbytes) == (name, array.nbytes)
        assert tensor.numpy().dtype == array.dtype
        assert np.shares_memory(tensor.numpy(), array)
    assert runtime.empty((2,), name).numpy().dtype == array.dtype


@pytest.mark.parametrize("name", [n for n in WHOLE if n not in dir(ml_dtypes)])
def test_numpy_takes_its_own_types_through_dlpack(name: str) -> None:
    tensor = runtime.tensor(np.ones((2, 3), name))
    array = np.from_dlpack(tensor)
    assert array.dtype == np.dtype(name)
    assert np.shares_memory(array, tensor.numpy())


@pytest.mark.parametrize("name", PACKED)
@pytest.mark.parametrize("count", [0, 1, 3, 64, 65])
def test_sub_byte_elements_are_packed(name: str, count: int) -> None:
    array = all_codes(name, count)
    bits = runtime.DataType(name).bits
    tensor = runtime.tensor(array)
    assert tensor.nbytes == (count * bits + 7) // 8
    back = tensor.numpy()
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back.view("uint8"), array.view("uint8"))
    if count:
        assert not back.flags.writeable, "what is written into the copy would be lost"
    packed = runtime.convert(lambda x: x)(tensor)  # type: ignore[operator]
    np.testing.assert_array_equal(packed.numpy().view("uint8"), array.view("uint8"))


def test_packed_elements_lie_low_bits_first() -> None:
    tensor = runtime.tensor(np.array([1, 2, 3, 4, 5]).astype(ml_dtypes.uint4))
    bytes_ = tensor.reinterpret("uint8", (3,)).numpy()
    np.testing.assert_array_equal(bytes_, [0x21, 0x43, 0x05])


def test_call_refuses_unpacked_sub_byte_arrays() -> None:
    with pytest.raises(ValueError, match=r"an array of int4 must be packed, which tensor\(\) does"):
        runtime.convert(lambda x: x)(np.zeros(3, ml_dtypes.int4))  # type: ignore[operator]


def test_dtype_is_a_value() -> None:
    dtype = runtime.DataType("bfloat16")
    assert (dtype.type_code, dtype.bits, dtype.lanes, dtype.itemsize) == (4, 16, 1, 2)
    vector = runtime.DataType("int8x4")
    assert (vector.bits, vector.lanes, vector.itemsize) == (8, 4, 4)
    assert runtime.DataType(np.float32) == "float32"
    assert repr(vector) == "DataType('int8x4')"
    back = runtime.convert(lambda x: x)(vector)  # type: ignore[operator]
    assert type(back) is runtime.DataType
    assert back == vector
    with pytest.raises(TypeError, match="dtype: expected a name such as float32"):
        runtime.DataType("float33")


def test_devices_compare_and_print() -> None:
    assert runtime.cpu() == runtime.device("cpu") == runtime.device("llvm") == runtime.Device(1, 0)
    cuda = runtime.device("cuda:999")  # more than any machine has, or any stand-in of a test
    assert (cuda.device_type, cuda.device_id, cuda.exist, str(cuda)) == (2, 999, False, "cuda(999)")
    assert runtime.device("cuda", 999) == runtime.device(2, 999) == cuda
    assert runtime.cpu().exist
    runtime.cpu().sync()
    with pytest.raises(ValueError, match="device: expected one of cpu, cuda, .* got 'tpu'"):
        runtime.device("tpu")


def test_text_of_a_target_names_the_device_of_its_kind() -> None:
    assert runtime.device("llvm -mcpu=haswell") == runtime.cpu()
    assert runtime.device("cuda -arch=sm_80", 1) == runtime.device("cuda:1")
    assert runtime.device(dev_type="cuda", dev_id=2) == runtime.device(2, 2)
    with pytest.raises(ValueError, match="device: expected one of cpu, .* got 'tpu -x'"):
        runtime.device("tpu -x")
    with pytest.raises(TypeError, match="expected a name, a number or a device, got NoneType"):
        runtime.device()


def test_views_share_memory() -> None:
    tensor = runtime.tensor(np.arange(6.0))
    view = tensor.view((2, 3))
    view[1, 2] = 9
    assert tensor.numpy()[5] == 9
    assert tensor.reinterpret("int64", (6,)).numpy()[0] == 0
    with pytest.raises(ValueError, match=r"view: \(6,\) and \(4,\) have different numbers"):
        tensor.view((4,))
    with pytest.raises(ValueError, match="reinterpret: expected 48 bytes, got 24"):
        tensor.reinterpret("float32", (6,))
    with pytest.raises(ValueError, match="do not lie in row-major order"):
        runtime.from_dlpack(np.zeros((3, 4)).T).view((12,))


def test_strided_and_read_only_tensors() -> None:
    array = np.arange(12, dtype="float32").reshape(3, 4)
    strided = runtime.from_dlpack(array[:, ::2])
    assert strided.strides == (4, 2)
    np.testing.assert_array_equal(strided.contiguous().numpy(), array[:, ::2])
    copied = strided.copyto(runtime.cpu())
    assert copied.is_contiguous
    array.flags.writeable = False
    assert runtime.from_dlpack(array).readonly
    writable = runtime.from_dlpack(array).copyto(runtime.cpu())
    assert not writable.readonly
    with pytest.raises(ValueError, match="read-only"):
        runtime.from_dlpack(array)[0, 0] = 1


def test_tvm_ndarray_functions_work() -> None:
    array = np.arange(4, dtype="float32")
    tensor = runtime.nd.array(array)
    array[0] = 5
    assert tensor.asnumpy()[0] == 0, "nd.array copies"
    target = runtime.nd.empty((4,), "float32", runtime.cpu(0))
    assert tensor.copyto(target) is target
    target.copyfrom([4, 3, 2, 1])
    target[:2] = runtime.nd.array([9, 8])
    np.testing.assert_array_equal(target.numpy(), [9, 8, 2, 1])
    assert isinstance(target, runtime.nd.NDArray)
    assert target.device == runtime.cpu(0)
    assert target.same_as(target)
    with pytest.raises(ValueError, match="shape"):
        tensor.copyto(runtime.nd.empty((5,)))
    with pytest.raises(runtime.errors.DeviceError, match=r"metal\(0\): there is no driver"):
        runtime.nd.empty((4,), device=runtime.device("metal"))


class Padded:
    """A producer that gives uint4 elements a byte each, as DLPack allows if it says so."""

    def __init__(self, codes: np.ndarray) -> None:
        self.tensor = runtime.tensor(codes)

    def __dlpack__(self, **options: object) -> object:
        capsule = self.tensor.__dlpack__(max_version=(1, 0))
        pointer = ctypes.pythonapi.PyCapsule_GetPointer
        pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = pointer(capsule, b"dltensor_versioned")
        ctypes.c_uint64.from_address(address + 24).value |= 4  # flags: padded below a byte
        ctypes.c_uint8.from_address(address + 53).value = 4  # bits of the dtype
        return capsule


def test_padded_elements_are_packed_on_the_way_in() -> None:
    tensor = runtime.from_dlpack(Padded(np.array([1, 2, 15], "uint8")))  # type: ignore[arg-type]
    assert (tensor.dtype, tensor.nbytes) == ("uint4", 2)
    np.testing.assert_array_equal(tensor.numpy().astype("int32"), [1, 2, 15])


def test_from_dlpack_copies_when_asked() -> None:
    array = np.arange(3.0)
    assert not np.shares_memory(runtime.from_dlpack(array, copy=True).numpy(), array)
    assert np.shares_memory(runtime.from_dlpack(array, copy=False).numpy(), array)
    with pytest.raises(BufferError, match=r"a copy is needed to move data to cuda\(0\)"):
        runtime.from_dlpack(array, device=runtime.device("cuda"), copy=False)


def test_copy_through_dlpack_says_so() -> None:
    tensor = runtime.tensor(np.arange(3.0))
    array = np.from_dlpack(tensor, copy=True)
    array[0] = 7
    assert tensor.numpy()[0] == 0
    with pytest.raises(BufferError, match="data on the host has no stream"):
        tensor.__dlpack__(stream=1)
    with pytest.raises(BufferError, match="a copy is needed"):
        tensor.__dlpack__(dl_device=(2, 0), copy=False)


DEVICE = r"""
#include <ekiden/runtime.h>
#include <stdlib.h>

/* A device whose memory is the host's, with every bit turned: what the host reads is nonsense. */
static int alloc(ek_device device, size_t size, size_t alignment, const char *scope,
                 void **out) {
  (void)device, (void)alignment, (void)scope;
  *out = malloc(size + 1);
  return *out == NULL ? ek_error("MemoryError", "no memory") : 0;
}

static void release(ek_device device, void *data, size_t size) {
  (void)device, (void)size;
  free(data);
}

static int copy(const void *from, ek_device from_device, void *to, ek_device to_device,
                size_t size, void *stream) {
  (void)stream;
  char turn = (from_device.type == 12) == (to_device.type == 12) ? 0 : (char)0xff;
  for (size_t i = 0; i < size; i++) ((char *)to)[i] = ((const char *)from)[i] ^ turn;
  return 0;
}

static const ek_device_table table = {"turned", alloc, release, copy};

EK_API int __ek_init(void) { return ek_device_register(12, &table); }
"""


def test_tensors_move_between_devices(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler: install gcc or clang")
    (tmp_path / "device.c").write_text(DEVICE)
    output = tmp_path / "device.so"
    command = [compiler, "-shared", "-fPIC", f"-I{runtime.include_dir()}"]
    command += [str(tmp_path / "device.c"), str(runtime.library_path()), "-o", str(output)]
    subprocess.run(command, check=True)
    runtime.load_module(output)
    device = runtime.device("ext_dev", 1)
    array = np.arange(6, dtype="int32").reshape(2, 3)
    there = runtime.nd.array(array, device)
    assert there.device == device
    np.testing.assert_array_equal(there.numpy(), array)
    assert not there.numpy().flags.writeable
    np.testing.assert_array_equal(there.copyto(runtime.device("ext_dev", 2)).numpy(), array)
    back = runtime.empty((2, 3), "int32")
    there.copyto(back)
    np.testing.assert_array_equal(back.numpy(), array)
    moved = runtime.from_dlpack(back, device=device)
    assert moved.device == device
    assert there.__dlpack_device__() == (12, 1)
    np.testing.assert_array_equal(np.from_dlpack(there, device="cpu"), array)


def test_memory_of_another_scope_is_refused() -> None:
    assert runtime.nd.empty((2,), mem_scope="global").shape == (2,)
    for make in (lambda s: runtime.nd.empty((2,), mem_scope=s),
                 lambda s: runtime.nd.array([1.0], mem_scope=s)):  # fmt: skip
        with pytest.raises(ValueError, match="scope 'global' expected, got 'global.texture'"):
            make("global.texture")
