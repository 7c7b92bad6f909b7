"""Compile time of a PyTorch model through torch.export, and through ONNX.

    python benchmarks/frontend_compile_time.py [MODEL ...] [--runs 1]

ResNet-50 (torchvision) and a BERT of 12 layers (transformers), with random weights. Every figure is
of a process of its own without a cache: `export` what PyTorch takes to write the program, `compile`
what `ekiden.compile` takes of it. The ratios are of torch.export over those through ONNX.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MODEL_NAMES = ("resnet50", "bert")
FRONTENDS = ("torch", "onnx")


def load_model(name: str) -> tuple[Any, tuple[Any, ...]]:
    """Return a module and its inputs."""
    import torch
    from zoo_models import import_torchvision

    vision = import_torchvision()
    if name == "resnet50":
        return vision.models.resnet50(weights=None).eval(), (torch.randn(1, 3, 224, 224),)
    from transformers import BertConfig, BertModel
    from zoo_transformers import wrap_positional

    bert = BertModel(BertConfig(num_hidden_layers=12, use_cache=False)).eval()
    return wrap_positional(bert, ["input_ids"], {}), (torch.randint(4, 500, (1, 128)),)


def time_frontend(name: str, frontend: str) -> None:
    """Print the seconds of exporting and of compiling one model."""
    import torch

    import ekiden

    module, inputs = load_model(name)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        started = time.perf_counter()
        program: Any = Path(folder, "model.onnx")
        if frontend == "torch":
            program = torch.export.export(module, inputs)
        else:
            torch.onnx.export(module, inputs, str(program), dynamo=False)
        exported = time.perf_counter()
        ekiden.compile(program)
        print("seconds", exported - started, time.perf_counter() - exported)


def time_in_subprocess(name: str, frontend: str) -> list[float]:
    """Return the seconds of exporting and of compiling, measured in a fresh process."""
    with tempfile.TemporaryDirectory() as cache:
        # An empty cache for each run: the compilation must be cold.
        environment = dict(os.environ, EKIDEN_CACHE_DIR=cache, HF_HUB_OFFLINE="1")
        command = [sys.executable, __file__, "--one", name, frontend]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    line = next(text for text in done.stdout.splitlines() if text.startswith("seconds"))
    return list(map(float, line.split()[1:]))


def main() -> None:
    """Print a row for each model and frontend."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("models", nargs="*", default=MODEL_NAMES)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        time_frontend(*options.one)
        return
    print(f"{'model':12}{'frontend':9}{'export':>10}{'compile':>10}{'both':>10}")
    for name in options.models:
        runs: dict[str, list[list[float]]] = {frontend: [] for frontend in FRONTENDS}
        for _ in range(options.runs):
            for frontend in FRONTENDS:
                runs[frontend].append(time_in_subprocess(name, frontend))
        seconds_by_frontend = {}
        for frontend, times in runs.items():
            export, compiled = (statistics.median(samples) for samples in zip(*times, strict=True))
            seconds_by_frontend[frontend] = (compiled, export + compiled)
            print(
                f"{name:12}{frontend:9}{export:8.2f} s{compiled:8.2f} s{export + compiled:8.2f} s"
            )
        ratios = [
            a / b
            for a, b in zip(seconds_by_frontend["torch"], seconds_by_frontend["onnx"], strict=True)
        ]
        print(f"{name:12}{'ratio':9}{'':10}{ratios[0]:10.2f}{ratios[1]:10.2f}")


if __name__ == "__main__":
    main()
