"""Executors with TVM's interface (at TVM's place)."""

from ekiden.runtime.executor import aot_executor
from ekiden.runtime.executor.aot_executor import AotModule

__all__ = ["AotModule", "aot_executor"]
