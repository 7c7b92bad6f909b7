"""Entry point of the frontend for Relay's text format (see
ekiden.frontend.registry.FrontendEntry).
"""

from __future__ import annotations

import os
from typing import cast

from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import ImportOptions
from ekiden.frontend.common.specialize_inputs import specialize_input_shapes
from ekiden.relay.parser import parse
from ekiden.runtime.errors import ImportModelError


def import_model(model: object, options: ImportOptions) -> ImportResult:
    """Import a module from a file or bytes of Relay text.

    Constants that the text does not have inline are read from its metadata section.

    Raises ImportModelError for what is no text or cannot be read and for shapes that the program
    excludes, ParseError with line, column and a caret, and TypeInferenceError.
    """
    name, data = "text", model
    if not isinstance(model, bytes):
        path = cast("str | os.PathLike[str]", model)
        name = os.path.basename(os.fspath(path))
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            why = error.strerror or error
            raise ImportModelError(f"import {os.fspath(path)!r}: {why}") from error
    try:
        text = cast(bytes, data).decode("utf-8")
    except UnicodeDecodeError as error:
        where = f"byte {error.start} begins no character of UTF-8"
        raise ImportModelError(f"import {name!r}: no text of Relay: {where}") from error
    module = parse(text, name)
    if "main" not in {function.name_hint for function in module.functions}:
        have = ", ".join(f"@{global_var.name_hint}" for global_var in module.functions) or "none"
        raise ImportModelError(f"import {name!r}: a function @main is expected, there are: {have}")
    if options.shape:
        module = specialize_input_shapes(module, options.shape)
    return ImportResult(module)
