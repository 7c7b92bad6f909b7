"""Re-exports at TVM's path `runtime.module`, such as `BenchmarkResult`."""

from ekiden.runtime import Module, enabled, load_module, num_threads
from ekiden.runtime.profile.timing import BenchmarkResult

__all__ = ["BenchmarkResult", "Module", "enabled", "load_module", "num_threads"]
