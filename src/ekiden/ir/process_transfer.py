"""Serialization of compiler values (nodes, targets, options, arrays) for worker processes.

    data = encode((function, target))
    function, target = decode(data)

Unlike JSON (`ekiden.ir.json`) the form keeps inferred types and is of one version of Ekiden, and of
one machine: it is for messages, never for files. An object that occurs twice is one object at the
other end, and depth costs no recursion: the objects stand in a list, each after its parts.

A message holds data alone. A function or class goes by name, and only if Ekiden or Python's library
defines it: what a program defines itself may not exist in the other process, or mean something else
there, and makes `encode` raise NotTransferableError.
"""

from __future__ import annotations

import dataclasses
import io
import pickle
import sys
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import cache
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op, get

__all__ = ["NotTransferableError", "decode", "encode"]

_LEAF_TYPES = (type(None), bool, int, float, str, bytes, np.generic, np.dtype, np.ndarray, Enum)
_TYPES_SENT_BY_NAME = (type, FunctionType, BuiltinFunctionType)
_SEQUENCE_TYPES = (tuple, list, set, frozenset)
_MAPPING_TYPES = (dict, MappingProxyType)
_CONTAINER_TYPES: Mapping[str, type] = {
    kind.__name__: kind for kind in (*_SEQUENCE_TYPES, *_MAPPING_TYPES)
}
"""Containers by name, because pickle cannot send the class of read-only mappings."""


class NotTransferableError(TypeError):
    """Error for a value that cannot be sent to another process."""


class _ObjectRecord(NamedTuple):
    """Record of one object: its class or container name and the positions of its parts, or None and
    the leaf itself.
    """

    kind: type | str | None
    part_positions: tuple[int, ...] = ()
    leaf: object = None


def _check_importable(value: type | FunctionType | BuiltinFunctionType) -> None:
    """Raise NotTransferableError unless the class or function is importable from Ekiden, NumPy or
    the standard library.
    """
    module = (getattr(value, "__module__", None) or "").partition(".")[0]
    is_known = module in ("ekiden", "numpy", "ml_dtypes") or module in sys.stdlib_module_names
    if not is_known or module == "__main__" or "<" in value.__qualname__:
        raise NotTransferableError(f"{module}.{value.__qualname__} is not part of Ekiden")


class _CheckedPickler(pickle.Pickler):
    """Pickler that rejects classes and functions which only this process defines."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401
        """Check classes and functions, which pickle sends by name."""
        if isinstance(value, _TYPES_SENT_BY_NAME):
            _check_importable(value)
        # Pickle goes on in its usual way.
        return NotImplemented


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the dataclass field names, plus the checked type for expressions."""
    names = tuple(f.name for f in dataclasses.fields(kind))
    return (*names, "_checked_type") if issubclass(kind, RelayExpr) else names


def _decompose_value(value: object) -> tuple[type | str, list[object]] | None:
    """Return the class and the parts of a compound value, or None for a leaf."""
    kind = type(value)
    # Such an array has no elements yet; the function that computes them cannot be sent.
    if isinstance(value, np.ndarray) and getattr(value, "source", None) is not None:
        raise NotTransferableError("a constant that is computed at loading")
    if isinstance(value, (*_LEAF_TYPES, *_TYPES_SENT_BY_NAME)):
        return None
    # By its name: each process has one object for an operator, compared by identity.
    if isinstance(value, Op):
        return Op, [value.name]
    if kind in _MAPPING_TYPES:
        assert isinstance(value, Mapping)
        return kind.__name__, [entry for item in value.items() for entry in item]
    if kind in _SEQUENCE_TYPES:
        assert isinstance(value, Iterable)
        return kind.__name__, list(value)
    if dataclasses.is_dataclass(kind):
        _check_importable(kind)
        return kind, [getattr(value, name, None) for name in _field_names(kind)]
    return None


def _object_records(root: object) -> list[_ObjectRecord]:
    """Return one record per distinct object in post order, the root last."""
    rows: list[_ObjectRecord] = []
    positions: dict[int, int] = {}
    alive: list[object] = []  # an id names an object only as long as that lives
    stack: list[tuple[object, tuple[type | str, list[object]] | None]] = [(root, None)]
    open_ids: set[int] = set()
    while stack:
        value, compound = stack.pop()
        if compound is not None:
            kind, operands = compound
            # By identity, so that shared nodes stay shared on the other side.
            positions[id(value)] = len(rows)
            rows.append(_ObjectRecord(kind, tuple(positions[id(operand)] for operand in operands)))
            continue
        if id(value) in positions:
            continue
        alive.append(value)
        compound = _decompose_value(value)
        if compound is None:
            positions[id(value)] = len(rows)
            rows.append(_ObjectRecord(None, leaf=value))
            continue
        # A cycle: the object occurs below itself, so no order puts its record after all its parts.
        if id(value) in open_ids:
            raise NotTransferableError(f"a {type(value).__name__} contains itself")
        open_ids.add(id(value))
        alive.append(compound)  # parts may exist in this list alone
        stack.append((value, compound))
        stack.extend((operand, None) for operand in compound[1] if id(operand) not in positions)
    return rows


def encode(value: object) -> bytes:
    """Serialize a value to bytes for `decode`. Raises NotTransferableError, naming the value,
    if a part of it is defined in this process only, such as a user's function.
    """
    buffer = io.BytesIO()
    try:
        _CheckedPickler(buffer, protocol=5).dump([tuple(row) for row in _object_records(value)])
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        if isinstance(error, NotTransferableError):
            raise
        raise NotTransferableError(str(error)) from error
    return buffer.getvalue()


def _build_container(name: str, operands: list[object]) -> object:
    kind = _CONTAINER_TYPES[name]
    return kind(
        dict(zip(operands[::2], operands[1::2], strict=True))
        if kind in _MAPPING_TYPES
        else operands
    )


def _build_instance(kind: type, field_values: list[object]) -> object:
    """Restore a dataclass instance from its stored fields, bypassing its constructor."""
    # The constructor would normalize arguments again, and infer what is stored.
    instance: object = object.__new__(kind)
    for name, value in zip(_field_names(kind), field_values, strict=True):
        # The slot of an expression without an inferred type stays unset, as in the original.
        if name != "_checked_type" or value is not None:
            object.__setattr__(instance, name, value)
    return instance


def decode(data: bytes | bytearray) -> object:
    """Deserialize the value that `encode` wrote. Raises KeyError for an operator that this
    process has not registered. Untrusted bytes are as dangerous as any pickle.
    """
    values: list[object] = []
    # Parts come before what holds them, so that one pass without recursion is enough.
    for kind, positions, leaf in pickle.loads(data):
        operands = [values[position] for position in positions]
        if kind is None:
            values.append(leaf)
        elif kind is Op:
            values.append(get(str(operands[0])))
        elif isinstance(kind, str):
            values.append(_build_container(kind, operands))
        else:
            values.append(_build_instance(kind, operands))
    return values[-1]
