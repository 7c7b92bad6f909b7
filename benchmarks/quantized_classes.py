"""Quantised networks beside their floats, for each class of processors that this machine runs.

    python benchmarks/quantized_classes.py [--class CPU ...] [--only NAME ...] [--threads 1]
        [--rounds 15] [--minilm FILE]

ResNet-18, MobileNet and MobileNetV2 on 224 x 224 pixels with random weights, whose speed is that
of trained ones, and MiniLM of 128 tokens where its file is given. Quantised forms:
`relay.quantize` (networks of relay.testing), `ekiden quantize`, and ONNX Runtime's
`quantize_static` (QDQ, per tensor and per channel; operators) and `quantize_dynamic`. Printed is
how many times as fast as its floats each is by the code made for a class; for the processor itself
also how many times as fast as ONNX Runtime on the same file, told to be exact where the processor
has no dot products of bytes. Run it by emulate_cpu.py to compare with ONNX Runtime as on a
processor of another class. Thread CPU time with one thread, else elapsed time; the least of the
rounds, in turns. Needs torch and onnxruntime.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from matmul_peak import cpu_model_name
from onnxruntime import quantization
from torch import nn

import ekiden
from ekiden import relay
from ekiden.ir.module import IRModule
from ekiden.relay import testing
from ekiden.relay.build_module import bind_params_by_name
from ekiden.runtime import num_threads
from ekiden.target import Target

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from onnx_runtime import EXACT
from processor import LEVELS

Array = np.ndarray[Any, Any]
Feed = Mapping[str, Array]
Run = Callable[[], object]
SAMPLES, SIDE, TOKENS, WORDS = 4, 224, 128, 30522
FORMS = (
    *("float", "ekiden static", "ekiden dynamic"),
    *("qdq", "qdq per channel", "operators", "dynamic"),
)
"""Forms of a network that are ONNX files."""
PROCESSOR_CLASSES = ("cascadelake", *LEVELS)
"""AVX-512 with VNNI, and without; AVX2; SSE4.1."""


class ResidualBlock(nn.Module):
    """Basic residual block of two convolutions (He et al., 2016)."""

    def __init__(self, before: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *conv_batch_norm(before, channels, 3, stride), nn.ReLU(),
            *conv_batch_norm(channels, channels, 3, 1),
        )  # fmt: skip
        is_same = before == channels
        self.around = nn.Sequential(
            *([] if is_same else conv_batch_norm(before, channels, 1, stride))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.around(x))


class InvertedResidual(nn.Module):
    """Inverted residual block: a wide depthwise convolution between two pointwise ones (Sandler et
    al., 2018).
    """

    def __init__(self, before: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = before * expansion
        first = [*conv_batch_norm(before, wide, 1, 1), nn.ReLU6()] if expansion > 1 else []
        self.body = nn.Sequential(
            *first, *conv_batch_norm(wide, wide, 3, stride, wide), nn.ReLU6(),
            *conv_batch_norm(wide, channels, 1, 1),
        )  # fmt: skip
        self.is_residual = stride == 1 and before == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.body(x)
        return x + result if self.is_residual else result


def conv_batch_norm(
    before: int, channels: int, window: int, stride: int, groups: int = 1
) -> list[nn.Module]:
    """Return a convolution with batch normalization of varied statistics."""
    norm = nn.BatchNorm2d(channels)
    nn.init.normal_(norm.bias, std=0.1)
    conv = nn.Conv2d(before, channels, window, stride, window // 2, groups=groups, bias=False)
    return [conv, norm]


def add_classifier(layers: list[nn.Module], channels: int) -> nn.Module:
    """Return the layers followed by global pooling and a classifier."""
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)]
    return nn.Sequential(*layers, *head)


def resnet18() -> nn.Module:
    """Return ResNet-18."""
    layers = [*conv_batch_norm(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            layers.append(ResidualBlock(width, channels, 2 if stage and not block else 1))
            width = channels
    return add_classifier(layers, width)


def mobilenet() -> nn.Module:
    """Return MobileNet (Howard et al. 2017), of the blocks of relay.testing."""
    layers, width = [*conv_batch_norm(3, 32, 3, 2), nn.ReLU()], 32
    for channels, stride in testing.mobilenet.MOBILENET_BLOCKS:
        layers += [*conv_batch_norm(width, width, 3, stride, width), nn.ReLU()]
        layers += [*conv_batch_norm(width, channels, 1, 1), nn.ReLU()]
        width = channels
    return add_classifier(layers, width)


def mobilenet_v2() -> nn.Module:
    """Return MobileNetV2: (expansion, channels, blocks, stride) by stage."""
    layers, width = [*conv_batch_norm(3, 32, 3, 2), nn.ReLU6()], 32
    stages = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    for expansion, channels, blocks, stride in stages:
        for block in range(blocks):
            layers.append(InvertedResidual(width, channels, 1 if block else stride, expansion))
            width = channels
    return add_classifier([*layers, *conv_batch_norm(width, 1280, 1, 1), nn.ReLU6()], 1280)


TORCH_NETWORKS = {"resnet18": resnet18, "mobilenet": mobilenet, "mobilenet_v2": mobilenet_v2}
MINILM_NAME = "minilm"
RELAY_NETWORKS: Mapping[str, Callable[[], tuple[IRModule, dict[str, Any]]]] = {
    "resnet18": partial(testing.resnet.get_workload, num_layers=18),
    "mobilenet": testing.mobilenet.get_workload,
}
"""Networks that `relay.quantize` is given."""


class CalibrationReader(quantization.CalibrationDataReader):  # type: ignore[misc]  # untyped
    """Calibration data reader of ONNX Runtime's interface."""

    def __init__(self, samples: list[Feed]) -> None:
        self.samples = iter(samples)

    def get_next(self) -> Feed | None:
        """Return the next sample, or None after the last."""
        return next(self.samples, None)


