"""The converter table: operator and overload -> its converter, made of the rows of each family."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import torch

from ekiden.frontend.common.unsupported import Unsupported, nearest
from ekiden.frontend.torch.converters import (
    backward,
    bits,
    complex,
    composite,
    control,
    convolution,
    create,
    ctc,
    flex,
    fourier,
    image,
    index,
    integer,
    linalg,
    linear,
    movement,
    norm,
    pointwise,
    quantize,
    random,
    recurrent,
    reduction,
    vision,
)
from ekiden.frontend.torch.node import Converter, Row, Rule, target_name
from ekiden.ir.extensions import note_extension

FAMILIES = (
    pointwise, reduction, movement, index, create, linear, convolution, norm, image, control,
    backward, bits, complex, fourier, linalg, random, vision, flex,
    integer, ctc, recurrent, composite, quantize,
)  # fmt: skip


def _key(name: str) -> str:
    return name if "::" in name else f"aten::{name}"


def _table(rows: Iterable[Row]) -> dict[str, Converter]:
    found: dict[str, Converter] = {}
    for name, converter, *_ in rows:
        assert _key(name) not in found, f"{name} has two rows"
        found[_key(name)] = converter
    return found


TABLE = _table(row for family in FAMILIES for row in family.ROWS)
""""aten::add.Tensor" or, for all overloads, "aten::add" -> converter."""
COMPOSITE = {_key(row[0]) for row in composite.ROWS}
"""Those of them that PyTorch takes apart, where it does that to a program."""
COMPLEX: dict[str, Rule] = {
    _key(row[0]): row[2](row[1]) for family in FAMILIES for row in family.ROWS if len(row) == 3
}
"""The same names -> what is done to complex numbers."""


def key_of(target: object) -> str:
    """What a node calls, as the table has it: "aten::add.Tensor"; for what is no operator of a
    library its name.
    """
    if isinstance(target, torch._ops.OpOverload):
        return f"{target._schema.name}.{target._overloadname}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return f"higher_order::{target._name}"
    return f"python::{target_name(target)}"


def _row_of(target: object) -> str | None:
    """Return the key of the row of an operator: of its overload, or of all overloads where the
    converter takes what this one must be given (`where(condition)` has no two sides)."""
    key = key_of(target)
    if key in TABLE:
        return key
    name = key.partition(".")[0]
    return name if name in TABLE and _takes(TABLE[name], target) else None


@cache
def signature_of(convert: Converter) -> inspect.Signature:
    """Return the signature of a converter, which takes long to make."""
    return inspect.signature(convert)


@cache
def _takes(convert: Converter, target: object) -> bool:
    """Return whether a converter can be called with the arguments that an operator needs, or with
    all that it has."""
    if not isinstance(target, torch._ops.OpOverload):
        return True
    every = target._schema.arguments
    return any(
        _binds(convert, arguments)
        for arguments in ([each for each in every if not each.has_default_value()], every)
    )


def _binds(convert: Converter, arguments: Sequence[torch._C.Argument]) -> bool:
    places = [each for each in arguments if not each.kwarg_only]
    named: dict[str, object] = {each.name: None for each in arguments if each.kwarg_only}
    try:
        signature_of(convert).bind(None, *places, **named)
    except TypeError:
        return False
    return True


def converter_of(target: object) -> Converter | None:
    """The converter of an operator; None if there is none."""
    row = _row_of(target)
    return None if row is None else TABLE[row]


def is_taken_apart(target: object) -> bool:
    """Whether what an operator is made of is imported where PyTorch takes a program apart: nobody
    has a converter of the whole, or it is of operators as they are composed usually."""
    row = _row_of(target)
    return row is None or row in COMPOSITE


def find(target: object) -> Converter:
    """The converter of an operator. Raises Unsupported naming those whose names are nearest."""
    found = converter_of(target)
    if found is None:
        library, _, name = key_of(target).partition(".")[0].rpartition("::")
        known = {key.partition(".")[0] for key in TABLE if key.startswith(f"{library}::")}
        near = nearest(name, (key.rpartition("::")[2] for key in known))
        text = f"unknown operator{near}; ekiden.frontend.torch.register teaches one"
        raise Unsupported(text)
    return found


def find_complex(target: object) -> Rule:
    """What an operator does to complex numbers. Raises Unsupported where it takes none."""
    key = key_of(target)
    found = COMPLEX.get(key)
    if found is None and key not in TABLE:
        found = COMPLEX.get(key.partition(".")[0])
    if found is None:
        find(target)
        raise Unsupported("complex numbers are not supported here")
    return found


def register(name: str, *, override: bool = False) -> Callable[[Converter], Converter]:
    """A decorator that teaches the import an operator, such as a custom one:

        @ekiden.frontend.torch.register("mylib::scale")
        def scale(node, x, factor):
            return node.of(x) * relay.const(factor)

    The function gets a Node (see ekiden.frontend.torch.node) and the arguments in their places, and
    gives a Relay expression, or a list of one for each output. A name may end with an overload.

    Raises ValueError where that operator has a converter, unless `override` is set.
    """

    def add(convert: Converter) -> Converter:
        """Sets the converter, and has it remembered as the user's own."""
        if _key(name) in TABLE.keys() - COMPOSITE and not override:
            raise ValueError(f"register {name!r}: it is there; say override=True to replace it")
        note_extension(convert)
        for each in {k for k in COMPOSITE if _key(name) in (k, k.partition(".")[0])}:
            COMPOSITE.remove(each)  # of one overload, which would be found before
            del TABLE[each]
        TABLE[_key(name)] = convert
        return convert

    return add
