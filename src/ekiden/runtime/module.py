"""TVM's module `runtime.module`; what its programs import as `runtime.module.BenchmarkResult` and
the like stands elsewhere here.
"""

from ekiden.runtime import Module, enabled, load_module, num_threads
from ekiden.runtime.profile.timing import BenchmarkResult

__all__ = ["BenchmarkResult", "Module", "enabled", "load_module", "num_threads"]
