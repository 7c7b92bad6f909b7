"""Bring your own codegen: regions of a model offloaded to third-party engines on request.

module = byoc.partition(relay.frontend.from_onnx(model)[0], "onnxruntime")
exe = ekiden.compile(module)              # exe.save: the artifact says what it needs
exe = ekiden.compile(model, byoc="auto")  # the regions that an engine runs faster than Ekiden
"""

import ekiden.runtime as _runtime  # noqa: F401  # before a module of it (see ekiden._lazy)
from ekiden.byoc.backend import Backend, partition, register
from ekiden.byoc.backend_selection import Choice, choose

__all__ = ["Backend", "Choice", "choose", "partition", "register"]
