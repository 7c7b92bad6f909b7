"""Recurrent layers of PyTorch, against PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import ekiden
from ekiden.driver.build import import_model
from ekiden.frontend.common.options import ImportOptions
from ekiden.relay.expr import Call
from ekiden.relay.visitor import post_order

torch = pytest.importorskip("torch", reason="needs the package torch")

KINDS = ("LSTM", "GRU", "RNN")


def flat(found: object) -> list[object]:
    if isinstance(found, (tuple, list)):
        return [each for one in found for each in flat(one)]
    return [found]


def agree(module: object, args: tuple[object, ...], tolerance: float = 1e-5) -> ekiden.Executable:
    """Compile, and compare with PyTorch."""
    with torch.no_grad():
        wanted = flat(module.eval()(*args))
        exe = ekiden.compile(module, args)
    found = flat(exe(*(np.asarray(a) for a in flat(args))))
    for have, want in zip(found, wanted, strict=True):
        assert tuple(have.shape) == tuple(want.shape)
        np.testing.assert_allclose(np.asarray(have), want.numpy(), tolerance, tolerance)
    return exe


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
def test_layers_are_those_of_pytorch(kind: str, options: dict[str, object]) -> None:
    torch.manual_seed(0)
    agree(getattr(torch.nn, kind)(5, 9, **options), (torch.randn(4, 3, 5),))


def test_a_plain_layer_of_relu() -> None:
    torch.manual_seed(1)
    agree(torch.nn.RNN(5, 9, nonlinearity="relu"), (torch.randn(4, 3, 5),))


def test_states_to_begin_with_and_no_batch() -> None:
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
def test_projections() -> None:
    torch.manual_seed(4)
    agree(torch.nn.LSTM(5, 9, 2, proj_size=4, bidirectional=True), (torch.randn(4, 3, 5),))


def test_halves_are_computed_as_floats() -> None:
    torch.manual_seed(5)
    agree(torch.nn.LSTM(5, 9).half(), (torch.randn(4, 3, 5).half(),), 2e-3)


def test_a_layer_is_one_operator_however_many_steps_there_are() -> None:
    module = torch.nn.LSTM(5, 9).eval()
    mod = import_model(module, ImportOptions(example_inputs=(torch.randn(200, 1, 5),)))
    calls = [e for e in post_order(mod["main"], into_functions=True) if isinstance(e, Call)]
    assert [c.op.name for c in calls].count("nn.recurrent") == 1
    assert len(calls) < 30


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_a_number(kind: str) -> None:
    torch.manual_seed(6)
    module = getattr(torch.nn, kind)(5, 9, batch_first=True).eval()
    batch = torch.export.Dim("batch", min=1, max=64)
    exe = ekiden.compile(module, (torch.randn(4, 3, 5),), dynamic_shapes=({0: batch},))
    for size in (1, 7):
        x = torch.randn(size, 3, 5)
        with torch.no_grad():
            wanted = module(x)[0].numpy()
        np.testing.assert_allclose(np.asarray(exe(x.numpy())[0]), wanted, 1e-5, 1e-5)
