"""Schema of an artifact's METADATA section: one table, which validates all of it at load time.

METADATA is JSON, so a checksum that is right proves nothing about it. Whatever reads it afterwards
may rely on the table: types, ranges, and that what it names is in the executable.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

from ekiden.runtime.binding.dtypes import dtype_code
from ekiden.runtime.errors import InternalError, LoadError
from ekiden.runtime.lazy_dataclass import dataclass

OBJECT_DTYPE = "object"
"""The dtype of an input or output that is not a tensor."""
STRING_DTYPE = "string"
"""The dtype of an input or output that is a tensor of texts; its shape is that without bytes."""
SEQUENCE_PREFIX = "sequence of "
"""How the dtype of an input or output that is a sequence begins; that of its elements follows, and
its shape is theirs.
"""
ANY_RANK_PREFIX = "any rank of "
"""How the dtype of an output begins that has one of several ranks; its shape is ANY_SHAPE."""
ANY_SHAPE = ("...",)
"""The shape of an input or output whose rank is not known before a run."""
MAPS_PREFIX = "maps to "
"""How the dtype of an output begins that is a list of dictionaries, one for each row of it."""

HOST_NAME = "cpu(0)"
"""The host's name among the devices of `placement`."""
EXECUTORS = ("aot", "async", "vm")
INT64_MAX = 2**63 - 1

Dim: TypeAlias = int | str
Key: TypeAlias = int | str


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Signature entry of an input or output: name, shape (numbers, symbol names, expressions) and
    dtype.
    """

    name: str
    shape: tuple[Dim, ...]
    dtype: str
    keys: tuple[Key, ...] = ()
    """The keys of the dictionaries of an output that is a list of such."""

    def __str__(self) -> str:
        """Return text such as `x: float32[batch, 3, 224, 224]`."""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of an executable that its metadata refer to."""

    params: Mapping[str, int]
    """How many parameters each function has."""
    instructions: Mapping[str, int]
    """How many instructions each function has."""
    primitives: frozenset[str]


class _WrongError(Exception):
    """Exception with an error message and the field path to it, innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def _wrong(expected: str, value: object) -> _WrongError:
    text = ascii(value)
    return _WrongError(f"{expected} expected, got {text if len(text) <= 60 else text[:57] + '...'}")


FieldCheck: TypeAlias = Callable[[object], None]


def _text(value: object) -> None:
    if not isinstance(value, str):
        raise _wrong("a text", value)
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise _wrong("a text in UTF-8", value)


def _name(value: object) -> None:
    _text(value)
    if not value:
        raise _wrong("a text that is not empty", value)


def _flag(value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong("true or false", value)


def _size(value: object) -> None:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise _wrong("an integer from 0 to 2**63 - 1", value)


def _key(value: object) -> None:
    if type(value) is not int and not isinstance(value, str):
        raise _wrong("an integer or a text", value)


def _dim(value: object) -> None:
    if isinstance(value, str):
        _name(value)
    else:
        _size(value)


def _dtype(value: object) -> None:
    _text(value)
    text = (
        str(value)
        .removeprefix(SEQUENCE_PREFIX)
        .removeprefix(MAPS_PREFIX)
        .removeprefix(ANY_RANK_PREFIX)
    )
    try:
        bits = 8 if value in (OBJECT_DTYPE, STRING_DTYPE) else dtype_code(text)[1]
    except (InternalError, ValueError):
        bits = 0
    if not 1 <= bits <= 128:
        raise _wrong("a dtype", value)


def _one_of(*allowed: str) -> FieldCheck:
    def check(value: object) -> None:
        if value not in allowed:
            raise _wrong("one of " + ", ".join(map(repr, allowed)), value)

    return check


def _within(step: str, check: FieldCheck, value: object) -> None:
    """Check a component and add its path to errors."""
    try:
        check(value)
    except _WrongError as error:
        error.path.append(step)
        raise


def _list_of(item: FieldCheck, min_items: int = 0) -> FieldCheck:
    def check(value: object) -> None:
        """Raise _WrongError, with the item's number, for anything but such a list."""
        if not isinstance(value, list) or len(value) < min_items:
            raise _wrong(f"a list of at least {min_items} items" if min_items else "a list", value)
        for at, item_value in enumerate(value):
            _within(f"[{at}]", item, item_value)

    return check


