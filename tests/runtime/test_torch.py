"""PyTorch tensors, exchanged through the C functions of DLPack."""

import gc
import weakref
from types import ModuleType

import numpy as np
import pytest

from ekiden import runtime


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    """PyTorch, imported when the first test runs: it takes seconds."""
    return pytest.importorskip("torch")  # type: ignore[no-any-return]


def test_torch_tensor_argument_shares_memory(torch: ModuleType) -> None:
    source = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    tensor = runtime.from_dlpack(source)
    source[0, 0] = 9
    assert (tensor.shape, tensor.dtype, tensor.numpy()[0, 0]) == ((2, 3), "float32", 9)
    watch = weakref.ref(source)
    del source
    gc.collect()
    assert tensor.numpy()[0, 0] == 9
    assert watch() is not None
    del tensor
    gc.collect()
    assert watch() is None


def test_torch_strides_and_empty_tensors(torch: ModuleType) -> None:
    tensor = runtime.from_dlpack(torch.arange(12).reshape(3, 4).T[::2])
    np.testing.assert_array_equal(tensor.numpy(), np.arange(12).reshape(3, 4).T[::2])
    assert runtime.from_dlpack(torch.zeros((0, 3))).shape == (0, 3)
    assert runtime.from_dlpack(torch.tensor(2.5)).numpy() == 2.5


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64"])
def test_small_and_complex_torch_dtypes(torch: ModuleType, name: str) -> None:
    source = torch.zeros(3, dtype=getattr(torch, name))
    assert runtime.from_dlpack(source).dtype == name
    assert runtime.DataType(source.dtype) == name


def test_torch_result_shares_memory(torch: ModuleType) -> None:
    tensor = runtime.tensor(np.arange(4, dtype="float32"))
    taken = torch.from_dlpack(tensor)
    taken[1] = 8
    assert tensor.numpy()[1] == 8
    del tensor
    gc.collect()
    assert taken.tolist() == [0, 8, 2, 3]


def test_borrowed_arguments_outlive_the_call_if_retained(torch: ModuleType) -> None:
    kept = []
    source = torch.ones(3)
    keep = runtime.convert(lambda tensor: kept.append(tensor))
    keep(source)  # type: ignore[operator]
    watch = weakref.ref(source)
    del source
    gc.collect()
    assert kept[0].numpy().tolist() == [1, 1, 1]
    kept.clear()
    gc.collect()
    assert watch() is None


def test_parameters_and_subclasses(torch: ModuleType) -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    shape = runtime.convert(lambda tensor: runtime.Shape(tensor.shape))
    assert shape(parameter) == (2,)  # type: ignore[operator]


def test_views_that_negate_or_conjugate_are_refused(torch: ModuleType) -> None:
    number = torch.tensor([1 + 2j])
    for view, name in ((number.conj(), "conj"), (number.conj().imag, "neg")):
        for take in (runtime.from_dlpack, runtime.convert(lambda tensor: tensor)):
            with pytest.raises(BufferError, match=rf"resolve_{name}\(\) makes"):
                take(view)
        resolved = getattr(view, f"resolve_{name}")()
        assert runtime.from_dlpack(resolved).numpy() == resolved.numpy()
