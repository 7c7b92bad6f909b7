"""torch.compile(backend="ekiden"): graphs for inference and training, sizes, breaks, fallbacks."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from ekiden import relay
from ekiden.frontend.torch import backend
from long_runs import LONG, alike, sizes

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
        result = self.inner(x)
        assert isinstance(result, torch.Tensor)
        return result.softmax(-1)


def test_backend_is_found_by_its_name() -> None:
    assert "ekiden" in torch._dynamo.list_backends(exclude_tags=())
    model, x = Small().eval(), torch.randn(4, 6)
    with torch.no_grad():
        result = torch.compile(model, backend="ekiden")(x)
        torch.testing.assert_close(result, model(x))
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


def test_sizes_with_roots_and_rounding_match_eager() -> None:
    """The grid of a transformer of images is the root of how many patches there are."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        edge = int(x.shape[0] ** 0.5)
        half = math.ceil(edge / 2) + round(x.shape[0] / 8) + int(math.sqrt(x.shape[0]))
        return x[: edge * edge].reshape(edge, edge), half

    compiled = torch.compile(function, backend="ekiden", dynamic=True)
    for count in (49, 50, 63, 144, 10_000):
        x = torch.arange(count) * 1.0
        torch.testing.assert_close(compiled(x), function(x))
    assert backend.counters == {"compiled": 1}


def test_equal_sizes_known_to_pytorch_are_used() -> None:
    """Systems of chunks, as gated delta networks solve them."""

    def function(x: torch.Tensor) -> torch.Tensor:
        whole = F.pad(x, (0, 0, 0, (4 - x.shape[0] % 4) % 4))
        chunks = whole.shape[0] // 4
        sides = whole.reshape(chunks, -1, 3)
        lower = (LOWER * sides.shape[0]).expand(chunks, 4, 4)
        return torch.linalg.solve_triangular(lower, sides, upper=False)

    compiled = torch.compile(function, backend="ekiden", dynamic=True)
    for count in (8, 15, 33):
        x = torch.randn(count, 3)
        torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    assert backend.counters == {"compiled": 1}


def test_changed_weights_trigger_recompilation() -> None:
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


def test_training_compiles_forward_and_backward_graphs() -> None:
    result, reference, x = Small(), Small(), torch.randn(4, 6)
    reference.load_state_dict(result.state_dict())
    compiled = torch.compile(result, backend="ekiden")
    for model in (compiled, reference):
        (model(x) ** 2).sum().backward()
    for a, b in zip(result.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)
    assert backend.counters == {"compiled": 2}


LOWER = torch.randn(4, 4) + 5 * torch.eye(4)
WEIGHTS = [
    nn.Parameter(torch.randn(*shape))
    for shape in ((8, 1, 3, 3), (4, 3, 3, 2), (6, 4, 3), (3, 4, 3, 3, 3))
]
Layers = list[Callable[[torch.Tensor], torch.Tensor]]
CONVOLUTIONS: Layers = [
    lambda x: F.conv2d(x, WEIGHTS[0], stride=2, padding=1, groups=4),
    lambda x: F.conv_transpose2d(x, WEIGHTS[1], stride=2, padding=1, output_padding=1, groups=2),
    lambda x: F.conv1d(x[:, :, 0], WEIGHTS[2], stride=2, dilation=2),
    lambda x: F.conv3d(x.unsqueeze(-1), WEIGHTS[3], padding=1),
]
OTHERS: Layers = [
    lambda x: F.avg_pool2d(x, 3, stride=2, padding=1, ceil_mode=True, count_include_pad=False),
    lambda x: F.interpolate(x, size=(5, 9), mode="nearest-exact"),
    lambda x: F.adaptive_avg_pool2d(x, (3, 4)),
    lambda x: F.max_pool3d(x, 2),
    lambda x: F.interpolate(x, size=(3, 12), mode="bilinear", antialias=True),
    lambda x: F.pad(x, (1, 2, 0, 3), mode="replicate"),
    lambda x: F.grid_sample(x, x[:, :2].permute(0, 2, 3, 1).tanh(), align_corners=False),
    lambda x: F.grid_sample(
        x.unsqueeze(2), x[:, None, :3].permute(0, 1, 3, 4, 2).tanh(), align_corners=True
    ),
]


