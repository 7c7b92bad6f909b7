"""Peak activation memory of real models, Ekiden beside ONNX Runtime.

    python benchmarks/peak_memory.py [MODEL ...]

Each engine runs each model in processes of its own, in which the C library gives every freed block
of 4 KB and more back to the system at once. The measure is what the first run leaves behind in
anonymous memory (arenas, scratch memory of threads), and how far above its start the resident
memory rises during later runs. Weights are loaded and packed before, code is touched by the first
run. ONNX Runtime runs without its own arena, which rounds up and keeps more: each tensor is freed
when it is dead. `predicted` is what Ekiden's compiler says of static models.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "road"))
from road_models import cached_model, light_model

import ekiden

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "resnet50", "shufflenet", "squeezenet",
    "vgg19", "zfnet512",
)  # fmt: skip
CACHED = (
    "attacut_c", "ddddocr_det", "deepcut", "magika_v3_3", "minilm_l3_f32", "oww_alexa_mlp",
    "oww_timer_mlp", "ppocr2_cls", "ppocr4_det",
)  # fmt: skip
RUNS = 3
REPEATS = 3


TUNABLES = "glibc.malloc.mmap_threshold=4096:glibc.malloc.mmap_max=1000000"


def resident(what: str) -> int:
    """Bytes of memory, as the system says: VmRSS, its peak VmHWM, RssAnon that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{what}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"peak_memory: the system does not say {what}")


def child(engine: str, model: str, inputs: str) -> None:
    """Measure one engine in this process; print the bytes."""
    feed = dict(np.load(inputs))
    if engine == "ekiden":
        exe = ekiden.load(model)
        ekiden.runtime.num_threads()

        def run() -> None:
            exe(**feed)
    else:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.enable_cpu_mem_arena = False
        session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])

        def run() -> None:
            session.run(None, feed)

    gc.collect()
    before = resident("RssAnon")
    run()
    kept = max(0, resident("RssAnon") - before)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what is resident now
    start = resident("VmRSS")
    for _ in range(RUNS):
        run()
    print(kept + resident("VmHWM") - start)


def measure(engine: str, model: Path, inputs: Path) -> int:
    """The median of three processes."""
    command = [sys.executable, __file__, "--child", engine, str(model), str(inputs)]
    settings = {**os.environ, "GLIBC_TUNABLES": TUNABLES}
    found = [
        subprocess.run(command, capture_output=True, text=True, check=True, env=settings).stdout
        for _ in range(REPEATS)
    ]
    return sorted(map(int, found))[REPEATS // 2]


def prepare(name: str, folder: Path) -> tuple[Path, Path]:
    """The ONNX file of a model, and that of its inputs."""
    inputs = folder / f"{name}.npz"
    if name in CACHED:
        entry = cached_model(name)
        case = max(entry.cases, key=lambda c: int(np.prod(list(c["dims"].values()) or [1])))
        np.savez(inputs, **entry.feed(case))
        return entry.path, inputs
    model = light_model(name)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    given = model.graph.input[0]
    shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
    np.savez(inputs, **{given.name: np.random.default_rng(0).random(shape, np.float32)})
    return path, inputs


def main(names: list[str]) -> None:
    """Print a row for each model, and how many need at most what ONNX Runtime needs."""
    good = 0
    print(f"{'model':18} {'ekiden':>10} {'onnxruntime':>12} {'ratio':>6} {'predicted':>10}  KiB")
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            model, inputs = prepare(name, Path(folder))
            exe = ekiden.compile(model)
            artifact = Path(folder) / f"{name}.eki"
            exe.save(artifact)
            ours = measure("ekiden", artifact, inputs)
            theirs = measure("onnxruntime", model, inputs)
            predicted = exe.peak_memory
            shown = f"{predicted // 1024:10}" if predicted is not None else f"{'-':>10}"
            good += ours <= theirs
            numbers = f"{ours // 1024:10} {theirs // 1024:12} {ours / max(theirs, 1):6.2f}"
            print(f"{name:18} {numbers} {shown}", flush=True)
    print(f"{good} of {len(names)} need at most what ONNX Runtime needs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*sys.argv[2:])
    else:
        main(sys.argv[1:] or [*LIGHT, *CACHED])
