"""Networks as people write them in PyTorch, with seeded weights, and their exports: small enough
for tests by default, at the size of the published ones where `full` is set.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F

Dims = dict[int, Any]
Arguments = tuple[Tensor, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A network and what it is tried on.

    make: size of each dimension that varies -> arguments. sizes: those of the export, then three
    more. dynamic: for each argument, its axes that vary.
    """

    network: nn.Module
    make: Callable[..., Arguments]
    sizes: tuple[tuple[int, ...], ...]
    dynamic: tuple[Dims | None, ...]

    def arguments(self, at: int) -> Arguments:
        """The arguments at one of the sizes."""
        torch.manual_seed(at)
        return self.make(*self.sizes[at])


def export(example: Example) -> onnx.ModelProto:
    """The model that torch.onnx makes of it."""
    arguments = example.arguments(0)
    program = torch.onnx.export(
        example.network.eval(),
        arguments,
        input_names=[f"x{i}" for i in range(len(arguments))],
        dynamo=True,
        verbose=False,
        dynamic_shapes=example.dynamic,
    )
    assert program is not None
    return program.model_proto


# A decoder as GPT-2: learned positions, normalisation before, caches of keys and values.


class CausalAttention(nn.Module):
    """Attention of new positions to the cached ones and to those of themselves that went before."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.outputs = nn.Linear(width, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = x.shape
        q, k, v = self.inputs(x).split(width, dim=2)
        q, k, v = (
            t.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for t in (q, k, v)
        )
        past = keys.shape[2]
        k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        at = torch.arange(past, past + length).unsqueeze(1)
        mask = torch.arange(past + length).unsqueeze(0) <= at
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.outputs(y.transpose(1, 2).reshape(batch, length, width)), k, v


class DecoderBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(width), CausalAttention(width, heads)
        self.between, self.up = nn.LayerNorm(width), nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, k, v = self.attention(self.before(x), keys, values)
        x = x + y
        return x + self.down(F.gelu(self.up(self.between(x)), approximate="tanh")), k, v


class Decoder(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int, positions: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(DecoderBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, cache: Tensor) -> tuple[Tensor, Tensor]:
        """cache: [layers, 2, batch, heads, past, head's width]; the logits, and the new cache."""
        past = cache.shape[4]
        at = torch.arange(past, past + tokens.shape[1])
        x, caches = self.words(tokens) + self.positions(at), []
        for block, held in zip(self.blocks, cache, strict=True):
            x, k, v = block(x, held[0], held[1])
            caches.append(torch.stack([k, v]))
        return self.norm(x) @ self.words.weight.T, torch.stack(caches)


def gpt2(full: bool = False) -> Example:
    """Batch, past length and new length vary."""
    words, width, heads, layers = (50257, 768, 12, 12) if full else (101, 32, 4, 2)
    torch.manual_seed(0)
    network = Decoder(words, width, heads, layers, 1024 if full else 64)

    def make(batch: int, past: int, length: int) -> Arguments:
        cache = torch.randn(layers, 2, batch, heads, past, width // heads)
        return torch.randint(0, words, (batch, length)), cache

    batch, past, length = Dim("batch"), Dim("past"), Dim("length")
    return Example(
        network,
        make,
        ((2, 5, 3), (1, 0, 7), (3, 9, 1), (2, 17, 4)),
        ({0: batch, 1: length}, {2: batch, 4: past}),
    )


# An encoder and a decoder as T5: positions only as a bias of the scores, RMS normalisation.


class RmsNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6)).to(x.dtype)


def relative_bucket(distance: Tensor, both: bool, buckets: int = 32, limit: int = 128) -> Tensor:
    """T5's buckets of relative positions: exact near, logarithmic far."""
    result = torch.zeros_like(distance)
    if both:
        buckets //= 2
        result = result + (distance > 0).to(torch.long) * buckets
        distance = distance.abs()
    else:
        distance = -torch.min(distance, torch.zeros_like(distance))
    exact = buckets // 2
    far = exact + (
        torch.log(distance.float() / exact) / math.log(limit / exact) * (buckets - exact)
    ).to(torch.long)
    far = torch.min(far, torch.full_like(far, buckets - 1))
    return result + torch.where(distance < exact, distance, far)


