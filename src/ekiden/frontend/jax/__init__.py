"""JAX: functions, and programs that jax.export saved, as StableHLO.

entry       a function or an artifact -> module     export      functions to programs
program     inputs, outputs, symbolic dimensions    graph       the walk over operations
node        an operation as converters see it       registry    operation -> converter
dtype       types and constants of MLIR             converters  operations by family
"""

from ekiden.frontend.jax.registry import register

__all__ = ["register"]
