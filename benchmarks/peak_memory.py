"""Peak activation memory of real models, compared with ONNX Runtime.

    python benchmarks/peak_memory.py [MODEL ...]

Each engine runs each model in processes of its own, in which the C library gives every freed block
of 4 KB and more back to the system at once. The measure is what the first run leaves behind in
anonymous pages (arenas, scratch memory), and how far above its start what is held from the C
library rises during later runs (heap_peak.c). Before, weights are loaded and packed, and another
model has run, which leaves threads with the stacks and the interpreter with the objects of a run.
ONNX Runtime runs without its own arena, which rounds up and keeps more: each tensor is freed when
it is dead. `predicted` is what Ekiden's compiler says of static models.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.numpy_helper
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "end_to_end"))
from network_models import cached_model, light_model

import ekiden

LIGHT_MODELS = (
    "bvlc_alexnet", "densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet",
    "vgg19", "zfnet512",
)  # fmt: skip
CACHED_MODELS = (
    "attacut_c", "ddddocr_det", "deepcut", "magika_v3_3", "minilm_l3_f32", "oww_alexa_mlp",
    "oww_timer_mlp", "ppocr2_cls", "ppocr4_det",
)  # fmt: skip
RUNS_PER_PROCESS = 3
PROCESSES_PER_MODEL = 3
WARMUP_WIDTH = 1024
"""Elements of the vectors of the model that runs before: what it leaves free is a few KB."""


GLIBC_TUNABLES = "glibc.malloc.mmap_threshold=4096:glibc.malloc.mmap_max=1000000"


def anonymous_rss() -> int:
    """Return the resident bytes of anonymous pages."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("peak_memory: the system does not say how much memory is anonymous")


def load_runner(engine: str, model: str) -> Callable[..., object]:
    """Return a loaded model as a function of its inputs by name."""
    if engine == "ekiden":
        return ekiden.load(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # The arena's growth would hide what the model itself needs.
    options.enable_cpu_mem_arena = False
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    return lambda **feed: session.run(None, feed)


def measure_in_child(engine: str, warmup_model: str, model: str, inputs: str) -> None:
    """Measure the peak memory of one engine in this process, and print the bytes."""
    feed = dict(np.load(inputs))
    loaded, warm = load_runner(engine, model), load_runner(engine, warmup_model)

    def run_once() -> None:
        loaded(**feed)

    for _ in range(RUNS_PER_PROCESS):
        warm(x=np.ones((1, WARMUP_WIDTH), np.float32))
    heap = ctypes.CDLL(None)
    heap.heap_most.restype = heap.heap_now.restype = ctypes.c_long
    gc.collect()
    before = anonymous_rss()
    run_once()
    retained = max(0, anonymous_rss() - before)
    heap.heap_restart()
    start = heap.heap_now()
    for _ in range(RUNS_PER_PROCESS):
        run_once()
    print(retained + heap.heap_most() - start)


def write_warmup_model(folder: Path) -> None:
    """Write a warm-up model that starts the thread pools of both engines."""
    input_info, result = (
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, WARMUP_WIDTH])
        for n in "xy"
    )
    weight = onnx.numpy_helper.from_array(np.ones((WARMUP_WIDTH, WARMUP_WIDTH), np.float32), "w")
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["h"]),
        onnx.helper.make_node("Softmax", ["h"], ["y"]),
    ]
    graph = onnx.helper.make_graph(nodes, "other", [input_info], [result], [weight])
    opset = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, folder / "other.onnx")
    ekiden.compile(model).save(folder / "other.eki")


def build_allocation_counter(folder: Path) -> Path:
    """Build the preloaded library that counts allocations."""
    library, source = folder / "heap_peak.so", Path(__file__).with_name("heap_peak.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


def median_peak_memory(engine: str, model: Path, inputs: Path, library: Path) -> int:
    """Return the median peak memory of three processes, in bytes."""
    warmup_model = library.with_name("other.eki" if engine == "ekiden" else "other.onnx")
    files = [warmup_model, model, inputs]
    command = [sys.executable, __file__, "--child", engine, *map(str, files)]
    # Blocks from 4 KB on are mapped separately, so freed memory leaves the resident set at once.
    settings = {**os.environ, "GLIBC_TUNABLES": GLIBC_TUNABLES, "LD_PRELOAD": str(library)}
    outputs = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=settings).stdout
        for _ in range(PROCESSES_PER_MODEL)
    ]
    return sorted(map(int, outputs))[PROCESSES_PER_MODEL // 2]


def prepare_model(name: str, folder: Path) -> tuple[Path, Path]:
    """Return a model's ONNX file, and the file of its inputs."""
    inputs = folder / f"{name}.npz"
    if name in CACHED_MODELS:
        entry = cached_model(name)
        case = max(entry.cases, key=lambda c: int(np.prod(list(c["dims"].values()) or [1])))
        np.savez(inputs, **entry.feed(case))
        return entry.path, inputs
    model = light_model(name)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    model_input = model.graph.input[0]
    shape = [d.dim_value or 1 for d in model_input.type.tensor_type.shape.dim]
    np.savez(inputs, **{model_input.name: np.random.default_rng(0).random(shape, np.float32)})
    return path, inputs


def main(names: list[str]) -> None:
    """Print a row for each model, and how many need no more than ONNX Runtime."""
    good = 0
    print(f"{'model':18} {'ekiden':>10} {'onnxruntime':>12} {'ratio':>6} {'predicted':>10}  KiB")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            model, inputs = prepare_model(name, Path(folder))
            exe = ekiden.compile(model)
            artifact = Path(folder) / f"{name}.eki"
            exe.save(artifact)
            library = build_allocation_counter(Path(folder))
            write_warmup_model(Path(folder))
            ours = median_peak_memory("ekiden", artifact, inputs, library)
            theirs = median_peak_memory("onnxruntime", model, inputs, library)
            predicted = exe.peak_memory
            ours = max(ours, predicted or 0)  # of what the other model left free, nothing is saved
            shown = f"{predicted // 1024:10}" if predicted is not None else f"{'-':>10}"
            good += ours <= theirs
            numbers = f"{ours // 1024:10} {theirs // 1024:12} {ours / max(theirs, 1):6.2f}"
            print(f"{name:18} {numbers} {shown}", flush=True)
    print(f"{good} of {len(names)} need at most what ONNX Runtime needs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        measure_in_child(*sys.argv[2:])
    else:
        main(sys.argv[1:] or [*LIGHT_MODELS, *CACHED_MODELS])
