"""Programs of torch.export that are imported as they are written: in-place operators, views of what
they write into, and the operators that PyTorch would take apart."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import ekiden
from ekiden import relay
from ekiden.frontend.torch import registry
from ekiden.frontend.torch.export import export_module, import_exported
from ekiden.frontend.torch.functionalization import is_directly_importable
from ekiden.relay.interpreter import Interpreter
from ekiden.runtime.errors import UnsupportedError
from long_runs import sizes

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
Function = Callable[..., object]


class Apply(nn.Module):
    """A function as a module, and layers that it may use."""

    def __init__(self, function: Function, *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, *args: torch.Tensor) -> object:
        return self.function(*self.layers, *args)


def check(module: nn.Module, *args: torch.Tensor, plain: bool = True) -> None:
    """The interpreter gives what PyTorch gives; whether the program was imported as it is."""
    module.eval()
    with torch.no_grad():
        program = export_module(module, [a.clone() for a in args])
        expected = torch.utils._pytree.tree_leaves(module(*(a.clone() for a in args)))
    assert is_directly_importable(program) is plain
    result = relay.infer_type(import_exported(program, "program").to_module())
    with np.errstate(all="ignore"):
        actual = Interpreter(result).evaluate("main", *(a.numpy() for a in args))
    many = actual if isinstance(actual, (list, tuple)) else [actual]
    for local, reference in zip(many, expected, strict=True):
        assert np.asarray(local).dtype == reference.numpy().dtype
        np.testing.assert_allclose(local, reference.numpy(), rtol=1e-5, atol=1e-5)


X = torch.linspace(-2.0, 3.0, 24).reshape(2, 3, 4)


def in_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y[:, 1].zero_()
    return y


def view_before(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    row = y[0]
    y.add_(1)
    return row + y


def view_after(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    y.add_(1)
    return y[0] + y


def read_before(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    before = y[0].exp()
    y.relu_()
    return before, y


def names(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    z = y.relu_()
    z.add_(1)
    return y, z * y


def through_identity(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    z = F.dropout(y, training=False)
    z.neg_()
    return y, z


def kept_dtype(x: torch.Tensor) -> torch.Tensor:
    y = (x * 3).to(torch.int32)
    y.add_(torch.tensor(2, dtype=torch.int64)).clamp_(-2, 4)
    return y


def widened(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    y.mul_(x[0, 0])
    return y


@pytest.mark.parametrize(
    ("function", "plain"),
    [
        (in_a_view, False), (view_before, False), (view_after, True), (read_before, True),
        (names, True), (through_identity, True), (kept_dtype, True), (widened, True),
    ],
)  # fmt: skip
def test_in_place_operators(function: Function, plain: bool) -> None:
    check(Apply(function), X, plain=plain)


def step(rng: random.Random, values: list[torch.Tensor]) -> None:
    """One call on one of the tensors so far, in place or not, of it or of a view."""
    x = rng.choice(values)
    kind = rng.randrange(8)
    if kind == 0:
        values.append(x.reshape(4, 6)[:, :3] if x.numel() == 24 else x.reshape(3, 4))
    elif kind == 1:
        values.append(x + rng.choice([1.0, 0.5]))
    elif kind == 2:
        values.append(F.dropout(x.transpose(0, 1).contiguous(), training=False))
    elif kind == 3:
        values.append(x.flatten()[:12].reshape(3, 4))
    elif kind == 4:
        values.append(x.mul_(0.5))
    elif kind == 5:
        x.relu_()
    elif kind == 6:
        values.append(F.dropout(x, training=False))
    else:
        x.add_(x.mean())


@sizes("programs", 15, 1000)
def test_random_programs_of_views_and_writes(programs: int) -> None:
    plain = 0
    for seed in range(programs):

        def run(x: torch.Tensor, seed: int = seed) -> Sequence[torch.Tensor]:
            rng, values = random.Random(seed), [x * 2]
            for _ in range(rng.randrange(2, 7)):
                step(rng, values)
            return [v.clone() for v in values]

        module = Apply(run)
        is_one = is_directly_importable(export_module(module, [X]))
        plain += is_one
        check(module, X, plain=is_one)
    assert 0.1 < plain / programs < 0.9


def test_input_that_is_written_is_refused() -> None:
    def run(x: torch.Tensor) -> torch.Tensor:
        return x.add_(1) * 2

    with pytest.raises(UnsupportedError, match="it changes its input 'args_0'"):
        ekiden.compile(Apply(run), (X.clone(),))


def test_buffers_that_change_are_changed() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.count.add_(1)
            return x + self.count

    exe = ekiden.compile(Counts().eval(), (X,))
    for run in (1, 2):
        torch.testing.assert_close(torch.from_dlpack(exe(X)), X + run)


def test_statistics_of_the_batch_are_computed_in_training() -> None:
    layer = nn.BatchNorm1d(3)
    program = torch.export.export(layer.train(), (X,))
    assert not is_directly_importable(program)


LAYERS: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "conv1d": (nn.Conv1d(4, 6, 3, padding=1, stride=2), torch.randn(2, 4, 9)),
    "conv2d": (nn.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2), torch.randn(2, 4, 9, 7)),
    "conv2d without a batch": (nn.Conv2d(4, 6, 3, bias=False), torch.randn(4, 9, 7)),
    "conv3d": (nn.Conv3d(2, 3, 2, dilation=2), torch.randn(1, 2, 5, 6, 4)),
    "conv1d turned": (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1), torch.randn(2, 4, 5)),
    "conv2d turned": (nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), torch.randn(2, 4, 5, 3)),
    "max_pool2d": (nn.MaxPool2d(3, 2, 1, ceil_mode=True), torch.randn(2, 4, 8, 7)),
    "adaptive": (nn.AdaptiveAvgPool2d((3, 2)), torch.randn(2, 4, 8, 7)),
    "batch_norm": (nn.BatchNorm2d(4), torch.randn(2, 4, 5, 5)),
    "layer_norm": (nn.LayerNorm((3, 4)), X),
    "layer_norm without weights": (nn.LayerNorm(4, elementwise_affine=False), X),
    "group_norm": (nn.GroupNorm(2, 4), torch.randn(2, 4, 5)),
    "dropout": (nn.Dropout(0.5), X),
    "glu": (nn.GLU(1), torch.randn(2, 6, 3)),
    "log_sigmoid": (nn.LogSigmoid(), X * 40),
    "encoder": (nn.TransformerEncoderLayer(4, 2, 8), X),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_import_directly(name: str) -> None:
    torch.manual_seed(0)
    module, x = LAYERS[name]
    check(module, x)


FUNCTIONS: dict[str, Function] = {
    "to": lambda x: (
        x.to(torch.int64),
        x.double(),
        x.bool(),
        x.type_as(x.int()),
        x.to("cpu"),
    ),
    "and": lambda x: ((x > 0) & (x < 2), (x > 0) | (x < -1), (x > 0) ^ (x < 1)),
    "bits": lambda x: (x.int() & 6, x.int() | 1, x.int() ^ 3),
    "extremes": lambda x: (torch.max(x, x * x), torch.min(x, -x)),
    "square": lambda x: (x.square(), x.int().square()),
    "rsub": lambda x: (1 - x, torch.rsub(x, x * x)),
    "rsub by alpha": lambda x: torch.rsub(x, 2.0, alpha=3),
    "norm": lambda x: (torch.linalg.vector_norm(x), F.normalize(x, dim=1), x.norm(dim=(0, 2))),
    "norms of other orders": lambda x: torch.linalg.vector_norm(x, ord=1, dim=1),
    "pad": lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 2, 3, 0), value=2.0)),
    "borders": lambda x: (F.pad(x, (1, 2), "reflect"), F.pad(x, (1, 2), "replicate")),
    "around": lambda x: F.pad(x, (1, 2), "circular"),
    "expand": lambda x: (x[:1].expand_as(x), x.reshape_as(x.flatten()), x[0, 0].view_as(x[0, 1])),
    "unbind": lambda x: x.unbind(-1),
    "chunk": lambda x: (*x.chunk(3, -1), *x.chunk(2, 1)),
    "tile": lambda x: (x.tile(2), x.tile(2, 1, 1, 3)),
    "repeats": lambda x: (x.repeat_interleave(2, dim=1), x.repeat_interleave(3)),
    "diff": lambda x: (x.diff(), x.diff(dim=0)),
    "second diff": lambda x: x.diff(n=2),
    "unique": torch.unique,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_composite_operators_import_directly(name: str) -> None:
    check(Apply(FUNCTIONS[name]), X)


def test_dynamic_sizes_import_directly() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv1d(3, 4, 3, padding=1), nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = F.relu(self.norm(self.conv(x)), inplace=True)
            y += F.pad(x, (0, 0, 0, 1))
            return torch.cat(y.chunk(2, 1), -1).diff()

    module, n = Block().eval(), torch.export.Dim("n", min=2, max=64)
    exe = ekiden.compile(module, (torch.randn(2, 3, 8),), dynamic_shapes=({2: n},))
    for size in (8, 5, 2):
        x = torch.randn(2, 3, size)
        with torch.no_grad():
            torch.testing.assert_close(torch.from_dlpack(exe(x)), module(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["aten::layer_norm", "aten::layer_norm.default", "aten::conv1d"])
@pytest.mark.parametrize("plain", [True, False])
def test_registered_composite_converter_is_used(
    name: str, plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the name of all overloads too, of which the table has one; however a program comes."""
    monkeypatch.setattr(registry, "CONVERTER_TABLE", dict(registry.CONVERTER_TABLE))
    monkeypatch.setattr(registry, "COMPOSITE_KEYS", set(registry.COMPOSITE_KEYS))
    registry.register(name)(
        lambda node, x, *_, **__: relay.full(relay.const(7.0), node.out_shape, dtype="float32")
    )
    with pytest.raises(ValueError, match="it is there"):
        registry.register(name)(lambda node, x: relay.const(7.0))

    def run(x: torch.Tensor) -> torch.Tensor:
        output = F.conv1d(x, x[:, :, :1]) if "conv1d" in name else F.layer_norm(x, (4,))
        y = x + 1
        if not plain:
            y[0].zero_()
        return output + y

    program = export_module(Apply(run), [torch.ones(3, 3, 4)])
    assert is_directly_importable(program) is plain
    output = relay.infer_type(import_exported(program, "program").to_module())
    result = np.asarray(Interpreter(output).evaluate("main", np.ones((3, 3, 4), "f")))
    assert result[1, 0, 0] == 9
