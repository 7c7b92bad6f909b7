"""Bring your own codegen: regions of a model in engines of others, because a user asks for it.

module = byoc.partition(relay.frontend.from_onnx(model)[0], "onnxruntime")
exe = ekiden.compile(module)             # exe.save: the artifact says what it needs
"""

from ekiden.byoc.backend import Backend, partition, register

__all__ = ["Backend", "partition", "register"]
