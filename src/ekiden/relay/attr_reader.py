"""Conversion of attribute values read from text to the operator's attribute class."""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.attrs import Attrs, allowed_field_types, numeric_tuple_fields, prim_expr_fields
from ekiden.ir.node import NODE_TYPES
from ekiden.ir.op import OPS, Op
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.relay.expr import Expr
from ekiden.relay.lexer import SourceText
from ekiden.runtime.errors import ParseError
from ekiden.tir.script.parser import from_source
from ekiden.tir.stmt import PrimFunc

ParsedEntries = Mapping[str, tuple[object, int]]
"""Parsed attribute entries: name -> (value, source offset)."""


def read_attrs(source: SourceText, callee: Expr, entries: ParsedEntries, at: int) -> Attrs | None:
    """Build the attributes of a call of `callee` from parsed entries.

    They are of the class its operator declares, or of the one that `attrs_type_key` names.

    Raises:
        ParseError: A value, a name or the class is wrong.
    """
    values = dict(entries)
    kind = OPS[callee.name].attrs if isinstance(callee, Op) else None
    # Calls of functions, and of operators with foreign attributes, name the class in the text.
    if "attrs_type_key" in values:
        key, offset = values.pop("attrs_type_key")
        named = NODE_TYPES.get(str(key))
        if named is None or not issubclass(named, Attrs):
            source.raise_parse_error(offset, f"no attribute class {key!r}")
        kind = named
    if kind is None:
        if values:
            source.raise_parse_error(
                next(iter(values.values()))[1], "this call takes no attributes"
            )
        return None
    return _build_attrs(source, kind, values, at)


def _build_attrs(source: SourceText, kind: type[Attrs], values: ParsedEntries, at: int) -> Attrs:
    field_names = list(getattr(kind, "__dataclass_fields__", ()))
    classes = allowed_field_types(kind.type_key)
    prims = prim_expr_fields(kind.type_key)
    sequences = numeric_tuple_fields(kind.type_key)
    fields: dict[str, object] = {}
    for name, (value, offset) in values.items():
        if name not in field_names:
            what = f"{kind.__name__} has no attribute {name!r}; it has {', '.join(field_names)}"
            source.raise_parse_error(offset, what)
        if isinstance(value, str) and PrimFunc in classes[name]:
            value = _parse_prim_func(source, value, offset)
        if isinstance(value, tuple) and Attrs in classes[name]:
            value = _read_nested_attrs(source, value, offset)
        if not _is_assignable(value, classes[name]):
            source.raise_parse_error(offset, f"{kind.__name__}: {name} cannot be {value!r}")
        if name in sequences and isinstance(value, (int, float, PrimExpr)):
            value = (value,)  # TVM's text has a number alone for several of them
        fields[name] = _to_int64_constants(value) if name in prims else value
    try:
        return kind(**kind.expand_abbreviations(fields))
    except TypeError as error:
        # The class names the fields that a text has left out only in the error of its constructor.
        missing = str(error).partition("required positional argument")[2].lstrip("s: ")
        source.raise_parse_error(
            at, f"{kind.__name__}: the call lacks {missing}" if missing else str(error)
        )


def _read_nested_attrs(source: SourceText, values: tuple[object, ...], offset: int) -> Attrs:
    """Build attributes from a list of their class followed by names and values. Raises
    ParseError.
    """
    key, *entries = values or ("",)
    kind = NODE_TYPES.get(str(key))
    if kind is None or not issubclass(kind, Attrs) or len(entries) % 2:
        source.raise_parse_error(
            offset, f"expected an attribute class, then names and values, got {values!r}"
        )
    pairs = {
        str(name): (value, offset) for name, value in zip(entries[::2], entries[1::2], strict=True)
    }
    return _build_attrs(source, kind, pairs, offset)


def _parse_prim_func(source: SourceText, text: str, offset: int) -> PrimFunc:
    """Parse the loop program of an attribute. Raises ParseError where it is none."""
    try:
        program = from_source(text, name=f"{source.name}: a loop program")
    except ParseError as error:
        source.raise_parse_error(offset, f"a loop program cannot be read: {error}")
    if not isinstance(program, PrimFunc):
        source.raise_parse_error(offset, "expected one loop program, got a module")
    return program


def _is_assignable(value: object, classes: frozenset[object]) -> bool:
    """Return whether a field of the given classes may hold a value."""
    match value:
        case tuple():
            return tuple in classes or all(_is_assignable(v, classes) for v in value)
        case PrimExpr():
            return PrimExpr in classes
        case Attrs():
            return Attrs in classes
        case int() if not isinstance(value, bool):
            return not classes.isdisjoint((int, float, PrimExpr))
    # A bool is an int to Python, and must not pass for a number here.
    return type(value) in classes or object in classes


def _to_int64_constants(value: object) -> object:
    """Convert the numbers in an attribute value to int64 constants."""
    if isinstance(value, tuple):
        return tuple(map(_to_int64_constants, value))
    return IntImm(value) if isinstance(value, int) and not isinstance(value, bool) else value


__all__ = ["read_attrs"]
