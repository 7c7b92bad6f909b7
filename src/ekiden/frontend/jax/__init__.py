"""Importer of JAX: functions, programs of jax.export, Keras models on the JAX backend, and
StableHLO.

    entry          a function or an artifact -> module
    export         functions to programs
    program        inputs, outputs, symbolic dimensions
    graph          the walk over operations
    node           an operation as converters see it
    registry       operation -> converter
    dtype          types and constants of MLIR
    converters     operations by family
    stablehlo      text and bytecode to modules of MLIR
    narrow_dtypes  integers and floats below 8 bits
    keras_models   models of Keras to functions
"""

from typing import TYPE_CHECKING

from ekiden._lazy import load_module

if TYPE_CHECKING:
    from ekiden.frontend.jax.registry import register as register


def __getattr__(name: str) -> object:
    """Return `register`, imported on first use. Raises ModuleNotFoundError where JAX is missing."""
    if name != "register":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    attribute: object = getattr(load_module("ekiden.frontend.jax.registry"), name)
    globals()[name] = attribute
    return attribute
