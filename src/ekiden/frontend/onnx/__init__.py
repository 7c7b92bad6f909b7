"""ONNX models: `from_onnx` makes an IRModule of a file, its bytes or a parsed model; `register`
teaches it an operator; `survey` says what a model contains.
"""

from ekiden.frontend.common.survey import Survey
from ekiden.frontend.onnx.importer import from_onnx
from ekiden.frontend.onnx.registry import register
from ekiden.frontend.onnx.survey import survey

__all__ = ["Survey", "from_onnx", "register", "survey"]
