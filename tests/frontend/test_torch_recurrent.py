"""Recurrent layers of PyTorch, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden.compiler.build import import_model
from ekiden.frontend.common.options import ImportOptions
from ekiden.relay.expr import Call
from ekiden.relay.visitor import post_order

torch = pytest.importorskip("torch", reason="needs the package torch")
from ekiden.frontend.torch import backend  # noqa: E402
from long_runs import share  # noqa: E402

KINDS = ("LSTM", "GRU", "RNN")


def flat(result: object) -> list[object]:
    if isinstance(result, (tuple, list)):
        return [item for one in result for item in flat(one)]
    return [result]


def agree(module: object, args: tuple[object, ...], tolerance: float = 1e-5) -> ekiden.Executable:
    """Compile, and compare with PyTorch."""
    with torch.no_grad():
        expected = flat(module.eval()(*args))
        exe = ekiden.compile(module, args)
    actual = flat(exe(*(np.asarray(a) for a in flat(args))))
    for have, want in zip(actual, expected, strict=True):
        assert tuple(have.shape) == tuple(want.shape)
        np.testing.assert_allclose(np.asarray(have), want.numpy(), tolerance, tolerance)
    return exe


@share(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        {"bias": False, "bidirectional": True},
        {"num_layers": 2, "dropout": 0.5},
    ],
    ids=str,
)
def test_recurrent_layers_match_pytorch(kind: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    agree(getattr(torch.nn, kind)(5, 9, **options), (torch.randn(4, 3, 5),))


def test_plain_layer_of_relu() -> None:
    torch.manual_seed(1)
    agree(torch.nn.RNN(5, 9, nonlinearity="relu"), (torch.randn(4, 3, 5),))


def test_initial_states_and_unbatched_input_match_pytorch() -> None:
    torch.manual_seed(2)
    states = (torch.randn(2, 3, 9), torch.randn(2, 3, 9))
    agree(torch.nn.LSTM(5, 9, 2), (torch.randn(4, 3, 5), states))
    agree(torch.nn.GRU(5, 9), (torch.randn(4, 5),))


@pytest.mark.parametrize("kind", KINDS)
def test_doubles_stay_doubles(kind: str) -> None:
    torch.manual_seed(3)
    module = getattr(torch.nn, kind)(5, 9, bidirectional=True).double()
    agree(module, (torch.randn(4, 3, 5, dtype=torch.float64),), 1e-12)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
def test_lstm_projections_match_pytorch() -> None:
    torch.manual_seed(4)
    agree(torch.nn.LSTM(5, 9, 2, proj_size=4, bidirectional=True), (torch.randn(4, 3, 5),))


def test_halves_are_computed_as_floats() -> None:
    torch.manual_seed(5)
    agree(torch.nn.LSTM(5, 9).half(), (torch.randn(4, 3, 5).half(),), 2e-3)


def test_layer_is_one_operator_for_any_step_count() -> None:
    module = torch.nn.LSTM(5, 9).eval()
    mod = import_model(module, ImportOptions(example_inputs=(torch.randn(200, 1, 5),)))
    calls = [e for e in post_order(mod["main"], into_functions=True) if isinstance(e, Call)]
    assert [c.op.name for c in calls].count("nn.recurrent") == 1
    assert len(calls) < 30


@pytest.mark.parametrize("kind", KINDS)
def test_dynamic_batch_matches_pytorch(kind: str) -> None:
    torch.manual_seed(6)
    module = getattr(torch.nn, kind)(5, 9, batch_first=True).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exe = ekiden.compile(module, (torch.randn(4, 3, 5),), dynamic_shapes=({0: batch},))
    for size in (1, 7):
        x = torch.randn(size, 3, 5)
        with torch.no_grad():
            expected = module(x)[0].numpy()
        np.testing.assert_allclose(np.asarray(exe(x.numpy())[0]), expected, 1e-5, 1e-5)


STEPS = [
    ("LSTM", {"num_layers": 2, "bidirectional": True}),
    ("GRU", {}),
    ("LSTM", {"proj_size": 4}),
]


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported")
@pytest.mark.parametrize(("kind", "options"), STEPS, ids=str)
def test_dynamic_step_count_matches_pytorch(kind: str, options: dict[str, object]) -> None:
    torch.manual_seed(7)
    module = getattr(torch.nn, kind)(5, 9, **options).eval()
    steps = torch.export.Dim("steps", min=1, max=64)
    exe = ekiden.compile(module, (torch.randn(4, 3, 5),), dynamic_shapes=({0: steps},))
    for count in (1, 7):
        x = torch.randn(count, 3, 5)
        with torch.no_grad():
            expected = flat(module(x))
        for have, want in zip(exe(x.numpy()), expected, strict=True):
            np.testing.assert_allclose(np.asarray(have), want.numpy(), 1e-5, 1e-5)


class Tagger(torch.nn.Module):
    """A layer between two products."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.before, self.after = torch.nn.Linear(5, 5), torch.nn.Linear(9, 2)
        self.layer = getattr(torch.nn, kind)(5, 9)

    def forward(self, x: object) -> object:
        return self.after(self.layer(self.before(x))[0])


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_torch_compile_keeps_a_layer_whole_where_it_may(kind: str) -> None:
    torch.manual_seed(8)
    torch._dynamo.reset()
    module = Tagger(kind).eval()
    compiled, x = torch.compile(module, backend="ekiden"), torch.randn(4, 3, 5)
    before = dict(backend.counters)
    with torch.no_grad(), torch._dynamo.config.patch(allow_rnn=True):
        torch.testing.assert_close(compiled(x), module(x))
    assert backend.counters["compiled"] == before.get("compiled", 0) + 1
    assert backend.counters["eager"] == before.get("eager", 0)


