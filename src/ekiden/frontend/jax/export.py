"""Export of functions by jax.export, and loading of serialized programs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax import export

from ekiden.frontend.common.error_translation import translate_errors
from ekiden.runtime.debug.short_repr import short_repr
from ekiden.runtime.errors import ImportModelError


def model_label(model: object) -> str:
    """Return the name of a model in messages."""
    name = getattr(model, "__name__", "") or getattr(model, "fun_name", "")
    return f"function {name!r}" if name else "a JAX function"


def export_function(
    function: Callable[..., Any],
    example_inputs: Sequence[object],
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    label: str = "",
) -> export.Exported:
    """Export a function with example inputs as a jax.export program.

    Args:
        function: the function to trace.
        example_inputs: its positional arguments.
        example_kwargs: its keyword arguments.
        dynamic_shapes: one text for each of the example inputs, or one for all, as
            jax.export.symbolic_args_specs has it: ("batch, ...", None).
        label: the model, as messages have it.

    Raises:
        ImportModelError: with JAX's message and the line of the function where it stopped.
    """
    label = label or model_label(function)
    inputs: tuple[object, ...] = tuple(example_inputs)
    if dynamic_shapes is not None:
        _check_specs(dynamic_shapes, label)
        with translate_errors("dynamic_shapes", label, None, _DYNAMIC_SHAPES_HELP):
            inputs = export.symbolic_args_specs(inputs, _as_specs_tuple(dynamic_shapes))
    with translate_errors("jax.export", label, _LIBRARY_PACKAGES):
        traced = function if hasattr(function, "trace") else jax.jit(function)
        return export.export(traced, platforms=["cpu"])(*inputs, **(example_kwargs or {}))


_LIBRARY_PACKAGES = ("jax", "jaxlib", "flax", "keras")
"""Those whose lines are none of the user's."""


_DYNAMIC_SHAPES_HELP = (
    'one text for each of the example inputs is meant, or None, as in ("batch, 3", None)'
)


def _check_specs(specs: object, label: str) -> None:
    """Raise ImportModelError for shape specifications other than texts, None, or structures of
    them.
    """
    leaves = jax.tree_util.tree_leaves(specs, is_leaf=lambda leaf: leaf is None)
    for leaf in leaves:
        if leaf is not None and not isinstance(leaf, str):
            text = f"import {label}: dynamic_shapes: {_DYNAMIC_SHAPES_HELP}, got {short_repr(leaf)}"
            raise ImportModelError(text)


def _as_specs_tuple(specs: object) -> object:
    return tuple(specs) if isinstance(specs, list) else specs


def argument_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Return the names of a function's first `count` positional arguments, () where Python does not
    know them.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            remaining_count = count - len(names)
            names += [f"{parameter.name}[{i}]" for i in range(remaining_count)]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return tuple(names[:count])


def deserialize_program(data: bytes, label: str) -> export.Exported:
    """Deserialize a program that Exported.serialize wrote."""
    with translate_errors("no program of jax.export, or cut short", label, None):
        return export.deserialize(bytearray(data))
