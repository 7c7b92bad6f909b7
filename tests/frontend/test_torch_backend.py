"""torch.compile(backend="ekiden"): graphs for inference and training, sizes, breaks, fallbacks."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch import nn

from ekiden import relay
from ekiden.frontend.torch import backend

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch warns of its own deprecations


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """Nothing that PyTorch compiled before, and nothing counted."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    backend.counters.clear()
    yield
    torch._dynamo.reset()


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.inner(x)
        assert isinstance(found, torch.Tensor)
        return found.softmax(-1)


def test_the_backend_is_found_by_its_name() -> None:
    assert "ekiden" in torch._dynamo.list_backends(exclude_tags=())
    model, x = Small().eval(), torch.randn(4, 6)
    with torch.no_grad():
        found = torch.compile(model, backend="ekiden")(x)
        torch.testing.assert_close(found, model(x))
    assert backend.counters == {"compiled": 1}


def test_dynamic_sizes_compile_once() -> None:
    model = Small().eval()
    compiled = torch.compile(model, backend="ekiden", dynamic=True)
    with torch.no_grad():
        for shape in ((2, 6), (5, 6), (3, 4, 6)[1:], (17, 6)):
            x = torch.randn(*shape)
            torch.testing.assert_close(compiled(x), model(x))
    assert backend.counters == {"compiled": 1}


def test_sizes_that_are_arguments() -> None:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        return x[:, :n] * n

    compiled = torch.compile(function, backend="ekiden", dynamic=True)
    x = torch.randn(3, 9)
    for n in (2, 4, 7):
        torch.testing.assert_close(compiled(x, n), function(x, n))
    assert backend.counters["eager"] == 0


def test_weights_that_change_are_seen() -> None:
    model, x = Small().eval(), torch.randn(4, 6)
    compiled = torch.compile(model, backend="ekiden")
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        for parameter in model.parameters():
            parameter.mul_(1.5)
        torch.testing.assert_close(compiled(x), model(x))
        for parameter in model.parameters():
            parameter.add_(0.25)
        torch.testing.assert_close(compiled(x), model(x))
    assert backend.counters == {"compiled": 1, "thawed": 1}


def test_training_by_two_graphs() -> None:
    ours, theirs, x = Small(), Small(), torch.randn(4, 6)
    theirs.load_state_dict(ours.state_dict())
    compiled = torch.compile(ours, backend="ekiden")
    for model in (compiled, theirs):
        (model(x) ** 2).sum().backward()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert backend.counters == {"compiled": 2}


def test_graph_breaks_work() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.relu() * 2
        torch._dynamo.graph_break()
        return y.sum() + 1

    compiled = torch.compile(function, backend="ekiden")
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), function(x))
    assert backend.counters == {"compiled": 2}


def test_buffers_that_change() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen += 1
            return x * self.seen

    model = Counting()
    compiled = torch.compile(model, backend="ekiden")
    with torch.no_grad():
        for turn in range(1, 4):
            torch.testing.assert_close(compiled(torch.ones(2)), torch.full((2,), float(turn)))
    assert backend.counters["eager"] == 0


def test_what_cannot_be_imported_runs_eagerly_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.ldl_factor(x @ x.T)[0] + 1

    compiled, x = torch.compile(function, backend="ekiden"), torch.randn(3, 3)
    with caplog.at_level(logging.WARNING, "ekiden.torch"):
        torch.testing.assert_close(compiled(x), function(x))
    assert backend.counters == {"eager": 1}
    (record,) = [r for r in caplog.records if r.name == "ekiden.torch"]
    message = record.getMessage()
    assert "runs eagerly" in message and "linalg_ldl_factor" in message
    assert "test_torch_backend.py:" in message and "torch.linalg.ldl_factor(x @ x.T)" in message


def test_layouts_and_views_of_arguments() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1).contiguous() + 1

    compiled = torch.compile(function, backend="ekiden")
    x = torch.randn(4, 6).t()
    torch.testing.assert_close(compiled(x), function(x))
    torch.testing.assert_close(compiled(x[::2]), function(x[::2]))


def test_options_are_refused() -> None:
    compiled = torch.compile(lambda x: x + 1, backend="ekiden", options={"speed": 9})
    with pytest.raises(Exception, match="takes no options"):
        compiled(torch.ones(2))
    # from here on PyTorch evaluates each frame of Python, which then takes room on the stack of C
    body: relay.Expr = relay.var("x", "float32")
    for _ in range(20_000):
        body = relay.exp(body)
    relay.ExprVisitor().visit(body)


def test_random_numbers_are_pytorchs_own() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.randperm(x.shape[0])
        return torch.rand(x.shape) * x, torch.randn_like(x.sin()) + x, order, torch.randint(9, (4,))

    compiled = torch.compile(function, backend="ekiden", dynamic=True)
    with torch.no_grad():
        for count in (5, 3, 8):
            x = torch.randn(count, 4)
            torch.manual_seed(count)
            wanted = function(x)
            torch.manual_seed(count)
            found = compiled(x)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            assert not torch.equal(compiled(x)[0], found[0])
    assert backend.counters == {"compiled": 1}


def test_dropout_in_training() -> None:
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.25), nn.ReLU())
    compiled = torch.compile(model, backend="ekiden")
    x = torch.ones(128, 6)
    found = compiled(x)
    found.sum().backward()
    kept = found[:, model(x).mean(0) > 0] > 0
    assert 0.7 < kept.float().mean() < 0.8
    assert model[0].weight.grad is not None
    assert torch.isfinite(model[0].weight.grad).all()
    assert backend.counters == {"compiled": 2}


def test_numbers_whose_chances_are_data_are_named(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x.softmax(-1), 2)

    with torch.no_grad(), caplog.at_level(logging.WARNING, "ekiden.torch"):
        found = torch.compile(function, backend="ekiden")(torch.randn(3, 5))
    assert found.shape == (3, 2)
    assert "aten.multinomial.default" in caplog.text
