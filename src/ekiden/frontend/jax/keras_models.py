"""Keras models on the JAX backend, traced as functions with input specifications."""

from __future__ import annotations

import inspect
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import jax
import keras
from jax import export

from ekiden.frontend.common.error_translation import check_readable, translate_errors
from ekiden.frontend.common.value import sanitize_name
from ekiden.runtime.errors import ImportModelError

InferenceFunction: TypeAlias = Callable[..., Any]


def load_keras_file(model: str | os.PathLike[str] | bytes, label: str) -> Any:  # noqa: ANN401 - Keras's
    """Load a .keras file, given by its path or its bytes. Raises ImportModelError for one that
    cannot be read.
    """
    if isinstance(model, bytes):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.keras"
            path.write_bytes(model)
            return load_keras_file(path, label)
    check_readable(model, label)
    if not zipfile.is_zipfile(model):
        text = "it is no zip archive, which .keras files are, or cut short"
        raise ImportModelError(f"import {label}: {text}")
    with translate_errors("Keras cannot load it", label, None, _LOAD_ADVICE):
        # Optimizer state and losses are not needed, and compiling would import their custom
        # objects.
        return keras.saving.load_model(os.fspath(model), compile=False)


_LOAD_ADVICE = (
    "ekiden.compile also takes the model as keras.saving.load_model gives it, which has arguments "
    "for what is not Keras's own"
)


def model_label(model: Any) -> str:  # noqa: ANN401 - Keras's
    """Return the name of a model for messages."""
    return f"model {getattr(model, 'name', type(model).__name__)!r}"


def inference_function(model: Any) -> InferenceFunction:  # noqa: ANN401 - Keras's
    """Return the inference function of a model, with its variables as constants."""
    trainable = [variable.value for variable in model.trainable_variables]
    non_trainable = [variable.value for variable in model.non_trainable_variables]
    takes_training = "training" in inspect.signature(model.call).parameters
    # Dropout and batch normalization run in inference mode.
    phase = {"training": False} if takes_training else {}

    def call(*inputs: Any) -> Any:  # noqa: ANN401 - arrays, in structures
        """Return the model's outputs."""
        result, _ = model.stateless_call(trainable, non_trainable, *inputs, **phase)
        return result

    return call


def trace_inputs(model: Any, label: str) -> tuple[InferenceFunction, list[Any], tuple[str, ...]]:  # noqa: ANN401
    """Return the function of a model, the specifications of its inputs, and their names.

    Raises ImportModelError for a model that has not been built.
    """
    tensors = list(getattr(model, "inputs", None) or ())
    structure = getattr(model, "input", None) or (tensors[0] if len(tensors) == 1 else tensors)
    if not tensors:
        text = "its inputs are not known: give example_inputs: compile(model, (x, ...))"
        raise ImportModelError(f"import {label}: {text}")
    names = tuple(
        sanitize_name(str(tensor.name)) or f"input_{i}" for i, tensor in enumerate(tensors)
    )
    scope = export.SymbolicScope()
    specs = [_input_spec(tensor, name, scope) for tensor, name in zip(tensors, names, strict=True)]
    call = inference_function(model)

    def call_on_leaves(*inputs: Any) -> Any:  # noqa: ANN401 - arrays
        """Call the model on the leaves of its input structure."""
        return call(keras.tree.pack_sequence_as(structure, list(inputs)))

    return call_on_leaves, specs, names


def _input_spec(tensor: Any, name: str, scope: export.SymbolicScope) -> jax.ShapeDtypeStruct:  # noqa: ANN401
    dims = [_dim_name(name, axis, extent) for axis, extent in enumerate(tensor.shape)]
    shape = export.symbolic_shape(", ".join(dims), scope=scope)
    return jax.ShapeDtypeStruct(shape, keras.backend.standardize_dtype(tensor.dtype))


def _dim_name(name: str, axis: int, extent: int | None) -> str:
    if extent is not None:
        return str(extent)
    return "batch" if axis == 0 else f"{name}_dim{axis}"
