"""ONNX frontend: `from_onnx` imports a model, `register` adds a converter, `survey` lists a model's
contents.
"""

from ekiden.frontend.common.survey import Survey
from ekiden.frontend.onnx.importer import from_onnx
from ekiden.frontend.onnx.registry import register
from ekiden.frontend.onnx.survey import survey

__all__ = ["Survey", "from_onnx", "register", "survey"]
