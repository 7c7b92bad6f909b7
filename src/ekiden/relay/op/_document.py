"""Documentation of operators, generated from their declarations."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType

from ekiden.ir.node import Node
from ekiden.ir.op import OPS, OpDef


def make_documenting_getattr(
    prefix: str, load_name: Callable[[str], object]
) -> Callable[[str], object]:
    """Return a package's `__getattr__` that documents operator functions when they are first
    loaded.
    """

    def load_with_docs(name: str) -> object:
        """Load a name of the package and document it. Raises AttributeError."""
        value = load_name(name)
        if isinstance(value, ModuleType):
            attach_descriptions(f"{prefix}{name}.", vars(value))
        else:
            attach_descriptions(prefix, {name: value})
        return value

    return load_with_docs


def attach_descriptions(prefix: str, names: Mapping[str, object]) -> None:
    """Set the description of each operator to its function's docstring, and append the declared
    usage to the docstring.
    """
    for name, function in names.items():
        if not (isinstance(function, FunctionType) and function.__doc__):
            continue
        # `OPS.get` would import the module of the row, which may be the one being imported.
        definition = OPS[prefix + name] if OPS.has(prefix + name) else None
        # Once: a second export of the operator would append its usage again.
        if definition is not None and not definition.description:
            text = inspect.cleandoc(function.__doc__)
            OPS[prefix + name] = dataclasses.replace(definition, description=" ".join(text.split()))
            function.__doc__ = f"{text}\n\n{format_usage(OPS[prefix + name])}"


def format_usage(definition: OpDef) -> str:
    """Format an operator's signature, result, attributes and fusion pattern as plain text."""
    lines = [f"Operator: {format_signature(definition)}"]
    if definition.result:
        lines.append(f"Result: {definition.result}")
    if definition.attrs is not None:
        lines.append(f"Attributes ({definition.attrs.type_key}):")
        lines += [
            f"    {name}: {kind} = {default}" for name, kind, default in attr_fields(definition)
        ]
    lines.append(f"Fusion: {definition.pattern.name}")
    return "\n".join(lines)


def format_signature(definition: OpDef) -> str:
    """Format the signature of an operator, such as `nn.dense(data, weight)`.

    The one argument of a variadic operator is shown as a tuple.
    """
    arguments = ", ".join(definition.arguments)
    return f"{definition.name}({f'({arguments}, ...)' if definition.variadic else arguments})"


def attr_fields(definition: OpDef) -> list[tuple[str, str, str]]:
    """Return the name, type and default of each attribute field."""
    if definition.attrs is None:
        return []
    every = dataclasses.fields(definition.attrs)  # type: ignore[arg-type]
    return [(f.name, str(f.type), _format_default(f.default)) for f in every]


def _format_default(value: object) -> str:
    if value is dataclasses.MISSING:
        return "required"
    return str(value) if isinstance(value, Node) else repr(value)
