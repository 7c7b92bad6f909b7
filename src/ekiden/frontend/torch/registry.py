"""Converter table of ATen operators, assembled from the converter families."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch

from ekiden.frontend.common.unsupported import Unsupported, suggest_nearest
from ekiden.frontend.torch.converters import (
    backward,
    bitcast,
    complex,
    composite,
    control_flow,
    convolution,
    create,
    ctc_loss,
    data_movement,
    elementwise,
    flex_attention,
    fourier,
    image,
    index,
    integer,
    linalg,
    linear,
    norm,
    quantize,
    random,
    recurrent,
    reduction,
    vision,
)
from ekiden.frontend.torch.node import ComplexRule, Converter, ConverterRow, target_name
from ekiden.ir.user_extensions import record_extension

CONVERTER_FAMILIES = (
    elementwise, reduction, data_movement, index, create, linear, convolution, norm, image,
    control_flow, backward, bitcast, complex, fourier, linalg, random, vision, flex_attention,
    integer, ctc_loss, recurrent, composite, quantize,
)  # fmt: skip


def _qualified_key(name: str) -> str:
    return name if "::" in name else f"aten::{name}"


def _build_table(rows: Iterable[ConverterRow]) -> dict[str, Converter]:
    table: dict[str, Converter] = {}
    for name, converter, *_ in rows:
        assert _qualified_key(name) not in table, f"{name} has two rows"
        table[_qualified_key(name)] = converter
    return table


CONVERTER_TABLE = _build_table(row for family in CONVERTER_FAMILIES for row in family.ROWS)
""""aten::add.Tensor" or, for all overloads, "aten::add" -> converter."""
COMPOSITE_KEYS = {_qualified_key(row[0]) for row in composite.ROWS}
"""Those of them that PyTorch takes apart, where it does that to a program."""
COMPLEX_RULES: dict[str, ComplexRule] = {
    _qualified_key(row[0]): row[2](row[1])
    for family in CONVERTER_FAMILIES
    for row in family.ROWS
    if len(row) == 3
}
"""The same names -> what is done to complex numbers."""


def target_key(target: object) -> str:
    """Return the table key of a node's target: "aten::add.Tensor", or "python::" and a callable's
    name.
    """
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name}.{target._overloadname}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target._name}"
    return f"python::{target_name(target)}"


def _find_key(target: object) -> str | None:
    """Return the table key of an operator: of its overload, or of all overloads if the converter
    accepts its arguments.
    """
    key = target_key(target)
    if key in CONVERTER_TABLE:
        return key
    # A row without an overload serves all overloads that its signature accepts.
    name = key.partition(".")[0]
    return (
        name if name in CONVERTER_TABLE and _accepts_target(CONVERTER_TABLE[name], target) else None
    )


@cache
def converter_signature(convert: Converter) -> inspect.Signature:
    """Return the signature of a converter; cached, as inspection is slow."""
    return inspect.signature(convert)


@cache
def _accepts_target(convert: Converter, target: object) -> bool:
    """Return whether a converter accepts the required arguments of an operator, or all of them."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    every = target._schema.arguments
    return any(
        _binds_arguments(convert, arguments)
        for arguments in ([arg for arg in every if not arg.has_default_value()], every)
    )


def _binds_arguments(convert: Converter, arguments: Sequence[torch._C.Argument]) -> bool:
    positional = [arg for arg in arguments if not arg.kwarg_only]
    named: dict[str, object] = {arg.name: None for arg in arguments if arg.kwarg_only}
    try:
        converter_signature(convert).bind(None, *positional, **named)
    except TypeError:
        return False
    return True


def find_converter(target: object) -> Converter | None:
    """Return the converter of an operator, or None."""
    row = _find_key(target)
    return None if row is None else CONVERTER_TABLE[row]


def should_decompose(target: object) -> bool:
    """Return whether PyTorch should decompose an operator: it has no converter, or only a composite
    one.
    """
    row = _find_key(target)
    return row is None or row in COMPOSITE_KEYS


def require_converter(target: object) -> Converter:
    """Return the converter of an operator; raise Unsupported with the closest names without one."""
    converter = find_converter(target)
    if converter is None:
        library, _, name = target_key(target).partition(".")[0].rpartition("::")
        names = {key.partition(".")[0] for key in CONVERTER_TABLE if key.startswith(f"{library}::")}
        near = suggest_nearest(name, (key.rpartition("::")[2] for key in names))
        text = f"unknown operator{near}; ekiden.frontend.torch.register teaches one"
        raise Unsupported(text)
    return converter


def require_complex_rule(target: object) -> ComplexRule:
    """Return the complex rule of an operator; raise Unsupported without one."""
    key = target_key(target)
    rule = COMPLEX_RULES.get(key)
    if rule is None and key not in CONVERTER_TABLE:
        rule = COMPLEX_RULES.get(key.partition(".")[0])
    if rule is None:
        # Raises with the nearest names if the operator has no converter at all.
        require_converter(target)
        raise Unsupported("complex numbers are not supported here")
    return rule


def register(name: str, *, override: bool = False) -> Callable[[Converter], Converter]:
    """Return a decorator that registers the converter of an operator, such as a custom one:

        @ekiden.frontend.torch.register("mylib::scale")
        def scale(node, x, factor):
            return node.as_expr(x) * relay.const(factor)

    The function gets a Node (see ekiden.frontend.torch.node) and the operator's arguments, and
    returns a Relay expression, or a list with one for each output. A name may end with an overload.

    Raises ValueError if the operator has a converter, unless `override` is set.
    """

    def add(convert: Converter) -> Converter:
        """Register the user's converter."""
        if _qualified_key(name) in CONVERTER_TABLE.keys() - COMPOSITE_KEYS and not override:
            raise ValueError(f"register {name!r}: it is there; say override=True to replace it")
        record_extension(convert)
        # A converter that a user registers replaces built-in composites of the same operator.
        for key in {k for k in COMPOSITE_KEYS if _qualified_key(name) in (k, k.partition(".")[0])}:
            COMPOSITE_KEYS.remove(key)  # of one overload, which would be found before
            del CONVERTER_TABLE[key]
        CONVERTER_TABLE[_qualified_key(name)] = convert
        return convert

    return add
