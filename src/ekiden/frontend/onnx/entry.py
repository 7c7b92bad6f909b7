"""What the table of frontends asks of ONNX (see ekiden.frontend.table.Entry)."""

from __future__ import annotations

from typing import cast

from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.common.survey import Survey
from ekiden.frontend.onnx.importer import import_onnx
from ekiden.frontend.onnx.load import Source
from ekiden.frontend.onnx.survey import survey as survey_onnx


def import_model(model: object, options: ImportOptions) -> ImportedModule:
    """A path, bytes or an onnx.ModelProto as a module."""
    return import_onnx(cast(Source, model), options.shape)


def survey(model: object) -> Survey:
    """What the model contains."""
    return survey_onnx(cast(Source, model))
