"""ResNet-50, BERT-base in float16 and a decoder step on a GPU, compared with two other engines.

    python benchmarks/gpu.py                       the table, on standard output and in gpu.md
    python benchmarks/gpu.py --device opencl --small

Each model is a module of PyTorch with random weights. Ekiden compiles what torch.export gives; ONNX
Runtime runs its ONNX on its CUDA provider, PyTorch runs it as it is and by torch.compile. All that
are there are measured in turns, inputs and results on the device; the error is the largest beside
the largest value of PyTorch's own run in float32 on the host. What could not be measured stands in
the table with its reason, and so does the whole of it where there is no GPU. `--small` has two
layers of each, to try the program itself.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import io
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import ekiden

DEVICE_ATTRIBUTES = {"NAME": 0, "DRIVER": 2, "VERSION": 3}
"""Numbers of ek_device_attribute."""
REPORTED_PACKAGES = ("ekiden", "torch", "onnxruntime-gpu", "onnxruntime")
Run = Callable[[], object]
"""One run, whose result is there when it returns."""


@dataclass(frozen=True)
class GpuModel:
    """PyTorch module with its inputs and the dtype it runs in on the device."""

    module: Any
    inputs: tuple[Any, ...]
    dtype: str


@dataclass
class EngineResult:
    """Measurements of one engine on a model: the seconds of each run, or why there are none."""

    model: str
    engine: str
    times: list[float] = field(default_factory=list)
    error: float = math.nan
    reason: str = ""

    def format_cells(self, best: float) -> tuple[str, ...]:
        """Return the table cells; `best` is the fastest engine's median."""
        if not self.times:
            return self.model, self.engine, "", "", "", f"not measured: {self.reason}"
        middle = statistics.median(self.times)
        times = f"{middle * 1e3:.3f}", f"{min(self.times) * 1e3:.3f}", f"{middle / best:.2f}"
        return self.model, self.engine, *times, f"error {self.error:.1e}"


# Models ------------------------------------------------------------------------------------------


def build_resnet50(is_small: bool) -> GpuModel:
    """Return ResNet-50 on one image; the small version has one block of each width."""
    import torch
    from torch import nn

    def make_conv(n: int, out: int, kernel: int, stride: int = 1) -> nn.Module:
        padding = kernel // 2
        return nn.Sequential(
            nn.Conv2d(n, out, kernel, stride, padding, bias=False), nn.BatchNorm2d(out)
        )

    class Block(nn.Module):
        """Bottleneck block: three convolutions with an identity or projection shortcut."""

        def __init__(self, n: int, width: int, stride: int) -> None:
            super().__init__()
            relu = nn.ReLU()
            self.inner = nn.Sequential(
                make_conv(n, width, 1), relu, make_conv(width, width, 3, stride), relu,
                make_conv(width, 4 * width, 1),
            )  # fmt: skip
            is_same = stride == 1 and n == 4 * width
            self.beside = nn.Identity() if is_same else make_conv(n, 4 * width, 1, stride)

        def forward(self, x: Any) -> Any:  # noqa: ANN401
            return nn.functional.relu(self.inner(x) + self.beside(x))

    blocks, channels = [], 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(1 if is_small else count):
            blocks.append(Block(channels, width, 1 if number else stride))
            channels = 4 * width
    head = make_conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    tail = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000)
    size = 64 if is_small else 224
    network = nn.Sequential(*head, *blocks, *tail).eval()
    return GpuModel(network, (torch.randn(1, 3, size, size),), "float32")


