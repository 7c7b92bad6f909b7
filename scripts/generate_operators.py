#!/usr/bin/env python3
"""Generate docs/operators.md from the operator declarations."""

import ast
import inspect
import sys
import textwrap
from collections.abc import Iterator

from ekiden.ir.attrs import Attrs
from ekiden.ir.op import OPS, OpDef
from ekiden.relay.op._document import attr_fields, format_signature

OPERATORS_HEAD = """# Operators

Made of the declarations in `src/ekiden/relay/op` by `scripts/generate_operators.py`.

A call in Relay text is `name(arguments, attribute=value, ...)`; in Python, the function of that
name in `ekiden.relay.op` (`relay.op.nn.dense(data, weight, units=10)`). An attribute without a
default is required. *Result* says what the type relation gives, *Fusion* how the operator joins
others in one kernel.
"""


def attribute_docstrings(kind: type[Attrs]) -> dict[str, str]:
    """Return the docstrings below the fields of an attribute class by field name."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    assert isinstance(body, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        is_field = isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if is_field and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            docs[field.target.id] = " ".join(str(after.value.value).split())
    return docs


def attribute_table(definition: OpDef) -> Iterator[str]:
    """Yield the lines of an operator's attribute table."""
    kind = definition.attrs
    if kind is None:
        return
    docs = attribute_docstrings(kind)
    yield f"Attributes (`{kind.type_key}`): " + " ".join((inspect.getdoc(kind) or "").split())
    yield ""
    yield "| attribute | type | default | meaning |" if docs else "| attribute | type | default |"
    yield "|---|---|---|---|" if docs else "|---|---|---|"
    for name, type_name, default in attr_fields(definition):
        shown = "" if default == "required" else f"`{default}`"
        row = f"| `{name}` | `{type_name.replace('|', 'or')}` | {shown} |"
        yield f"{row} {docs.get(name, '')} |" if docs else row
    yield ""


def operator_properties(definition: OpDef) -> Iterator[str]:
    """Yield the operator properties that passes query; "" for those that do not apply."""
    yield "arguments may change places" if definition.commutes else ""
    yield f"linear: {definition.linear.value}" if definition.linear.name != "NO" else ""
    yield (
        f"transposed: {definition.transpose_rule.value}"
        if definition.transpose_rule.name != "NO"
        else ""
    )
    yield (
        f"makes borders of {definition.padding_absorption.value}"
        if definition.padding_absorption.name != "NO"
        else ""
    )
    if definition.channels is not None:
        result, weight = definition.channels
        yield f"output channels: axis {result} of the result, {weight} of the weight"
    yield f"faster and less exact: `{definition.fast}`" if definition.fast else ""
    yield "costs more than a read" if definition.is_expensive else ""
    yield "reads shapes alone" if definition.shape_only else ""
    yield "f(x * s) = f(x) * s for s > 0" if definition.homogeneous else ""
    yield f"all elements are {definition.fills}" if definition.fills is not None else ""
    if definition.gradient_of is not None:
        forward, argument_index = definition.gradient_of
        yield f"the gradient of `{forward}` for `{OPS[forward].arguments[argument_index]}`"
    yield f"`{definition.quantizes}` on integers" if definition.quantizes else ""
    weights = (f"{weight} with {data}" for data, weight in definition.weight_layouts.items())
    yield f"weights by default: {', '.join(weights)}" if definition.weight_layouts else ""
    sizes = ", ".join(f"`{definition.arguments[i]}`" for i in definition.sizes)
    yield f"an attribute where it is known: {sizes}" if sizes else ""


def operator_section(definition: OpDef) -> Iterator[str]:
    """Yield the lines of an operator's section."""
    yield f"### `{format_signature(definition)}`"
    yield ""
    yield definition.description
    yield ""
    yield f"*Result*: {definition.result}."
    facts = [f"*Fusion*: {definition.pattern.name}"]
    if definition.reshape_only:
        facts.append("a view: no kernel runs")
    if definition.dims or definition.padded:
        facts.append("the result's shape depends on the data")
    if definition.stateful:
        facts.append("has an effect")
    if definition.lower is None:
        facts.append("has no kernel")
    if definition.reference is None:
        facts.append("is not interpreted")
    facts += [text for text in operator_properties(definition) if text]
    yield "; ".join(facts) + "."
    yield ""
    yield from attribute_table(definition)


def page() -> str:
    """Return the page, with families and operators in alphabetical order."""
    families: dict[str, list[OpDef]] = {}
    for name in sorted(OPS):
        families.setdefault(name.rpartition(".")[0], []).append(OPS[name])
    lines = [OPERATORS_HEAD]
    for family in sorted(families):
        lines += [f"## {family or 'Tensors'}", ""]
        lines += [line for definition in families[family] for line in operator_section(definition)]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
