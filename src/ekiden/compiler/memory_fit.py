"""Prediction of the run-time memory of a model by part, and of the largest dimension that fits.

A model is compiled without its kernels (tier "quick"), since types, packed weights and the memory
plan do not depend on their code. What a run needs grows with a dimension nearly linearly, so the
largest size is found by secants between a size that fits and one that does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ekiden import runtime
from ekiden.compiler.artifact import plan_program
from ekiden.compiler.options import DEFAULT_OPTIONS, CompileOptions
from ekiden.compiler.sample_inputs import element_dtype
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.registry import identify_model
from ekiden.runtime.artifact.metadata import TensorInfo, predicted_peak_memory, tensor_infos
from ekiden.runtime.devices.memory import free_memory
from ekiden.runtime.errors import CompileError, InputError
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from ekiden.compiler.build import Model

__all__ = ["MemoryFit", "RunMemory", "find_largest_size", "fit_memory", "run_memory"]

MAX_SIZE = 1 << 31
"""The largest size of a dimension that is tried."""
MAX_TRIALS = 40
"""Sizes that are tried: linear growth needs four, and halving alone 31."""


@dataclass(frozen=True, slots=True)
class RunMemory:
    """Memory of a run at given dimension sizes, in bytes."""

    weights: int
    """Constants as the kernels read them; those mapped from a file count too."""
    inputs: int
    activations: int
    """Peak of intermediate tensors and results. Scratch memory of kernels is not counted."""

    @property
    def total(self) -> int:
        """Return the sum of the parts."""
        return self.weights + self.inputs + self.activations


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Memory of a model, and the largest size of one of its dimensions that fits."""

    dims: Mapping[str, int]
    """The sizes of `memory`."""
    memory: RunMemory
    free_bytes: int
    growing_dim: str = ""
    """The dimension whose largest size was asked for; empty for none."""
    largest_size: int | None = None
    """Its largest size that fits: 0 if not even 1 does, None if memory does not depend on it."""

    @property
    def fits(self) -> bool:
        """Return whether a run at `dims` fits."""
        return self.memory.total <= self.free_bytes


def run_memory(
    model: Model, dims: Mapping[str, int], options: CompileOptions = DEFAULT_OPTIONS
) -> RunMemory:
    """Return the memory of a run of a model.

    Args:
        model: What `ekiden.compile` accepts; its symbolic dimensions must be those of a frontend
            that honours `shape`.
        dims: The size of each symbolic dimension of its inputs.
        options: The options of the compilation, without shapes.

    Raises InputError if a dimension has no size or cannot have it, CompileError if the memory
    depends on data, and what `ekiden.compile` raises.
    """
    return _memory_of(_plan(model, dims, options))


def _plan(model: Model, dims: Mapping[str, int], options: CompileOptions) -> runtime.Executable:
    """Return the memory plan of a model at given dimension sizes."""
    source = identify_model(model)
    plan = plan_program(source, options)
    symbols = _symbols_of(plan)
    if unknown := [name for name in dims if name not in symbols]:
        symbol_names = ", ".join(symbols) or "none"
        raise InputError(
            f"fit: no dimension '{unknown[0]}' in the inputs; there are: {symbol_names}"
        )
    if missing := [name for name in symbols if name not in dims]:
        raise InputError(f"fit: dimension '{missing[0]}' needs a size: --dim {missing[0]}=N")
    if not symbols:
        return plan
    # An expression of symbols (2 * n) follows from the sizes of its symbols.
    shapes = {
        info.name: tuple(dims.get(dim) if isinstance(dim, str) else dim for dim in info.shape)
        for info in _inputs(plan)
    }
    try:
        return plan_program(source, replace(options, inputs=ImportOptions(shape=shapes)))
    except CompileError as error:
        # A size that the model excludes: the error names the input or the node.
        sizes = ", ".join(f"{name} = {size}" for name, size in dims.items())
        raise InputError(f"fit: {sizes}: {error}") from error


def _inputs(plan: runtime.Executable) -> tuple[TensorInfo, ...]:
    return tensor_infos(plan.metadata, plan.source)[0]


def _symbols_of(plan: runtime.Executable) -> list[str]:
    """Return the symbolic dimensions of the inputs, in order; not the expressions of them."""
    dims = (dim for info in _inputs(plan) for dim in info.shape if isinstance(dim, str))
    return list(dict.fromkeys(dim for dim in dims if dim.isidentifier()))


def _memory_of(plan: runtime.Executable) -> RunMemory:
    peak = predicted_peak_memory(plan.metadata)
    if peak is None:
        raise CompileError("fit: the memory of a run depends on data (loops, recursion, devices)")
    sizes = [
        math.prod(int(dim) for dim in info.shape) * element_dtype(info).itemsize
        for info in _inputs(plan)
    ]
    weights = sum(constant.nbytes for constant in plan.constants if constant is not None)
    return RunMemory(weights, sum(sizes), peak)


def fit_memory(
    model: Model,
    dims: Mapping[str, int],
    *,
    growing_dim: str = "",
    free_bytes: int | None = None,
    options: CompileOptions = DEFAULT_OPTIONS,
) -> MemoryFit:
    """Return the memory of a model's run by part, and the largest size of a dimension that fits.

    Args:
        model: What `ekiden.compile` accepts.
        dims: Sizes of the symbolic dimensions of its inputs.
        growing_dim: The dimension whose largest size is searched for; its size in `dims` is that of
            the reported memory, 1 by default.
        free_bytes: The memory that there is; None for what this process may still allocate.
        options: The options of the compilation, without shapes.

    Raises what `run_memory` raises, InputError for an unknown dimension.
    """
    if free_bytes is None:
        free_bytes = free_memory()
        if free_bytes is None:
            raise InputError("fit: this system does not say how much memory is free: --memory N")
    if growing_dim:
        dims = {growing_dim: 1, **dims}
    memory = run_memory(model, dims, options)
    largest: int | None = None
    if growing_dim:
        largest = find_largest_size(
            lambda size: run_memory(model, {**dims, growing_dim: size}, options).total, free_bytes
        )
    return MemoryFit(dims, memory, free_bytes, growing_dim, largest)


def find_largest_size(bytes_of: Callable[[int], int], limit: int) -> int | None:
    """Return the largest size from 1 on whose bytes are within a limit, by galloping and bisection:
    0 if there is none, None if the bytes do not grow up to MAX_SIZE.

    Args:
        bytes_of: The bytes at a size, which never fall as it grows; nearly linear functions need
            few calls.
        limit: The maximum bytes.
    """
    low, low_bytes = 1, bytes_of(1)
    if low_bytes > limit:
        return 0
    high, high_bytes = 2, bytes_of(2)
    for _ in range(MAX_TRIALS):
        if high_bytes > limit:
            break
        if high == MAX_SIZE:
            return None
        slope = (high_bytes - low_bytes) / (high - low)
        step = (limit - high_bytes) / slope + 1 if slope else high
        low, low_bytes = high, high_bytes
        high = min(MAX_SIZE, high + max(1, int(step)))
        high_bytes = bytes_of(high)
    for trial in range(MAX_TRIALS):
        if high - low <= 1:
            return low
        # The secant's size, and in between the middle, which ends curves that secants creep along.
        slope = (high_bytes - low_bytes) / (high - low)
        size = low + int((limit - low_bytes) / slope) if trial % 3 < 2 else (low + high) // 2
        size = min(max(size, low + 1), high - 1)
        size_bytes = bytes_of(size)
        if size_bytes <= limit:
            low, low_bytes = size, size_bytes
        else:
            high, high_bytes = size, size_bytes
    return low