def _pair_of(first: FieldCheck, second: FieldCheck) -> FieldCheck:
    def check(value: object) -> None:
        """Raise _WrongError, with the item's number, for anything but a list of two."""
        if not isinstance(value, list) or len(value) != 2:
            raise _wrong("a list of 2 items", value)
        _within("[0]", first, value[0])
        _within("[1]", second, value[1])

    return check


def _map_of(item: FieldCheck) -> FieldCheck:
    def check(value: object) -> None:
        """Raise _WrongError, with the value's key, for anything but an object with such values."""
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        for key, item_value in value.items():
            _text(key)
            _within(f"[{key!a}]", item, item_value)

    return check


def _record(required: Mapping[str, FieldCheck], optional: Mapping[str, FieldCheck]) -> FieldCheck:
    fields = {**required, **optional}

    def check(value: object) -> None:
        """Raise _WrongError for a field that is missing, unknown or invalid."""
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        if missing := [name for name in required if name not in value]:
            raise _WrongError(f"the field '{missing[0]}' is missing")
        if unknown := [name for name in value if name not in fields]:
            raise _WrongError(
                f"there is no field {unknown[0]!a}; there are {', '.join(sorted(fields))}"
            )
        for name, field_value in value.items():
            _within(f".{name}", fields[name], field_value)

    return check


_INFO = _record({"name": _text, "shape": _list_of(_dim), "dtype": _dtype}, {"keys": _list_of(_key)})
_MAIN = _record(
    {"inputs": _list_of(_INFO), "outputs": _list_of(_INFO), "limits": _map_of(_size)}, {}
)
_KERNEL = _record(
    {"flops": _text, "operators": _list_of(_text), "params": _list_of(_list_of(_text))},
    {"reads": _list_of(_text), "vectors": _flag, "over_floats": _text},
)
_METADATA = _record(
    {},
    {
        "checks": _map_of(_list_of(_pair_of(_size, _list_of(_text, min_items=1)))),
        "denormals": _one_of("flush"),
        "device_targets": _list_of(_text, min_items=1),
        "executor": _one_of(*EXECUTORS),
        "external": _map_of(_pair_of(_name, _text)),
        "host_functions": _list_of(_name),
        "kernels": _map_of(_KERNEL),
        "main": _MAIN,
        "memory": _record({"peak": _size}, {}),
        "mod_name": _name,
        "placement": _record(
            {"kernels": _map_of(_size), "host": _list_of(_list_of(_text, min_items=2))}, {}
        ),
        "producer": _text,
        "regions": _list_of(_text, min_items=1),
        "states": _list_of(_text, min_items=1),
        "sources": _map_of(_list_of(_pair_of(_size, _text))),
        "target": _text,
        "tensors": _map_of(_pair_of(_text, _size)),
        "weights": _size,
        "variants": _list_of(_text, min_items=1),
    },
)
"""The table. docs/artifact-format.md says what the fields mean."""


def _against(metadata: Mapping[str, object], tables: Tables) -> None:
    """Check that the indices in the metadata exist in the artifact's tables."""
    if "main" in metadata:
        _within(".main", lambda main: _check_main(main, tables), metadata["main"])
    for field in ("sources", "checks"):
        rows = cast("InstructionRows", metadata.get(field, {}))
        _within(f".{field}", partial(_check_rows, tables=tables), rows)
    if "states" in metadata:
        _within(
            ".states", lambda states: _check_states(states, metadata, tables), metadata["states"]
        )
    for field in ("kernels", "host_functions", "external"):
        names = cast("Sequence[str]", metadata.get(field, ()))
        if unknown := [name for name in names if name not in tables.primitives]:
            raise _within_error(field, f"no primitive is named {unknown[0]!a}")


def _within_error(field: str, message: str) -> _WrongError:
    error = _WrongError(message)
    error.path.append(f".{field}")
    return error


def _check_main(main: object, tables: Tables) -> None:
    assert isinstance(main, dict), "the table says so"
    if "main" not in tables.params:
        raise _WrongError("there is no function 'main'")
    count = tables.params["main"]
    if len(main["inputs"]) != count:
        raise _within_error("inputs", f"{count} items expected, got {len(main['inputs'])}")


INITIAL_STATE_FUNCTION = "initial_state"
"""The function that gives what a program keeps between runs, before the first."""
CALL_CLOSURE = "call closure"
"""Begins the names of functions by which a caller of the program calls closures that it gave."""


