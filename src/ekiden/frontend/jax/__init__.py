"""JAX: functions, programs that jax.export saved, models of Keras, and StableHLO itself.

entry         a function or an artifact -> module     export      functions to programs
program       inputs, outputs, symbolic dimensions    graph       the walk over operations
node          an operation as converters see it       registry    operation -> converter
dtype         types and constants of MLIR             converters  operations by family
stablehlo     text and bytecode to modules of MLIR    narrow      integers and floats below 8 bits
keras_models  models of Keras to functions
"""

from typing import TYPE_CHECKING

from ekiden._lazy import load_module

if TYPE_CHECKING:
    from ekiden.frontend.jax.registry import register as register


def __getattr__(name: str) -> object:
    """`register`. Raises ModuleNotFoundError where JAX is missing."""
    if name != "register":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(load_module("ekiden.frontend.jax.registry"), name)
    globals()[name] = found
    return found
