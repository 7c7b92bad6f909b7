"""TVM's command-line driver and its API: load, tune, compile and run a model.

    model = tvmc.load("model.onnx", shape_dict={"x": [1, 3, 224, 224]})
    package = tvmc.compile(model, target="llvm", package_path="model.tar")
    print(tvmc.run(package, device="cpu"))

`python -m ekiden.tvmc compile model.onnx --target llvm -o model.tar` does the same.
"""

from typing import TYPE_CHECKING

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden._lazy import attach

if TYPE_CHECKING:
    from ekiden.driver.tvmc.autotuner import tune_model
    from ekiden.driver.tvmc.autotuner import tune_model as tune
    from ekiden.driver.tvmc.compiler import compile_model
    from ekiden.driver.tvmc.compiler import compile_model as compile
    from ekiden.driver.tvmc.frontends import load_model
    from ekiden.driver.tvmc.frontends import load_model as load
    from ekiden.driver.tvmc.model import (
        TVMCException,
        TVMCImportError,
        TVMCModel,
        TVMCPackage,
        TVMCResult,
    )
    from ekiden.driver.tvmc.runner import run_module
    from ekiden.driver.tvmc.runner import run_module as run

__all__ = [
    "TVMCException",
    "TVMCImportError",
    "TVMCModel",
    "TVMCPackage",
    "TVMCResult",
    "compile",
    "compile_model",
    "load",
    "load_model",
    "run",
    "run_module",
    "tune",
    "tune_model",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(
        __name__,
        {
            "autotuner": "tune:tune_model tune_model",
            "compiler": "compile:compile_model compile_model",
            "frontends": "load:load_model load_model",
            "model": "TVMCException TVMCImportError TVMCModel TVMCPackage TVMCResult",
            "runner": "run:run_module run_module",
        },
    )