@alike(4)
@pytest.mark.parametrize(
    ("layers", "shapes"),
    [
        (CONVOLUTIONS[:2], ((2, 4, 8, 7), (3, 4, 9, 10))),
        pytest.param(CONVOLUTIONS[2:], ((2, 4, 8, 7), (3, 4, 9, 10)), marks=LONG),
        (OTHERS[:2], ((2, 4, 8, 7),)),
        pytest.param(OTHERS[2:], ((2, 4, 8, 7),), marks=LONG),
    ],
)
def test_gradients_of_layers(
    layers: Layers, shapes: tuple[tuple[int, ...], ...], caplog: pytest.LogCaptureFixture
) -> None:
    """Both graphs are compiled once, whatever the sizes."""

    def all_of(x: torch.Tensor) -> list[torch.Tensor]:
        return [layer(x) for layer in layers]

    def gradients(call: Callable[..., list[torch.Tensor]], x: torch.Tensor) -> list[torch.Tensor]:
        x = x.clone().requires_grad_()
        total = sum((o * o).sum() for o in call(x))
        result = torch.autograd.grad(total, [x, *WEIGHTS], allow_unused=True)
        return [item for item in result if item is not None]

    compiled = torch.compile(all_of, backend="ekiden", dynamic=True)
    for shape in shapes:
        x = torch.randn(*shape)
        torch.testing.assert_close(
            gradients(compiled, x), gradients(all_of, x), rtol=1e-4, atol=1e-4
        )
    assert backend.counters == {"compiled": 2}, caplog.text


@sizes("size", 8, 256)
def test_flex_attention_matches_eager(size: int) -> None:
    """Blocks of queries and keys, heads that share keys, a query that sees none."""
    slopes = torch.randn(4)

    def change(score: torch.Tensor, b: int, h: int, i: int, j: int) -> torch.Tensor:
        return score - abs(i - j) * slopes[h]

    def is_seen(b: int, h: int, i: int, j: int) -> torch.Tensor:
        return (i >= j) & (j > 0)

    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        mask = create_block_mask(is_seen, None, None, size, size, device="cpu")
        result = flex_attention(q, k, k, score_mod=change, block_mask=mask, enable_gqa=True)
        assert isinstance(result, torch.Tensor)
        return result + flex_attention(q, q, q)

    q, k = torch.randn(2, 4, size, 16), torch.randn(2, 2, size, 16)
    with torch.no_grad():
        result = torch.compile(function, backend="ekiden")(q, k)
        torch.testing.assert_close(result, function(q, k), rtol=1e-4, atol=1e-4)
    assert not backend.counters["eager"]


