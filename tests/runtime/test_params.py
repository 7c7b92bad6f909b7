"""Parameter files in the safetensors format, against the package safetensors."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ekiden import runtime
from ekiden.runtime.errors import LoadError
from ekiden.runtime.params import SAFETENSORS_DTYPES

safetensors = pytest.importorskip("safetensors")
numpy_face = pytest.importorskip("safetensors.numpy")

pytestmark = pytest.mark.quick


def array_of(name: str, shape: tuple[int, ...] = (3, 5)) -> np.ndarray:
    """An array whose bytes are all different, cut to what the type has."""
    dtype = runtime.DataType(name)
    codes = np.arange(np.prod(shape) * dtype.numpy_dtype.itemsize)
    codes %= 2 if name == "bool" else 2 ** min(dtype.bits, 8)
    return codes.astype("uint8").view(dtype.numpy_dtype).reshape(shape)


def raw(tensor: runtime.Tensor) -> bytes:
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("name", SAFETENSORS_DTYPES)
def test_every_dtype_of_the_format(name: str, tmp_path: Path) -> None:
    array = array_of(name)
    runtime.save_params(tmp_path / "one.safetensors", {"w": array})
    loaded = runtime.load_params(tmp_path / "one.safetensors")["w"]
    assert (loaded.dtype, loaded.shape) == (name, (3, 5))
    assert raw(loaded) == array.tobytes()


@pytest.mark.parametrize("name", "float32 int8 uint64 bool float16 float64 complex64".split())
def test_package_reads_and_writes_what_we_do(name: str, tmp_path: Path) -> None:
    arrays = {"a": array_of(name), "b/c": array_of(name, (0, 2)), "scalar": array_of(name, ())}
    runtime.save_params(tmp_path / "ours.safetensors", arrays, {"made by": "a test"})
    reference = numpy_face.load_file(tmp_path / "ours.safetensors")
    numpy_face.save_file(arrays, tmp_path / "theirs.safetensors")
    result = runtime.load_params(tmp_path / "theirs.safetensors")
    for key, array in arrays.items():
        assert reference[key].tobytes() == raw(result[key]) == array.tobytes()
        assert reference[key].shape == result[key].shape == array.shape


def test_package_reads_all_our_dtypes(tmp_path: Path) -> None:
    arrays = {name: array_of(name, (4, 4)) for name in SAFETENSORS_DTYPES}
    data = runtime.save_param_dict(arrays)
    read = dict(safetensors.deserialize(bytes(data)))
    assert {name: row["dtype"] for name, row in read.items()} == SAFETENSORS_DTYPES
    for name, row in read.items():
        assert row["shape"] == [4, 4]
        assert bytes(row["data"]) == raw(
            runtime.tensor(arrays[name]).reinterpret(
                "uint8", (runtime.tensor(arrays[name]).nbytes,)
            )
        )


def test_loading_maps_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mapped.safetensors"
    array = np.arange(1000, dtype="float32")
    runtime.save_params(path, {"x": array})
    before = path.read_bytes()
    tensor = runtime.load_params(path)["x"]
    path.unlink()
    tensor[0] = 5
    np.testing.assert_array_equal(tensor.numpy()[1:], array[1:])
    assert runtime.load_param_dict(before)["x"].readonly


def test_params_are_vector_aligned() -> None:
    arrays = {"a": np.zeros(3, "int8"), "b": np.zeros(3), "c": np.zeros(2)}
    data = runtime.save_param_dict(arrays)
    size = int.from_bytes(data[:8], "little")
    assert (8 + size) % 64 == 0
    header = json.loads(data[8 : 8 + size])
    assert [header[name]["data_offsets"][0] for name in "bca"] == [0, 24, 40]
    assert data == runtime.save_param_dict({name: arrays[name] for name in "cab"})


def test_tensors_are_saved_in_row_major_order() -> None:
    array = np.arange(6.0).reshape(2, 3).T
    loaded = runtime.load_param_dict(runtime.save_param_dict({"x": runtime.from_dlpack(array)}))
    np.testing.assert_array_equal(loaded["x"].numpy(), array)


@pytest.mark.parametrize("array", [np.zeros(2, "complex128"), np.zeros(2, ml_dtypes.int4)])
def test_dtypes_the_format_does_not_have(array: np.ndarray, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="save_params: 'w' has the dtype .*, which safetensors"):
        runtime.save_params(tmp_path / "x", {"w": array})


def header(**rows: object) -> bytes:
    text = json.dumps(rows).encode()
    return len(text).to_bytes(8, "little") + text


BROKEN: dict[str, bytes] = {
    "short": b"\1\0\0",
    "long header": (2**40).to_bytes(8, "little") + b"{}",
    "no JSON": (2).to_bytes(8, "little") + b"{]",
    "no object": (2).to_bytes(8, "little") + b"[]",
    "no row": header(x=3),
    "bad dtype": header(x={"dtype": "F7", "shape": [], "data_offsets": [0, 4]}) + bytes(4),
    "bad shape": header(x={"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}) + bytes(4),
    "huge shape": header(x={"dtype": "F32", "shape": [2**61, 8], "data_offsets": [0, 4]}),
    "wrong size": header(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}) + bytes(4),
    "backwards": header(x={"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}) + bytes(4),
    "hole": header(x={"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}) + bytes(2),
    "beyond": header(x={"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}) + bytes(1),
    "left over": header(x={"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}) + bytes(2),
}


@pytest.mark.parametrize("data", BROKEN.values(), ids=BROKEN)
def test_broken_files_are_load_errors(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="load parameters from 'bytes'"):
        runtime.load_param_dict(data)
    path = tmp_path / "broken.safetensors"
    path.write_bytes(data)
    with pytest.raises(LoadError, match="broken.safetensors"):
        runtime.load_params(path)


def damage(data: bytes, change: Callable[[bytearray], None]) -> None:
    """Loading damaged bytes works or is a LoadError; nothing else."""
    copy = bytearray(data)
    change(copy)
    try:
        for tensor in runtime.load_param_dict(copy).values():
            raw(tensor)
    except LoadError:
        return


def test_damaged_files_only_raise_load_errors(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    with pytest.raises(LoadError, match="the file is empty"):
        runtime.load_params(tmp_path / "empty")
    data = runtime.save_param_dict({"a": np.zeros((2, 3), "float32"), "b": np.zeros(2, "int8")})
    choose = random.Random(3)
    for size in range(len(data)):
        damage(data[:size], lambda copy: None)
    for _ in range(300):
        at, value = choose.randrange(len(data)), choose.randrange(256)
        damage(data, lambda copy, at=at, value=value: copy.__setitem__(at, value))  # type: ignore[misc]


def test_tvm_named_param_functions(tmp_path: Path) -> None:
    arrays = {"x": np.arange(6, dtype="float32").reshape(2, 3)}
    runtime.save_param_dict_to_file(arrays, tmp_path / "x.params")
    loaded = runtime.load_param_dict_from_file(tmp_path / "x.params")
    np.testing.assert_array_equal(loaded["x"].numpy(), arrays["x"])
