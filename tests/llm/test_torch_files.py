"""Files of torch.save: tensors are read as torch has them, and nothing else is run."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ekiden.llm.checkpoint_files import open_checkpoint
from ekiden.llm.torch_file import TorchFile
from ekiden.runtime.errors import LoadError

torch = pytest.importorskip("torch", reason="its files are read")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors_are_those_that_torch_saved(tmp_path: Path, dtype: str) -> None:
    whole = torch.arange(24.0).reshape(4, 6).to(getattr(torch, dtype))
    state = OrderedDict(
        plain=whole, turned=whole.T, part=whole[1:3, ::2], scalar=whole[2, 3],
        parameter=torch.nn.Parameter(whole), empty=whole[:0],
    )  # fmt: skip
    torch.save(state, tmp_path / "a.bin")
    file = TorchFile(tmp_path / "a.bin")
    assert list(file) == list(state)
    for name, value in state.items():
        weight = file[name]
        assert weight.format == dtype
        np.testing.assert_array_equal(weight.values(), value.detach().float().numpy())
        assert not weight.data.flags.writeable


def test_mask_tensors_are_named_but_unreadable(tmp_path: Path) -> None:
    torch.save({"mask": torch.ones(2, dtype=torch.bool)}, tmp_path / "a.bin")
    file = TorchFile(tmp_path / "a.bin")
    with pytest.raises(LoadError, match="tensor 'mask': one of FloatStorage.*got BoolStorage"):
        file["mask"]


class _Attack:
    def __reduce__(self) -> Any:  # noqa: ANN401  # pickle's own protocol
        return os.system, ("touch /tmp/should-not-be",)


def _archive(path: Path, content: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    return path


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            pickle.dumps({"a": _Attack()}, 2),
            "the pickle names 'posix.system', which is no tensor's",
        ),
        (
            pickle.dumps({"a": _Attack()}, 4),
            "the pickle names 'posix.system', which is no tensor's",
        ),
        (b"\x80\x02cbuiltins\neval\n.", "the pickle names 'builtins.eval'"),
        (b"\x80\x02}r\xff\xff\xff\x7f.", "number 2147483647 of an object"),
        (pickle.dumps([1, 2], 2), "tensors by name expected, got list"),
        (b"\x80\x02(i__main__\nA\n.", "instruction INST"),
        (b"no pickle", "no pickle of tensors"),
        (b"", "no pickle of tensors"),
    ],
)
def test_non_tensors_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(LoadError) as caught:
        TorchFile(_archive(tmp_path / "a.bin", content))
    assert message in str(caught.value)


def _saved(**changes: object) -> bytes:
    """The pickle of a tensor [2, 3] with changed arguments."""
    rebuild = {"offset": 0, "shape": (2, 3), "strides": (3, 1), "elements": 6, **changes}

    class Pickler(pickle.Pickler):
        def persistent_id(self, value: object) -> object:
            return value if isinstance(value, tuple) and value[:1] == ("storage",) else None

    class Tensor:
        def __reduce__(self) -> Any:  # noqa: ANN401  # pickle's own protocol
            storage = ("storage", torch.FloatStorage, "0", "cpu", rebuild["elements"])
            return torch._utils._rebuild_tensor_v2, (
                storage, rebuild["offset"], rebuild["shape"], rebuild["strides"], False, None,
            )  # fmt: skip

    file = io.BytesIO()
    Pickler(file, 2).dump({"a": Tensor()})
    return file.getvalue()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": 1}, "element 6 of 6 that there are"),
        ({"strides": (2**62, 1)}, "of 6 that there are"),
        ({"shape": (2**40, 2**40)}, "elements expected"),
        ({"elements": 7, "offset": 1}, "no 28 bytes in the entry 'data/0'"),
        ({"offset": -1}, "a tensor of shape"),
        ({"shape": (2,)}, "a tensor of shape"),
    ],
)
def test_tensor_outside_its_bytes_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    path = _archive(tmp_path / "a.bin", _saved(**changes))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", np.arange(6, dtype="<f4").tobytes())
    with pytest.raises(LoadError, match=message):
        TorchFile(path)["a"]


@pytest.mark.parametrize("shape", [(1, 3), (0, 3)])
def test_stride_that_nothing_follows_may_be_of_any_size(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    path = _archive(tmp_path / "a.bin", _saved(shape=shape, strides=(2**63 - 1, 1)))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", np.arange(6, dtype="<f4").tobytes())
    expected = np.arange(3 * shape[0], dtype="float32").reshape(shape)
    np.testing.assert_array_equal(TorchFile(path)["a"].values(), expected)


def test_compressed_bytes_are_refused(tmp_path: Path) -> None:
    path = _archive(tmp_path / "a.bin", _saved())
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", np.zeros(6, "<f4").tobytes())
    with pytest.raises(LoadError, match="no 24 bytes in the entry 'data/0'"):
        TorchFile(path)["a"]


def test_folder_of_shards_is_a_checkpoint(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "pytorch_model-00001-of-00002.bin")
    torch.save({"b": torch.zeros(3)}, tmp_path / "pytorch_model-00002-of-00002.bin")
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin.index.json").write_text(
        '{"weight_map": {"a": "pytorch_model-00001-of-00002.bin",'
        ' "b": "pytorch_model-00002-of-00002.bin"}}'
    )
    checkpoint = open_checkpoint(tmp_path)
    assert {name: checkpoint[name].shape for name in checkpoint} == {"a": (2,), "b": (3,)}


def test_old_file_of_torch_is_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "a.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(LoadError, match=r"no file of torch.save since PyTorch 1.6"):
        TorchFile(tmp_path / "a.bin")


def test_tensor_that_repeats_its_bytes_without_end_is_refused(tmp_path: Path) -> None:
    """A few bytes would become terabytes."""
    one = torch.zeros(1, dtype=torch.float16)
    state = {"small": one.expand(1000), "large": one.expand(1 << 40)}
    torch.save(state, tmp_path / "a.bin")
    file = TorchFile(tmp_path / "a.bin")
    assert not file["small"].values().any()
    with pytest.raises(LoadError, match=r"'large': 1099511627776 elements of 1 in the file"):
        file["large"]


def test_damaged_compressed_data_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a": "b" * 100}))
        archive.writestr("archive/byteorder", "little")
    whole = path.read_bytes()
    refused = 0
    for at in range(len(whole)):
        for change in (0xFF, 0x01):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ change]) + whole[at + 1 :])
            try:
                TorchFile(path)
            except LoadError:
                refused += 1
    assert refused > len(whole) // 2
