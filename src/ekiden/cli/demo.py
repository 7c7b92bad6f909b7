"""`ekiden demo`: a trained model from PyPI, compiled and run on real files.

The model is Magika (Apache-2.0), which tells what kind of content a file holds from its first,
middle and last bytes. The package `magika` ships it as an ONNX file; only the wheel is downloaded
and unzipped, nothing of it is imported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
import zipfile
from pathlib import Path

import numpy as np

import ekiden
from ekiden.ir.op import Array
from ekiden.runtime.errors import ImportModelError
from ekiden.runtime.files import rewrite_os_errors

MAGIKA_REQUIREMENT = "magika==1.0.3"
MAGIKA_MODEL_FOLDER = "magika/models/standard_v3_3"
MAGIKA_BLOCK_BYTES = 4096
"""Bytes looked at from each end of a file (Magika's `block_size`)."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments."""
    parser.add_argument(
        "files", nargs="*", help="files to identify (default: some of Python's own)"
    )


def download_model(folder: Path) -> tuple[Path, dict[str, object]]:
    """Download the wheel with pip, and return the path of the model file and its configuration.
    Raises ImportModelError with what pip says.
    """
    # pip checks the wheel's hash against the index, which a plain download would not.
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]
    done = subprocess.run(
        [*command, "-d", str(folder), MAGIKA_REQUIREMENT],
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ImportModelError(
            f"downloading {MAGIKA_REQUIREMENT}: pip says {done.stderr.strip()[-300:]}"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        config: dict[str, object] = json.loads(wheel.read(f"{MAGIKA_MODEL_FOLDER}/config.min.json"))
        return Path(wheel.extract(f"{MAGIKA_MODEL_FOLDER}/model.onnx", folder)), config


def extract_features(data: bytes, begin: int, end: int, padding: int) -> list[int]:
    """Return Magika's input tokens: the first `begin` and last `end` bytes stripped of whitespace,
    padded with `padding`.
    """
    head = data[:MAGIKA_BLOCK_BYTES].lstrip()[:begin]
    tail = data[-MAGIKA_BLOCK_BYTES:].rstrip()[-end:] if end else b""
    return [*head, *[padding] * (begin - len(head)), *[padding] * (end - len(tail)), *tail]


def default_input_files() -> list[Path]:
    """Return files of different kinds that every Python installation has."""
    library = Path(sysconfig.get_path("stdlib"))
    # Only files that every CPython installation has.
    candidates = [
        library / "argparse.py",
        Path(sys.executable).resolve(),
        library / "pydoc_data" / "_pydoc.css",
    ]
    candidates += (
        sorted(library.glob("**/*.exe"))[:1]
        + sorted(library.glob("**/*.txt"))[:1]
        + sorted(library.glob("__pycache__/*.pyc"))[:1]
    )
    candidates += [Path(ekiden.__file__)]
    return [p for p in candidates if p.is_file()]


def run(options: argparse.Namespace) -> int:
    """Download, compile and run the model, and print a table with times."""
    files = [Path(f) for f in options.files] or default_input_files()
    for path in files:
        with rewrite_os_errors("read", path), open(path, "rb"):
            pass  # before anything is fetched
    with tempfile.TemporaryDirectory() as scratch:
        print(f"fetching {MAGIKA_REQUIREMENT} (Apache-2.0) from PyPI ...", flush=True)
        model, config = download_model(Path(scratch))
        started = time.perf_counter()
        executable = ekiden.compile(str(model))
        print(f"compiled in {time.perf_counter() - started:.2f} s: {executable!r}")
        artifact = Path(scratch) / "magika.eki"
        executable.save(artifact)
        started = time.perf_counter()
        executable = ekiden.load(artifact)
        size, took = artifact.stat().st_size / 1e6, time.perf_counter() - started
        print(f"saved as one file of {size:.1f} MB, loaded in {took * 1e3:.1f} ms\n")
    _print_predictions(executable, files, config)
    return 0


def _print_predictions(
    executable: ekiden.Executable, files: list[Path], config: dict[str, object]
) -> None:
    labels = config["target_labels_space"]
    begin, end, padding = (int(str(config[k])) for k in ("beg_size", "end_size", "padding_token"))
    assert isinstance(labels, list)
    print(f"{'file':32} {'content':14} {'score':>6}  {'run':>9}")
    for path in files:
        row: Array = np.array([extract_features(path.read_bytes(), begin, end, padding)], np.int32)
        scores, seconds = time_inference(executable, row)
        best = int(scores.argmax())
        print(f"{path.name[:32]:32} {labels[best]:14} {scores[best]:6.1%}  {seconds * 1e3:6.2f} ms")


def time_inference(
    executable: ekiden.Executable, row: Array, repeat: int = 5
) -> tuple[Array, float]:
    """Return the class scores of one file, and the median inference time in seconds."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        result = executable(row)
        times.append(time.perf_counter() - started)
    assert not isinstance(result, tuple)
    return result.numpy()[0], statistics.median(times)