def random_feed(name: str, seed: int) -> Feed:
    """Return one input of a network."""
    rng = np.random.default_rng(seed)
    if name == MINILM_NAME:
        ids = rng.integers(1, WORDS, (1, TOKENS))
        return {"input_ids": ids, "attention_mask": np.ones((1, TOKENS), np.int64)}
    return {"x": rng.standard_normal((1, 3, SIDE, SIDE), np.float32)}


def write_quantized_models(name: str, folder: Path, minilm: Path | None) -> dict[str, Path]:
    """Write a network in float32 and in each quantized form; return the files by form."""
    files = {form: folder / f"{form}.onnx".replace(" ", "-") for form in FORMS}
    floats, ready = files["float"], folder / "ready.onnx"
    if minilm is not None and name == MINILM_NAME:
        shutil.copy(minilm, floats)
    else:
        torch.manual_seed(0)
        model = TORCH_NETWORKS[name]().eval()
        data = (torch.zeros(1, 3, SIDE, SIDE),)
        torch.onnx.export(
            model, data, str(floats), input_names=["x"], dynamo=False, opset_version=17
        )
    samples = [random_feed(name, seed) for seed in range(SAMPLES)]
    quantization.shape_inference.quant_pre_process(floats, ready, auto_merge=True)
    for form in ("qdq", "qdq per channel", "operators"):
        is_qdq = form != "operators"
        quantization.quantize_static(
            ready, files[form], CalibrationReader(samples),
            quantization.QuantFormat.QDQ if is_qdq else quantization.QuantFormat.QOperator,
            per_channel=form == "qdq per channel",
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
        )  # fmt: skip
    quantization.quantize_dynamic(floats, files["dynamic"])
    batch = {key: np.concatenate([sample[key] for sample in samples]) for key in samples[0]}
    for kind in ("static", "dynamic"):
        quantized = ekiden.quantize(str(floats), batch, kind=kind, least_snr=-1e9)
        quantized.save(files[f"ekiden {kind}"])
    return files


def relay_runs(name: str, target: Target) -> dict[str, Run]:
    """Return the runs of a `relay.testing` network in float32 and after `relay.quantize`."""
    module, params = RELAY_NETWORKS[name]()
    with relay.quantize.qconfig(skip_conv_layers=None):
        integers = relay.quantize.quantize(module, params)
    floats = IRModule.from_expr(bind_params_by_name(module["main"], params))
    (data,) = random_feed(name, 0).values()
    compiled = {"float": ekiden.compile(floats, target), "relay": ekiden.compile(integers, target)}
    return {form: partial(executable, data) for form, executable in compiled.items()}


def onnxruntime_session(file: Path, threads: int) -> onnxruntime.InferenceSession:
    """Return an ONNX Runtime session with this many threads, whose sums of bytes are exact."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if not Target.host().has("dot4_u8s8"):  # with VNNI the entry would cost exact sums their speed
        options.add_session_config_entry(EXACT, "1")
    return onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])


def interleaved_min_times(
    runs: Mapping[str, Run], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Return the minimum duration of each run in seconds, measured alternately."""
    seconds = dict.fromkeys(runs, float("inf"))
    for _ in range(rounds):
        for form, run in runs.items():
            begin = clock()
            run()
            seconds[form] = min(seconds[form], clock() - begin)
    return seconds


def print_speedups(
    name: str, files: Mapping[str, Path], target: Target, options: argparse.Namespace
) -> None:
    """Print the float32 milliseconds of a network, and the speed-up of each quantized form."""
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    feed = random_feed(name, 0)
    runs = {
        form: partial(ekiden.compile(str(file), target), **feed) for form, file in files.items()
    }
    if target == Target.host():
        for form, file in files.items():
            session = onnxruntime_session(file, options.threads)
            runs[f"ort {form}"] = partial(session.run, None, feed)
    seconds = interleaved_min_times(runs, options.rounds, clock)
    cells = [f"float {seconds['float'] * 1e3:.2f} ms"]
    if name in RELAY_NETWORKS:
        relay_seconds = interleaved_min_times(relay_runs(name, target), options.rounds, clock)
        cells.append(f"relay.quantize {relay_seconds['float'] / relay_seconds['relay']:.2f}")
    for form in files:
        ratio = f"{form} {seconds['float'] / seconds[form]:.2f}" if form != "float" else form
        beside = seconds.get(f"ort {form}")
        cells.append(ratio if beside is None else f"{ratio} (ort x {beside / seconds[form]:.2f})")
    print(f"{target.cpu:15} {name:13} {', '.join(cells)}", flush=True)


def main() -> None:
    """Print a line for each class and network."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--class", dest="classes", nargs="*", default=PROCESSOR_CLASSES, metavar="CPU"
    )
    parser.add_argument("--only", nargs="*", default=[*TORCH_NETWORKS, MINILM_NAME])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--minilm", type=Path, help="its ONNX file, in floats")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    num_threads(options.threads)
    print(
        f"{cpu_model_name()}, {options.threads} thread(s), ONNX Runtime {onnxruntime.__version__}"
    )
    host = Target.host()
    classes = [Target.parse(f"llvm -mcpu={cpu}") for cpu in options.classes]
    targets = [host, *(target for target in classes if target.serves(host))]
    for name in options.only:
        if name == MINILM_NAME and options.minilm is None:
            continue
        with tempfile.TemporaryDirectory() as folder:
            files = write_quantized_models(name, Path(folder), options.minilm)
            for target in targets:
                print_speedups(name, files, target, options)


if __name__ == "__main__":
    main()