def test_torch_compile_trains_a_layer_step_by_step() -> None:
    torch.manual_seed(9)
    torch._dynamo.reset()
    module, x = Tagger("GRU"), torch.randn(3, 2, 5)
    module(x).sum().backward()
    expected = [p.grad.clone() for p in module.parameters()]
    module.zero_grad()
    with torch._dynamo.config.patch(allow_rnn=True):
        torch.compile(module, backend="ekiden")(x).sum().backward()
    for parameter, want in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, want, rtol=1e-4, atol=1e-5)


def test_layers_that_run_eagerly_are_named(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    backend._warn_of_eager_rnn.cache_clear()
    module = Tagger("LSTM").eval()
    with torch.no_grad():
        torch.compile(module, backend="ekiden")(torch.randn(4, 3, 5))
        torch.compile(torch.nn.ReLU(), backend="ekiden")(torch.randn(4))
    assert "allow_rnn is False" in caplog.text


class Packed(torch.nn.Module):
    """A layer over sequences of lengths that are data."""

    def __init__(self, kind: str, is_sorted: bool, total: int | None) -> None:
        super().__init__()
        self.layer = getattr(torch.nn, kind)(5, 9, 2, bidirectional=True, batch_first=True)
        self.is_sorted, self.total = is_sorted, total

    def forward(self, x: object, lengths: object) -> object:
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, True, self.is_sorted)
        every, last = self.layer(packed)
        padded, count = torch.nn.utils.rnn.pad_packed_sequence(
            every, True, padding_value=-1.0, total_length=self.total
        )
        return padded, count, last


@pytest.mark.parametrize(
    ("kind", "is_sorted", "total"), [("LSTM", True, None), ("GRU", False, 6), ("RNN", True, 8)]
)
def test_packed_sequences_match_pytorch(kind: str, is_sorted: bool, total: int | None) -> None:
    torch.manual_seed(10)
    module, x = Packed(kind, is_sorted, total).eval(), torch.randn(3, 6, 5)
    exe = ekiden.compile(module, (x, torch.tensor([5, 4, 2])))
    for lengths in ([6, 6, 1], [3, 2, 2] if is_sorted else [2, 1, 4]):
        argument = torch.tensor(lengths)
        with torch.no_grad():
            expected = flat(module(x, argument))
        for have, want in zip(exe(x.numpy(), argument.numpy()), expected, strict=True):
            np.testing.assert_allclose(np.asarray(have), want.numpy(), 1e-5, 1e-5)
