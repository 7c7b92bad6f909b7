"""Instructions, code size, constants, RAM and stack of small models on Cortex-M boards, measured
and predicted.

QEMU counts a nanosecond for each instruction (-icount shift=0), so the figures are the same on
every machine; they say nothing of waits for memory. It needs gcc-arm-none-eabi,
libnewlib-arm-none-eabi, qemu-system-arm, make and onnxruntime. Arguments: names of models, else
all.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx

import ekiden
from ekiden import micro

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "micro"))
from micro_models import MODELS, quantized  # beside the tests that hold them

BENCHMARK_BOARDS = {
    "m7": ("qemu-mps2-an500", "c -mcpu=cortex-m7"),
    "m55": ("qemu-mps3-an547", "c -mcpu=cortex-m55"),
}


def measure_board(path: Path, board: str, folder: Path) -> str:
    """Return the table row of a model on a board: instructions, code, constants, memory
    and stack.
    """
    template, target = BENCHMARK_BOARDS[board]
    program = micro.compile(str(path), target)
    project = micro.generate_project(template, program, folder / board, {"icount": True})
    project.build()
    sizes, shape = project.sizes(), program.module.inputs[0].shape
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    with micro.Session(project.open_transport()) as session:
        executor = session.create_aot_executor()
        executor.run({0: x})
        count = executor.benchmark(number=1, repeat=1).mean * 1e9
        stack = executor.measure_stack()
    predicted = micro.footprint(program).stack
    off = np.abs(executor.get_output().numpy() - ekiden.compile(str(path))(x).numpy()).max()
    row = f"{count / 1e6:9.3f} M {sizes.model_code:7} {sizes.model_constants:8}"
    return f"{board:4} {row} {sizes.model_workspace:8} {stack:6} {predicted:6} {off:9.1e}"


def main(names: list[str]) -> None:
    """Print the table."""
    print(f"{'model':13} board instructions  code constants   memory  stack  bound difference")
    for name in names or MODELS:
        for kind in ("float", "int8"):
            for board in BENCHMARK_BOARDS:
                with tempfile.TemporaryDirectory() as scratch:
                    folder, model = Path(scratch), MODELS[name]()
                    path = folder / "float.onnx"
                    onnx.save(model, path)
                    path = quantized(model, folder) if kind == "int8" else path
                    print(f"{name:8} {kind:5}", measure_board(path, board, folder), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