def _check_states(states: object, metadata: Mapping[str, object], tables: Tables) -> None:
    """Check that the last inputs and outputs of main are the states."""
    names, main = cast("Sequence[str]", states), metadata.get("main")
    if tables.params.get(INITIAL_STATE_FUNCTION) != 0:
        raise _WrongError(f"a function {INITIAL_STATE_FUNCTION!a} without parameters expected")
    for field in ("inputs", "outputs"):
        infos = cast(
            "Sequence[Mapping[str, object]]", main[field] if isinstance(main, dict) else ()
        )
        if [info["name"] for info in infos[-len(names) :]] != list(names):
            raise _WrongError(f"the names of the last {field} of main expected")


InstructionRows = Mapping[str, Sequence[Sequence[object]]]
"""Function -> rows about its instructions, which begin with the number of one."""


def _check_rows(value: object, tables: Tables) -> None:
    for function, rows in cast("InstructionRows", value).items():
        if function not in tables.instructions:
            raise _WrongError(f"no function is named {function!a}")
        numbers = [cast(int, row[0]) for row in rows]
        count = tables.instructions[function]
        if numbers != sorted(set(numbers)) or numbers[-1:] >= [count]:
            raise _WrongError(
                f"[{function!a}]: instructions in ascending order below {count} expected"
            )


def _no_constant(text: str) -> object:
    raise _WrongError(f"{text} is no JSON")


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _WrongError("a field is there twice")
    return fields


def read_metadata(text: str | bytes, source: str, tables: Tables | None) -> dict[str, object]:
    """Parse and validate the metadata of the artifact `source`. Raises LoadError that names the
    artifact and the field.
    """
    try:
        metadata = _parsed(text or "{}")
        _METADATA(metadata)
        if tables is not None:
            _against(metadata, tables)
    except _WrongError as error:
        path = "".join(reversed(error.path)).removeprefix(".")
        raise LoadError(f"load {source}: METADATA: {f'{path}: ' if path else ''}{error}") from None
    return metadata


def _parsed(text: str | bytes) -> dict[str, object]:
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        raise _WrongError(f"it is no JSON: {error}") from None
    return cast("dict[str, object]", document)


def tensor_infos(metadata: Mapping[str, object], source: str) -> tuple[tuple[TensorInfo, ...], ...]:
    """Return the inputs and the outputs of `main` in validated metadata. Raises LoadError if they
    lack `main`.
    """
    main = cast("Mapping[str, list[dict[str, object]]] | None", metadata.get("main"))
    if main is None:
        raise LoadError(f"load {source}: METADATA: the field 'main' is missing")
    return tuple(tuple(map(_info, main[field])) for field in ("inputs", "outputs"))


def _info(entry: Mapping[str, object]) -> TensorInfo:
    shape = tuple(cast("list[Dim]", entry["shape"]))
    keys = tuple(cast("list[Key]", entry.get("keys", [])))
    return TensorInfo(str(entry["name"]), shape, str(entry["dtype"]), keys)


def variants(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """Return the targets that the artifact has code for, best first."""
    target = cast(str, metadata.get("target", ""))
    return tuple(cast("list[str]", metadata.get("variants", [target])))


def placement_text(metadata: Mapping[str, object]) -> str:
    """Return one line that says how many kernels run on which device, and why some run on the
    host; "" for a program of one device.

    `opencl(0): 12 kernels; cpu(0): 1 kernel (less, add: decides what runs next ...)`
    """
    placement = cast("Mapping[str, Any]", metadata.get("placement", {}))
    counts = cast("Mapping[str, int]", placement.get("kernels", {}))
    reasons = "; ".join(f"{', '.join(names)}: {why}" for why, *names in placement.get("host", ()))
    phrases = [
        f"{device}: {n or 'no'} kernel{'' if n == 1 else 's'}"
        + (f" ({reasons})" if device == HOST_NAME and reasons else "")
        for device, n in sorted(counts.items(), key=lambda row: row[0] == HOST_NAME)
    ]
    return "; ".join(phrases)


def peak_memory(metadata: Mapping[str, object]) -> int | None:
    """Return the predicted peak of tensor memory of a run in bytes, or None."""
    return cast("Mapping[str, int]", metadata.get("memory", {})).get("peak")