class T5Attention(nn.Module):
    def __init__(self, width: int, heads: int, biased: bool, both: bool) -> None:
        super().__init__()
        self.heads, self.both = heads, both
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.bias = nn.Embedding(32, heads) if biased else None

    def position_bias(self, queries: int, keys: int) -> Tensor:
        assert self.bias is not None
        distance = torch.arange(keys)[None, :] - torch.arange(queries)[:, None]
        return self.bias(relative_bucket(distance, self.both)).permute(2, 0, 1).unsqueeze(0)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor) -> Tensor:
        def heads(t: Tensor) -> Tensor:
            return t.view(t.shape[0], -1, self.heads, t.shape[2] // self.heads).transpose(1, 2)

        q, k, v = heads(self.q(x)), heads(self.k(memory)), heads(self.v(memory))
        weights = F.softmax((q @ k.transpose(2, 3) + bias).float(), dim=-1).type_as(q)
        return self.o((weights @ v).transpose(1, 2).contiguous().view(x.shape))


class T5Layer(nn.Module):
    def __init__(self, width: int, heads: int, biased: bool, decodes: bool) -> None:
        super().__init__()
        self.own = T5Attention(width, heads, biased, not decodes)
        self.cross = T5Attention(width, heads, False, True) if decodes else None
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(3 if decodes else 2))
        self.gate, self.up, self.down = (
            nn.Linear(a, b, bias=False)
            for a, b in ((width, 2 * width), (width, 2 * width), (2 * width, width))
        )

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.own(y, y, bias)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), memory, padding)
        y = self.norms[-1](x)
        return x + self.down(F.gelu(self.gate(y), approximate="tanh") * self.up(y))


class T5(nn.Module):
    def __init__(self, words: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.encoder = nn.ModuleList(T5Layer(width, heads, i == 0, False) for i in range(layers))
        self.decoder = nn.ModuleList(T5Layer(width, heads, i == 0, True) for i in range(layers))
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(2))
        self.width = width

    def forward(self, source: Tensor, attended: Tensor, target: Tensor) -> Tensor:
        """source, attended (its mask): [batch, source]; target: [batch, target]; the logits."""
        padding = (1.0 - attended[:, None, None, :].float()) * torch.finfo(torch.float32).min
        x = self.words(source)
        first = self.encoder[0].own
        bias = first.position_bias(source.shape[1], source.shape[1]) + padding
        for layer in self.encoder:
            x = layer(x, bias, x, padding)
        memory, length = self.norms[0](x), target.shape[1]
        causal = torch.triu(torch.full((length, length), -1e9), diagonal=1)
        bias = self.decoder[0].own.position_bias(length, length) + causal
        y = self.words(target)
        for layer in self.decoder:
            y = layer(y, bias, memory, padding)
        return (self.norms[1](y) * self.width**-0.5) @ self.words.weight.T


def t5(full: bool = False) -> Example:
    """Batch and both lengths vary."""
    words, width, heads, layers = (32128, 512, 8, 6) if full else (97, 32, 4, 1)
    torch.manual_seed(0)
    network = T5(words, width, heads, layers)

    def make(batch: int, source: int, target: int) -> Arguments:
        lengths = torch.arange(batch) % 3
        attended = (torch.arange(source)[None, :] < source - lengths[:, None]).to(torch.long)
        drawn = [torch.randint(0, words, (batch, n)) for n in (source, target)]
        return drawn[0], attended, drawn[1]

    batch, source, target = Dim("batch"), Dim("source"), Dim("target")
    return Example(
        network,
        make,
        ((2, 9, 5), (1, 6, 3), (3, 40, 17), (2, 4, 21)),
        ({0: batch, 1: source}, {0: batch, 1: source}, {0: batch, 1: target}),
    )


