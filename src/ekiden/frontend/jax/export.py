"""From functions and artifacts to programs of jax.export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import export

from ekiden.runtime.errors import ImportModelError


def label_of(model: object) -> str:
    """A model as messages have it."""
    name = getattr(model, "__name__", "") or getattr(model, "fun_name", "")
    return f"function {name!r}" if name else "a JAX function"


def exported(
    function: Callable[..., Any],
    example_inputs: Sequence[object],
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
) -> export.Exported:
    """The program of a function. `dynamic_shapes` is one text for each of the example inputs, or
    one for all, as jax.export.symbolic_args_specs has it: ("batch, ...", None).

    Raises ImportModelError with what JAX says.
    """
    label = label_of(function)
    try:
        inputs: tuple[object, ...] = tuple(example_inputs)
        kwargs = dict(example_kwargs or {})
        if dynamic_shapes is not None:
            inputs = export.symbolic_args_specs(inputs, _specs(dynamic_shapes))
        traced = function if hasattr(function, "trace") else jax.jit(function)
        return export.export(traced, platforms=["cpu"])(*inputs, **kwargs)
    except Exception as error:  # whatever is wrong with the function is told by JAX
        text = str(error).strip()
        raise ImportModelError(f"import {label}: jax.export: {text}") from error


def _specs(given: object) -> object:
    return tuple(given) if isinstance(given, list) else given


def loaded(model: str | os.PathLike[str] | bytes, label: str) -> export.Exported:
    """A program that Exported.serialize gave. Raises ImportModelError for anything else."""
    data = model
    if not isinstance(data, bytes):
        try:
            with open(data, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ImportModelError(f"import {label}: {error.strerror}") from error
    try:
        return export.deserialize(bytearray(data))
    except Exception as error:
        text = str(error).strip().partition("\n")[0]
        raise ImportModelError(f"import {label}: no program of jax.export: {text}") from error
