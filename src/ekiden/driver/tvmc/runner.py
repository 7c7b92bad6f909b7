"""Implementation of `tvmc run`, which generates inputs, runs a package and times it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from ekiden import rpc
from ekiden.contrib.graph_executor import GraphModule
from ekiden.driver.tvmc.model import TVMCPackage, TVMCResult
from ekiden.runtime import BenchmarkResult, load_module
from ekiden.runtime import device as local_device
from ekiden.runtime.errors import InputError
from ekiden.runtime.executable.executable import Executable
from ekiden.runtime.executable.loading import load

__all__ = ["generate_tensor_data", "make_inputs_dict", "run_module"]

FILL_MODES = ("zeros", "ones", "random")
DEVICES = ("cpu", "cuda", "cl", "metal", "vulkan", "rocm", "webgpu")


def generate_tensor_data(shape: Sequence[int], dtype: str, fill_mode: str) -> np.ndarray[Any, Any]:
    """Return an array of zeros, ones or reproducible random numbers. Raises InputError for another
    mode.
    """
    if fill_mode not in FILL_MODES:
        raise InputError(
            f"tvmc: fill mode one of {', '.join(FILL_MODES)} expected, got '{fill_mode}'"
        )
    kind = np.dtype(dtype)
    if fill_mode != "random":
        return np.full(shape, int(fill_mode == "ones"), kind)
    generator = np.random.default_rng(0)
    if kind.kind in "iu":
        return generator.integers(0, 127, shape).astype(kind)
    if kind.kind == "b":
        return generator.integers(0, 2, shape).astype(kind)
    return generator.random(shape).astype(kind)


def make_inputs_dict(
    inputs_info: Mapping[str, tuple[Sequence[int], str]],
    inputs: Mapping[str, np.ndarray[Any, Any]] | None,
    fill_mode: str,
) -> dict[str, np.ndarray[Any, Any]]:
    """Return an array for each input, given or generated.

    Args:
        inputs_info: Shape and dtype of each input by name.
        inputs: Arrays by name.
        fill_mode: "zeros", "ones" or "random".

    Raises:
        InputError: An array for no input, an unknown mode, or an input whose shape is not fixed.
    """
    arrays = dict(inputs or {})
    if unknown := [name for name in arrays if name not in inputs_info]:
        names = ", ".join(inputs_info)
        raise InputError(f"tvmc: no input is called '{unknown[0]}'; there are: {names}")
    for name, (shape, dtype) in inputs_info.items():
        if name not in arrays:
            if any(d < 0 for d in shape):
                raise InputError(
                    f"tvmc: '{name}' has the shape {tuple(shape)}: --inputs or --input-shapes "
                    "says its size"
                )
            arrays[name] = generate_tensor_data(shape, dtype, fill_mode)
    return {name: arrays[name] for name in inputs_info}


def run_module(
    tvmc_package: TVMCPackage,
    device: str = "cpu",
    hostname: str | None = None,
    port: int | str = 9090,
    rpc_key: str | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    fill_mode: str = "random",
    repeat: int = 10,
    number: int = 10,
    profile: bool = False,
    end_to_end: bool = False,
    options: Mapping[str, object] | None = None,
) -> TVMCResult:
    """Run a package and time it.

    Args:
        tvmc_package: The package.
        device: "cpu", "cuda", "cl", "metal", "vulkan", ...
        hostname: The tracker of a server that runs it; None for this machine.
        port: The tracker's port.
        rpc_key: The server's key at the tracker.
        inputs: Arrays by name; others are generated.
        fill_mode: How: "zeros", "ones" or "random".
        repeat: How many times are measured.
        number: Of how many runs each is the mean.
        profile: Whether a report by kernels is printed.
        end_to_end: Whether times include the copies of inputs and outputs.
        options: Options of a microcontroller's project.

    Raises:
        InputError: An option has another value.
        RPCError: There is no such server.
    """
    package: object = tvmc_package
    if not isinstance(package, TVMCPackage):
        raise InputError(f"tvmc: run: a TVMCPackage expected, got {type(package).__name__}")
    if device not in DEVICES:
        raise InputError(f"tvmc: device one of {', '.join(DEVICES)} expected, got '{device}'")
    with tempfile.TemporaryDirectory(prefix="tvmc-") as folder:
        path = tvmc_package.library_path(folder)
        if tvmc_package.graph is None and hostname is None:
            return _run_program(load(path), inputs, fill_mode, repeat, number)
        if hostname is not None:
            session = _connect(hostname, int(port), rpc_key)
            session.upload(path)
            library: Any = session.load_module(str(tvmc_package.lib_name))
            on: Any = session.device(device)
        else:
            library, on = load_module(path), local_device(device)
        module = GraphModule(library["default"](on))
        shapes, dtypes = module.get_input_info()
        info = {name: (shapes[name], dtypes[name]) for name in shapes}
        arrays = make_inputs_dict(info, inputs, fill_mode)
        for name, array in arrays.items():
            module.set_input(name, array)
        module.run()
        if profile:
            print(load(path).profile(*arrays.values()))
        times: BenchmarkResult = module.benchmark(
            on, number=number, repeat=repeat, end_to_end=end_to_end
        )
        outputs = {
            f"output_{n}": module.get_output(n).numpy() for n in range(module.get_num_outputs())
        }
    return TVMCResult(outputs, times)


def _connect(hostname: str, port: int, key: str | None) -> rpc.RPCSession:
    if key is None:
        return rpc.connect(hostname, port)
    return rpc.connect_tracker(hostname, port).request(key)


def _run_program(
    program: Executable,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None,
    fill_mode: str,
    repeat: int,
    number: int,
) -> TVMCResult:
    """Run a program that is no graph, such as one with control flow; times are of whole calls."""
    info = {t.name: (cast("Sequence[int]", t.shape), t.dtype) for t in program.inputs}
    arrays = make_inputs_dict(info, inputs, fill_mode)
    result: object = program(**arrays)
    seconds = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(number):
            program(**arrays)
        seconds.append((time.perf_counter() - start) / number)
    results = result if isinstance(result, tuple) else (result,)
    outputs = {f"output_{n}": np.asarray(tensor) for n, tensor in enumerate(results)}
    return TVMCResult(outputs, BenchmarkResult(tuple(seconds)))