# Images.


class Vit(nn.Module):
    """A vision transformer; its positions are resized to the image, as DINO and others do."""

    def __init__(self, width: int, heads: int, layers: int, patch: int, grid: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, width, grid, grid) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: Tensor) -> Tensor:
        x = self.patches(image)
        at = F.interpolate(self.positions, size=x.shape[2:], mode="bilinear", align_corners=False)
        x = (x + at).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], dim=1)
        return self.head(self.norm(self.layers(x))[:, 0])


def vit(full: bool = False) -> Example:
    """Batch, height and width vary."""
    torch.manual_seed(0)
    patch = 16 if full else 4
    network = Vit(768, 12, 12, 16, 14) if full else Vit(32, 4, 2, 4, 6)

    def make(batch: int, rows: int, columns: int) -> Arguments:
        return (torch.randn(batch, 3, rows * patch, columns * patch),)

    rows, columns = Dim("rows"), Dim("columns")
    return Example(
        network,
        make,
        ((2, 6, 5), (1, 4, 4), (3, 7, 9), (2, 6, 6)),
        ({0: Dim("batch"), 2: patch * rows, 3: patch * columns},),
    )


class Residual(nn.Module):
    """A block of a diffusion network: group normalisation, SiLU, the time added."""

    def __init__(self, inputs: int, outputs: int, time: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(4, c) for c in (inputs, outputs))
        self.convs = nn.ModuleList(nn.Conv2d(c, outputs, 3, padding=1) for c in (inputs, outputs))
        self.time, self.skip = nn.Linear(time, outputs), nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.convs[0](F.silu(self.norms[0](x))) + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.convs[1](F.silu(self.norms[1](y)))


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, time = width, 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width, time), Residual(width, 2 * width, time)])
        self.lower = nn.ModuleList(nn.Conv2d(c, c, 3, 2, 1) for c in (width, 2 * width))
        self.middle = Residual(2 * width, 2 * width, time)
        self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
        self.up = nn.ModuleList(
            [Residual(4 * width, width, time), Residual(2 * width, width, time)]
        )
        self.raise_ = nn.ConvTranspose2d(width, width, 4, 2, 1)
        self.last = nn.Sequential(nn.GroupNorm(4, width), nn.SiLU(), nn.Conv2d(width, 3, 1))

    def forward(self, x: Tensor, step: Tensor) -> Tensor:
        half = self.width // 2
        rates = torch.exp(torch.arange(half) * (-math.log(10000) / half))
        angles = step[:, None].float() * rates[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], dim=1))
        x, held = self.first(x), []
        for block, lower in zip(self.down, self.lower, strict=True):
            x = block(x, time)
            held.append(x)
            x = lower(x)
        x = self.middle(x, time)
        batch, channels, rows, columns = x.shape
        y = x.flatten(2).transpose(1, 2)
        y = self.attention(y, y, y, need_weights=False)[0]
        x = x + y.transpose(1, 2).reshape(batch, channels, rows, columns)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        x = self.up[0](torch.cat([x, held[1]], dim=1), time)
        x = self.up[1](torch.cat([self.raise_(x), held[0]], dim=1), time)
        return self.last(x)


def unet(full: bool = False) -> Example:
    """Batch, height and width vary."""
    torch.manual_seed(0)

    def make(batch: int, rows: int, columns: int) -> Arguments:
        return torch.randn(batch, 3, 4 * rows, 4 * columns), torch.randint(0, 1000, (batch,))

    rows, columns, batch = Dim("rows"), Dim("columns"), Dim("batch")
    return Example(
        UNet(128 if full else 8),
        make,
        ((2, 4, 3), (1, 2, 2), (3, 5, 4), (1, 8, 8)),
        ({0: batch, 2: 4 * rows, 3: 4 * columns}, {0: batch}),
    )


# Recurrence.


