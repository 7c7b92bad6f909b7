"""From functions and artifacts to programs of jax.export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import export

from ekiden.frontend.common.libraries import check_readable, told_by


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

    Raises ImportModelError with what JAX says, and the line of the function where it stopped.
    """
    label = label_of(function)
    inputs: tuple[object, ...] = tuple(example_inputs)
    if dynamic_shapes is not None:
        with told_by("dynamic_shapes", label, None, _MEANT):
            inputs = export.symbolic_args_specs(inputs, _specs(dynamic_shapes))
    with told_by("jax.export", label, _LIBRARIES):
        traced = function if hasattr(function, "trace") else jax.jit(function)
        return export.export(traced, platforms=["cpu"])(*inputs, **(example_kwargs or {}))


_LIBRARIES = ("jax", "jaxlib", "flax")
"""Those whose lines are none of the user's."""


_MEANT = 'one text for each of the example inputs is meant, or None, as in ("batch, 3", None)'


def _specs(given: object) -> object:
    return tuple(given) if isinstance(given, list) else given


def loaded(model: str | os.PathLike[str] | bytes, label: str) -> export.Exported:
    """A program that Exported.serialize gave. Raises ImportModelError for anything else."""
    data = model
    if not isinstance(data, bytes):
        check_readable(data, label)
        with open(data, "rb") as file:
            data = file.read()
    with told_by("no program of jax.export, or cut short", label, None):
        return export.deserialize(bytearray(data))