def build_bert_base(is_small: bool) -> GpuModel:
    """Return BERT-base on 128 tokens, in float16."""
    import torch
    from transformers import BertConfig, BertModel

    layers = {"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 2}
    layers["intermediate_size"] = 512
    network = BertModel(BertConfig(**(layers if is_small else {}), use_cache=False)).eval()

    class Hidden(torch.nn.Module):
        """Wrapper module that returns only the last hidden state."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = network

        def forward(self, words: Any, mask: Any) -> Any:  # noqa: ANN401
            return self.inner(words, attention_mask=mask).last_hidden_state

    words = torch.randint(0, 30000, (1, 128))
    return GpuModel(Hidden().eval(), (words, torch.ones(1, 128, dtype=torch.int64)), "float16")


def build_decoder_step(is_small: bool) -> GpuModel:
    """Return a decoder step of one token in float16, with a key-value cache of 512 tokens."""
    import torch
    from torch.nn import functional

    layers, width, heads, past = (2, 128, 2, 64) if is_small else (16, 2048, 16, 512)

    class Layer(torch.nn.Module):
        """Decoder layer: attention over the cache and the token, and a gated feed-forward
        network.
        """

        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
            self.mix = torch.nn.Linear(width, 3 * width, bias=False)
            self.out = torch.nn.Linear(width, width, bias=False)
            self.up = torch.nn.Linear(width, 8 * width, bias=False)
            self.down = torch.nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any, keys: Any, values: Any) -> Any:  # noqa: ANN401
            """Return the layer's output for one token."""
            projections = self.mix(self.one(x)).reshape(1, 3, heads, 1, width // heads)
            query, key, value = projections[:, 0], projections[:, 1], projections[:, 2]
            keys = torch.cat([keys, key], 2)
            values = torch.cat([values, value], 2)
            attended = functional.scaled_dot_product_attention(query, keys, values)
            x = x + self.out(attended.reshape(1, 1, width))
            gate, up = self.up(self.two(x)).chunk(2, -1)
            return x + self.down(functional.silu(gate) * up)

    class Step(torch.nn.Module):
        """Module of all decoder layers, each with the same key-value cache."""

        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

        def forward(self, x: Any, keys: Any, values: Any) -> Any:  # noqa: ANN401
            for layer in self.layers:
                x = layer(x, keys, values)
            return x

    past_states = torch.randn(2, 1, heads, past, width // heads)
    return GpuModel(
        Step().eval(), (torch.randn(1, 1, width), past_states[0], past_states[1]), "float16"
    )


MODEL_BUILDERS = {
    "ResNet-50": build_resnet50,
    "BERT-base": build_bert_base,
    "decoder step": build_decoder_step,
}


# Engines: each gives a run, and what a run gives as an array --------------------------------------


def _cast_to_device_dtype(model: GpuModel) -> tuple[Any, tuple[Any, ...]]:
    """Return the module and its inputs in the device's dtype."""
    import torch

    if model.dtype == "float32":
        return copy.deepcopy(model.module), model.inputs
    inputs = tuple(i.half() if i.dtype == torch.float32 else i for i in model.inputs)
    return copy.deepcopy(model.module).half(), inputs


def make_ekiden_run(device: ekiden.Device, model: GpuModel) -> tuple[Run, Callable[[], Any]]:
    """Return Ekiden's run on a device."""
    module, inputs = _cast_to_device_dtype(model)
    kind = str(device).partition("(")[0]
    executable = ekiden.compile(module, inputs, target={device: kind, ekiden.cpu(0): "llvm"})
    device_inputs = [ekiden.nd.array(i.numpy(), device) for i in inputs]

    def run() -> Any:  # noqa: ANN401
        """Run and wait for the result."""
        result = executable(*device_inputs)
        ekiden.runtime.wait_for(result)
        return result

    return run, lambda: run().numpy()


def make_onnxruntime_run(device: ekiden.Device, model: GpuModel) -> tuple[Run, Callable[[], Any]]:
    """Return a run of ONNX Runtime's CUDA provider, with inputs and outputs bound on the device."""
    import onnxruntime
    import torch

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        raise RuntimeError("this ONNX Runtime has no CUDA provider: pip install onnxruntime-gpu")
    module, inputs = _cast_to_device_dtype(model)
    file = io.BytesIO()
    torch.onnx.export(module, inputs, file, dynamo=False)
    providers = [("CUDAExecutionProvider", {"device_id": device.id})]
    session = onnxruntime.InferenceSession(file.getvalue(), providers=providers)
    binding = session.io_binding()
    for info, value in zip(session.get_inputs(), inputs, strict=True):
        # Inputs stay on the device, as Ekiden's and PyTorch's do.
        device_value = onnxruntime.OrtValue.ortvalue_from_numpy(value.numpy(), "cuda", device.id)
        binding.bind_ortvalue_input(info.name, device_value)
    binding.bind_output(session.get_outputs()[0].name, "cuda", device.id)

    def run() -> None:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()

    def result() -> Any:  # noqa: ANN401
        run()
        return binding.copy_outputs_to_cpu()[0]

    return run, result


def make_torch_run(
    device: ekiden.Device, model: GpuModel, is_compiled: bool
) -> tuple[Run, Callable[[], Any]]:
    """Return a PyTorch run, eager or compiled with CUDA graphs."""
    import torch

    if not torch.cuda.is_available():
        raise RuntimeError("this PyTorch sees no GPU")
    module, inputs = _cast_to_device_dtype(model)
    where = torch.device("cuda", device.id)
    module, device_inputs = module.to(where), [i.to(where) for i in inputs]
    called = torch.compile(module, mode="max-autotune") if is_compiled else module

    def run() -> Any:  # noqa: ANN401
        """Run and wait for the result."""
        with torch.inference_mode():
            result = called(*device_inputs)
        torch.cuda.synchronize(where)
        return result

    return run, lambda: run().float().cpu().numpy()


def engine_factories(
    device: ekiden.Device,
) -> dict[str, Callable[[GpuModel], tuple[Run, Callable[[], Any]]]]:
    """Return the factory of each engine's run by name."""
    return {
        "Ekiden": lambda model: make_ekiden_run(device, model),
        "ONNX Runtime": lambda model: make_onnxruntime_run(device, model),
        "PyTorch": lambda model: make_torch_run(device, model, False),
        "torch.compile": lambda model: make_torch_run(device, model, True),
    }


# Measuring ---------------------------------------------------------------------------------------


def measure_model(
    name: str, device: ekiden.Device, seconds: float, is_small: bool
) -> list[EngineResult]:
    """Return the result of each engine on a model."""
    rows = [EngineResult(name, engine) for engine in engine_factories(device)]
    try:
        if not device.exist:
            ekiden.get_global_func("ek.device.open")(device)
            raise RuntimeError(f"{device} is not there")
        model = MODEL_BUILDERS[name](is_small)
        expected = _expected_outputs(model)
    except Exception as error:  # its reason is the row
        for row in rows:
            row.reason = _failure_reason(error)
        return rows
    runs: list[tuple[EngineResult, Run]] = []
    for row, prepare in zip(rows, engine_factories(device).values(), strict=True):
        try:
            run, result = prepare(model)
            difference = np.abs(np.asarray(result(), "float64") - expected).max()
            row.error = float(difference / np.abs(expected).max())
            run()
        except Exception as error:
            row.reason = _failure_reason(error)
            continue
        runs.append((row, run))
    until = time.perf_counter() + seconds * len(runs)
    while runs and (time.perf_counter() < until or len(runs[0][0].times) < 5):
        for row, run in runs:
            started = time.perf_counter()
            run()
            row.times.append(time.perf_counter() - started)
    return rows


def _expected_outputs(model: GpuModel) -> Any:  # noqa: ANN401
    import torch

    with torch.inference_mode():
        return model.module(*model.inputs).double().numpy()


def _failure_reason(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"pip install {error.name}"
    return str(error).partition("\n")[0][:200] or type(error).__name__


def _describe_machine(device: ekiden.Device) -> str:
    """Return a description of the device and the package versions."""
    versions = [
        f"{p} {version(p)}"
        for p in REPORTED_PACKAGES
        if importlib.util.find_spec(p.split("-")[0]) and _is_installed(p)
    ]
    if not device.exist:
        return ", ".join(["no GPU", *versions])
    query = ekiden.get_global_func("ek.device.attribute")
    return ", ".join([*(str(query(device, n)) for n in DEVICE_ATTRIBUTES.values()), *versions])


def _is_installed(package: str) -> bool:
    try:
        return bool(version(package))
    except importlib.metadata.PackageNotFoundError:
        return False


def format_markdown(head: str, rows: Sequence[EngineResult]) -> str:
    """Format the results as Markdown."""
    lines = [
        head,
        "",
        "| model | engine | median ms | least ms | of the fastest | |",
        "|" + "---|" * 6,
    ]
    for row in rows:
        medians = [statistics.median(r.times) for r in rows if r.model == row.model and r.times]
        lines.append("| " + " | ".join(row.format_cells(min(medians, default=math.nan))) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="a kind, with a number: cuda:1")
    parser.add_argument(
        "--models", nargs="*", default=list(MODEL_BUILDERS), choices=list(MODEL_BUILDERS)
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for each engine and model")
    parser.add_argument("--small", action="store_true", help="two layers of each")
    parser.add_argument("--output", default="gpu.md")
    options = parser.parse_args()
    device = ekiden.device(options.device)
    rows = [
        r for m in options.models for r in measure_model(m, device, options.seconds, options.small)
    ]
    text = format_markdown(_describe_machine(device), rows)
    Path(options.output).write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
