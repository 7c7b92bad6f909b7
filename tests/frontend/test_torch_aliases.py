"""Results of PyTorch programs share memory with inputs, state and each other as eager's do."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import nn
from torch_programs import check

import ekiden
from long_runs import sizes

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations
Function = Callable[..., object]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that PyTorch compiled before."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@sizes("count", 12, 10_000)
def test_random_programs_share_memory_as_eager_does(count: int) -> None:
    finds = {number: check(2, number) for number in range(count)}
    assert not {number: find for number, find in finds.items() if find}


@pytest.mark.parametrize("number", [609, 1693])
def test_backward_graphs_compile_whose_sizes_come_as_expressions(number: int) -> None:
    assert check(2, number) == []


class Broadcast(nn.Module):
    """Writes one number into all of a buffer, and reads a part of that."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.b.copy_(x)
        return self.b[::2]


@pytest.mark.parametrize("shape", [(), (3,), (1, 1), (2, 1)])
def test_copies_that_broadcast_keep_the_shape_of_what_they_are_written_into(
    shape: tuple[int, ...],
) -> None:
    x = torch.full(shape, 4.0)
    result = ekiden.compile(Broadcast(), (x,))(x).numpy()
    assert np.array_equal(result, np.full((1, 3), 4.0, "float32"))


@pytest.mark.parametrize(
    "function",
    [lambda x: x.clone(), lambda x: x + 0, lambda x: x.repeat(1), lambda x: x * 1],
    ids=["clone", "add", "repeat", "multiply"],
)
def test_copies_of_inputs_are_copies(function: Function) -> None:
    x = torch.arange(3.0)
    result = torch.compile(function, backend="ekiden")(x)
    assert isinstance(result, torch.Tensor)
    result.add_(10)
    assert x.tolist() == [0, 1, 2]


def test_equal_results_and_constants_are_apart() -> None:
    compiled = torch.compile(lambda x: (x + 1, x + 1, torch.ones(3)), backend="ekiden")
    for _ in range(2):
        first, second, constant = compiled(torch.zeros(3))
        first.add_(10)
        assert second.tolist() == constant.tolist() == [1, 1, 1]
        constant.add_(5)


def test_views_are_views_of_arguments_and_of_results() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    view, result, part = torch.compile(
        lambda x: (x.t(), y := x + 1, y.view(-1)[1:]), backend="ekiden"
    )(x)
    x[0, 1] = 50
    result[0, 1] = 70
    assert view[1, 0] == 50
    assert part[0] == 70
    assert part.storage_offset() == 1


def test_strides_of_results_are_those_of_eager() -> None:
    x = torch.randn(2, 3, 4).permute(2, 0, 1)
    result = torch.compile(lambda x: x + 1, backend="ekiden")(x)
    assert result.stride() == (x + 1).stride()
    torch.testing.assert_close(result, x + 1)


def _swap(a: torch.Tensor, b: torch.Tensor) -> None:
    snapshot = a.clone()
    a.copy_(b)
    b.copy_(snapshot)


def _shift(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a[0:, :] = b[0:, :]
    b.add_(1)
    return b


@pytest.mark.parametrize("function", [_swap, _shift])
def test_written_copies_leave_original_unchanged(function: Function) -> None:
    result, reference = ([torch.zeros(1, 2), torch.ones(1, 2)] for _ in range(2))
    torch.compile(function, backend="ekiden")(*result)
    function(*reference)
    torch.testing.assert_close(result, reference)


def test_writes_into_saved_tensors_are_noticed() -> None:
    w, x = torch.ones(3, 2, requires_grad=True), torch.ones(2, 3)
    y = torch.compile(lambda x, w: x @ w, backend="ekiden")(x, w)
    x.fill_(9.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_dropout_of_zero_returns_its_input() -> None:
    layer, x = nn.Dropout(0.5).eval(), torch.ones(3)
    results = torch.compile(lambda x: (layer(x), nn.functional.dropout(x, 0.0)), backend="ekiden")(
        x
    )
    assert {result.data_ptr() for result in results} == {x.data_ptr()}


class Keeping(nn.Module):
    """A module that writes its buffer and its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.ones(3))
        self.register_buffer("c", torch.ones(3))
        self.w = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        self.get_buffer("b").add_(x)
        self.w.add_(x)
        return self.get_buffer("b").clone(), self.get_buffer("c"), x, self.w, x.view(1, 3)


@pytest.mark.parametrize("executor", ["vm", "aot", "async"])
def test_results_of_executables_have_memory_of_their_own(executor: str) -> None:
    with torch.no_grad():
        exe = ekiden.compile(Keeping(), (torch.ones(3),), executor=executor)
    x = np.ones(3, np.float32)
    for run in range(2):
        results = [result.numpy() for result in exe(x)]
        expected = [2 + run, 1, 1, 2 + run, 1]
        assert [float(result.flat[0]) for result in results] == expected
        for result in results:
            result[...] = 50
        assert x.tolist() == [1, 1, 1]


def test_unshared_results_are_not_copied() -> None:
    exe = ekiden.compile(nn.Linear(3, 4).eval(), (torch.ones(2, 3),))
    exe(np.ones((2, 3), np.float32))
    assert "own $" in exe.bytecode