class LstmModel(nn.Module):
    """Logits of each next word, and the state to go on from."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.outputs = nn.Linear(width, words)

    def forward(self, tokens: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y, (h, c) = self.lstm(self.words(tokens), (h, c))
        return self.outputs(y), h, c


def lstm(full: bool = False) -> Example:
    """Batch and length vary."""
    words, width = (10000, 650) if full else (53, 16)
    torch.manual_seed(0)

    def make(batch: int, length: int) -> Arguments:
        state = (2, batch, width)
        return torch.randint(0, words, (batch, length)), torch.randn(state), torch.randn(state)

    length, batch = Dim("length"), Dim("batch")
    return Example(
        LstmModel(words, width),
        make,
        ((2, 5), (1, 1), (3, 12), (2, 20)),
        ({0: batch, 1: length}, {1: batch}, {1: batch}),
    )


class SelectiveScan(nn.Module):
    """A block as Mamba's: a causal convolution by channel, then a state whose decay, input and
    output depend on the data.
    """

    def __init__(self, width: int, state: int, how: str) -> None:
        super().__init__()
        self.how, self.state, inner = how, state, 2 * width
        self.inputs = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.select = nn.Linear(inner, inner + 2 * state, bias=False)
        self.decay = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        self.outputs = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.skip.shape[0]
        u, gate = self.inputs(x).chunk(2, dim=2)
        u = F.silu(self.conv(u.transpose(1, 2))[:, :, : x.shape[1]].transpose(1, 2))
        step, b, c = self.select(u).split([inner, self.state, self.state], dim=2)
        step = F.softplus(step)
        decay = torch.exp(step.unsqueeze(3) * -torch.exp(self.decay))
        drive = (step * u).unsqueeze(3) * b.unsqueeze(2)
        start = torch.zeros(x.shape[0], inner, self.state)
        y = self.scan(start, decay.transpose(0, 1), drive.transpose(0, 1), c.transpose(0, 1))
        return self.outputs((y.transpose(0, 1) + u * self.skip) * F.silu(gate))

    def scan(self, state: Tensor, decay: Tensor, drive: Tensor, c: Tensor) -> Tensor:
        """Time is the first axis of all but the state; so it is of the result."""

        def step(state: Tensor, at: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            state = at[0] * state + at[1]
            return state.clone(), (state * at[2].unsqueeze(1)).sum(2)

        if self.how == "scan":
            return torch._higher_order_ops.scan(step, state, (decay, drive, c))[1]
        result = []
        for item in zip(decay, drive, c, strict=True):
            state, y = step(state, item)
            result.append(y)
        return torch.stack(result)


class Mamba(nn.Module):
    def __init__(self, words: int, width: int, layers: int, how: str) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(SelectiveScan(width, 8, how) for _ in range(layers))
        self.norms = nn.ModuleList(RmsNorm(width) for _ in range(layers + 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer, norm in zip(self.layers, self.norms, strict=False):
            x = x + layer(norm(x))
        return self.norms[-1](x) @ self.words.weight.T


def mamba(full: bool = False, how: str = "scan") -> Example:
    """Batch and length vary; with how="unrolled" the steps are nodes, and only the batch varies."""
    words, width, layers = (50280, 768, 24) if full else (67, 16, 2)
    torch.manual_seed(0)
    fixed = how == "unrolled"

    def make(batch: int, length: int) -> Arguments:
        return (torch.randint(0, words, (batch, length)),)

    sizes = ((2, 6), (1, 6), (3, 6), (4, 6)) if fixed else ((2, 6), (1, 3), (3, 11), (2, 30))
    dims = {0: Dim("batch")} if fixed else {0: Dim("batch"), 1: Dim("length")}
    return Example(Mamba(words, width, layers, how), make, sizes, (dims,))


MODELS: dict[str, Callable[..., Example]] = {
    "gpt2": gpt2,
    "t5": t5,
    "vit": vit,
    "unet": unet,
    "lstm": lstm,
    "mamba": mamba,
    "mamba_unrolled": lambda full=False: mamba(full, "unrolled"),
}
