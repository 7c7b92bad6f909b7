"""Documentation of operators, made from their declarations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping
from types import FunctionType

from ekiden.ir.node import Node
from ekiden.ir.op import OPS, OpDef


def attach(prefix: str, names: Mapping[str, object]) -> None:
    """Give each operator `prefix` + name its description, the docstring of the function of that
    name, and the function's docstring what the declaration says.
    """
    for name, definition in OPS.rows():
        function = names.get(name.removeprefix(prefix)) if name.startswith(prefix) else None
        if isinstance(function, FunctionType) and function.__doc__ and not definition.description:
            text = inspect.cleandoc(function.__doc__)
            OPS[name] = dataclasses.replace(definition, description=" ".join(text.split()))
            function.__doc__ = f"{text}\n\n{usage(OPS[name])}"


def usage(definition: OpDef) -> str:
    """The signature of an operator, its result, its attributes and how it fuses, as plain text."""
    lines = [f"Operator: {signature(definition)}"]
    if definition.result:
        lines.append(f"Result: {definition.result}")
    if definition.attrs is not None:
        lines.append(f"Attributes ({definition.attrs.type_key}):")
        lines += [f"    {name}: {kind} = {default}" for name, kind, default in fields(definition)]
    lines.append(f"Fusion: {definition.pattern.name}")
    return "\n".join(lines)


def signature(definition: OpDef) -> str:
    """`nn.dense(data, weight)`; the one argument of a variadic operator is a tuple."""
    arguments = ", ".join(definition.arguments)
    return f"{definition.name}({f'({arguments}, ...)' if definition.variadic else arguments})"


def fields(definition: OpDef) -> list[tuple[str, str, str]]:
    """(name, type, default) of each attribute."""
    if definition.attrs is None:
        return []
    every = dataclasses.fields(definition.attrs)  # type: ignore[arg-type]
    return [(f.name, str(f.type), _default(f.default)) for f in every]


def _default(value: object) -> str:
    if value is dataclasses.MISSING:
        return "required"
    return str(value) if isinstance(value, Node) else repr(value)
