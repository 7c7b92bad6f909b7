"""Entry points of the ONNX frontend (see ekiden.frontend.registry.FrontendEntry)."""

from __future__ import annotations

from typing import cast

from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.common.survey import Survey
from ekiden.frontend.onnx.importer import import_onnx
from ekiden.frontend.onnx.load import ModelSource
from ekiden.frontend.onnx.survey import survey as survey_onnx


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import an ONNX model from a path, bytes or an onnx.ModelProto."""
    return import_onnx(cast(ModelSource, model), options.shape)


def survey(model: object) -> Survey:
    """Return the operators, inputs, outputs and unsupported nodes of a model without
    importing it.
    """
    return survey_onnx(cast(ModelSource, model))