def test_grouped_query_attention_matches_eager() -> None:
    """As Llama's have it: PyTorch traces attention whole, without repeating the keys."""
    q, k = torch.randn(1, 4, 6, 8), torch.randn(1, 2, 6, 8)

    def function(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        attention = nn.functional.scaled_dot_product_attention
        return attention(q, k, k.sin(), is_causal=True, enable_gqa=True)

    with torch.no_grad():
        result = torch.compile(function, backend="ekiden")(q, k)
        torch.testing.assert_close(result, function(q, k), rtol=1e-5, atol=1e-6)
    assert not backend.counters["eager"]


def test_complex_numbers_come_and_go() -> None:
    class Turning(nn.Module):
        """Positions turned, as Llama's own program has it."""

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("turns", torch.polar(torch.ones(9, 3), torch.randn(9, 3)))

        def forward(self, x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            pairs = torch.view_as_complex(x.reshape(-1, 3, 2)) * self.turns[: x.shape[0]]
            return torch.view_as_real(pairs).flatten(1), pairs * z.conj()

    model = Turning()
    compiled = torch.compile(model, backend="ekiden", dynamic=True)
    with torch.no_grad():
        for count in (9, 4):
            x, z = torch.randn(count, 6), torch.randn(count, 3, dtype=torch.complex64)
            torch.testing.assert_close(compiled(x, z), model(x, z))
            torch.testing.assert_close(compiled(x, z.conj()), model(x, z.conj()))
    assert not backend.counters["eager"]


def test_graph_breaks_are_supported() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.relu() * 2
        torch._dynamo.graph_break()
        return y.sum() + 1

    compiled = torch.compile(function, backend="ekiden")
    x = torch.randn(5)
    torch.testing.assert_close(compiled(x), function(x))
    assert backend.counters == {"compiled": 2}


def test_mutated_buffers_match_eager() -> None:
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


def test_random_numbers_equal_pytorch() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        order = torch.randperm(x.shape[0])
        return torch.rand(x.shape) * x, torch.randn_like(x.sin()) + x, order, torch.randint(9, (4,))

    compiled = torch.compile(function, backend="ekiden", dynamic=True)
    with torch.no_grad():
        for count in (5, 3, 8):
            x = torch.randn(count, 4)
            torch.manual_seed(count)
            expected = function(x)
            torch.manual_seed(count)
            actual = compiled(x)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0)
            assert not torch.equal(compiled(x)[0], actual[0])
    assert backend.counters == {"compiled": 1}


def test_bernoulli_with_scalar_probability_is_drawn_by_pytorch() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:  # a path that is dropped, as in timm
        return x * x.new_empty((x.shape[0], 1)).bernoulli_(0.5)

    compiled, x = torch.compile(function, backend="ekiden"), torch.ones(64, 2)
    torch.manual_seed(3)
    expected = function(x)
    torch.manual_seed(3)
    torch.testing.assert_close(compiled(x), expected, rtol=0, atol=0)
    assert backend.counters == {"compiled": 1}


def test_dropout_in_training() -> None:
    model = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.25), nn.ReLU())
    compiled = torch.compile(model, backend="ekiden")
    x = torch.ones(128, 6)
    result = compiled(x)
    result.sum().backward()
    kept = result[:, model(x).mean(0) > 0] > 0
    assert 0.7 < kept.float().mean() < 0.8
    assert model[0].weight.grad is not None
    assert torch.isfinite(model[0].weight.grad).all()
    assert backend.counters == {"compiled": 2}


def test_data_dependent_random_draws_are_named(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.multinomial(x.softmax(-1), 2)

    with torch.no_grad(), caplog.at_level(logging.WARNING, "ekiden.torch"):
        result = torch.compile(function, backend="ekiden")(torch.randn(3, 5))
    assert result.shape == (3, 2)
    assert "aten.multinomial.default" in caplog.text


@alike(4)
@pytest.mark.parametrize(
    ("labels", "lengths", "options"),
    [
        ([[1, 1, 3, 5], [2, 4, 1, 2], [5, 5, 5, 5]], ([9, 7, 3], [4, 3, 4]),
         {"reduction": "none", "zero_infinity": True}),
        ([[1, 1, 3], [2, 4, 1], [5, 5, 5]], ([9, 7, 6], [3, 0, 3]), {"reduction": "mean"}),
        ([1, 1, 3, 5, 2, 4, 5], ([9, 7, 6], [4, 2, 1]), {"reduction": "sum"}),
        ([[1, 1, 3, 5], [2, 4, 1, 2], [5, 5, 5, 5]], ([9, 7, 3], [4, 3, 4]),
         {"reduction": "none"}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_data", [False, True])
def test_ctc_loss_gradient_matches_eager(
    labels: list[object], lengths: tuple[list[int], list[int]], options: object, is_data: bool
) -> None:
    """Equal neighbours, targets that are empty, too long for their input (NaN, or 0 where it is
    asked for), one after the other; in double precision."""
    targets = torch.tensor(labels)
    inputs = [torch.tensor(n) if is_data else n for n in lengths]
    x = torch.randn(9, 3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    x.requires_grad_()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return F.ctc_loss(x.log_softmax(2), targets, *inputs, **options)

    expected, actual = loss(x), torch.compile(loss, backend="ekiden")(x)
    torch.testing.assert_close(actual, expected)
    grads = [torch.autograd.grad(result.sum(), x)[0] for result in (actual, expected)]
    torch.testing.assert_close(*grads, equal_nan=True, rtol=1e-10, atol=1e-12)
    assert not backend.counters["eager"], "both graphs are compiled"
