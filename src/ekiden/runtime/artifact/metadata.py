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
"""Declared dtype of an input or output that is not a tensor."""
STRING_DTYPE = "string"
"""Declared dtype of a tensor of strings; its shape omits the axis of bytes."""
SEQUENCE_PREFIX = "sequence of "
"""Prefix of the declared dtype of a sequence, followed by the dtype of the elements; the shape is
that of the elements.
"""
ANY_RANK_PREFIX = "any rank of "
"""Prefix of the declared dtype of an output with one of several ranks, whose shape is
ANY_RANK_SHAPE."""
ANY_RANK_SHAPE = ("...",)
"""Shape of an input or output whose rank is known at run time only."""
SEQUENCE_OF_MAPS_PREFIX = "maps to "
"""Prefix of the declared dtype of an output that is a list of dictionaries, one per row."""

HOST_NAME = "cpu(0)"
"""The host's name among the devices of `placement`."""
EXECUTOR_KINDS = ("aot", "async", "vm")
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
    """Keys of the dictionaries of an output that is a list of dictionaries."""

    def __str__(self) -> str:
        """Return text such as `x: float32[batch, 3, 224, 224]`."""
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Tables:
    """Tables of an executable that its metadata refer to."""

    params: Mapping[str, int]
    """Number of parameters of each function."""
    instructions: Mapping[str, int]
    """Number of instructions of each function."""
    primitives: frozenset[str]


class _SchemaError(Exception):
    """Exception with an error message and the field path to it, innermost first."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []


def _schema_error(expected: str, value: object) -> _SchemaError:
    text = ascii(value)
    return _SchemaError(
        f"{expected} expected, got {text if len(text) <= 60 else text[:57] + '...'}"
    )


FieldCheck: TypeAlias = Callable[[object], None]


def _check_text(value: object) -> None:
    if not isinstance(value, str):
        raise _schema_error("a text", value)
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise _schema_error("a text in UTF-8", value)


def _check_name(value: object) -> None:
    _check_text(value)
    if not value:
        raise _schema_error("a text that is not empty", value)


def _check_flag(value: object) -> None:
    if not isinstance(value, bool):
        raise _schema_error("true or false", value)


def _check_size(value: object) -> None:
    if type(value) is not int or not 0 <= value <= INT64_MAX:
        raise _schema_error("an integer from 0 to 2**63 - 1", value)


def _check_key(value: object) -> None:
    if type(value) is not int and not isinstance(value, str):
        raise _schema_error("an integer or a text", value)


def _check_dim(value: object) -> None:
    if isinstance(value, str):
        _check_name(value)
    else:
        _check_size(value)


def _check_dtype(value: object) -> None:
    _check_text(value)
    text = (
        str(value)
        .removeprefix(SEQUENCE_PREFIX)
        .removeprefix(SEQUENCE_OF_MAPS_PREFIX)
        .removeprefix(ANY_RANK_PREFIX)
    )
    try:
        bits = 8 if value in (OBJECT_DTYPE, STRING_DTYPE) else dtype_code(text)[1]
    except (InternalError, ValueError):
        bits = 0
    if not 1 <= bits <= 128:
        raise _schema_error("a dtype", value)


def _one_of_check(*allowed: str) -> FieldCheck:
    def check_choice(value: object) -> None:
        if value not in allowed:
            raise _schema_error("one of " + ", ".join(map(repr, allowed)), value)

    return check_choice


def _check_component(step: str, check: FieldCheck, value: object) -> None:
    """Check a component and add its path to errors."""
    try:
        check(value)
    except _SchemaError as error:
        error.path.append(step)
        raise


def _list_check(item: FieldCheck, min_items: int = 0) -> FieldCheck:
    def check_list(value: object) -> None:
        """Raise _SchemaError, with the item's number, for anything but such a list."""
        if not isinstance(value, list) or len(value) < min_items:
            raise _schema_error(
                f"a list of at least {min_items} items" if min_items else "a list", value
            )
        for at, item_value in enumerate(value):
            _check_component(f"[{at}]", item, item_value)

    return check_list


def _pair_check(first: FieldCheck, second: FieldCheck) -> FieldCheck:
    def check_pair(value: object) -> None:
        """Raise _SchemaError, with the item's number, for anything but a list of two."""
        if not isinstance(value, list) or len(value) != 2:
            raise _schema_error("a list of 2 items", value)
        _check_component("[0]", first, value[0])
        _check_component("[1]", second, value[1])

    return check_pair


def _check_region(value: object) -> None:
    """Raise _SchemaError, with the item's number, for anything but the name of a compiler, a text
    and, if any, a number of results."""
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise _schema_error("a list of 2 or 3 items", value)
    for at, check in enumerate((_check_name, _check_text, _check_size)[: len(value)]):
        _check_component(f"[{at}]", check, value[at])


def _map_check(item: FieldCheck) -> FieldCheck:
    def check_map(value: object) -> None:
        """Raise _SchemaError, with the value's key, for anything but an object with such values."""
        if not isinstance(value, dict):
            raise _schema_error("an object", value)
        for key, item_value in value.items():
            _check_text(key)
            _check_component(f"[{key!a}]", item, item_value)

    return check_map


def _record_check(
    required: Mapping[str, FieldCheck], optional: Mapping[str, FieldCheck]
) -> FieldCheck:
    fields = {**required, **optional}

    def check_record(value: object) -> None:
        """Raise _SchemaError for a field that is missing, unknown or invalid."""
        if not isinstance(value, dict):
            raise _schema_error("an object", value)
        if missing := [name for name in required if name not in value]:
            raise _SchemaError(f"the field '{missing[0]}' is missing")
        if unknown := [name for name in value if name not in fields]:
            raise _SchemaError(
                f"there is no field {unknown[0]!a}; there are {', '.join(sorted(fields))}"
            )
        for name, field_value in value.items():
            _check_component(f".{name}", fields[name], field_value)

    return check_record


_TENSOR_INFO_SCHEMA = _record_check(
    {"name": _check_text, "shape": _list_check(_check_dim), "dtype": _check_dtype},
    {"keys": _list_check(_check_key)},
)
_MAIN_SCHEMA = _record_check(
    {
        "inputs": _list_check(_TENSOR_INFO_SCHEMA),
        "outputs": _list_check(_TENSOR_INFO_SCHEMA),
        "limits": _map_check(_check_size),
    },
    {},
)
_KERNEL_SCHEMA = _record_check(
    {
        "flops": _check_text,
        "operators": _list_check(_check_text),
        "params": _list_check(_list_check(_check_text)),
    },
    {
        "reads": _list_check(_check_text),
        "vectors": _check_flag,
        "over_floats": _check_text,
        "cycles": _pair_check(_check_size, _check_size),
    },
)
_METADATA_SCHEMA = _record_check(
    {},
    {
        "checks": _map_check(
            _list_check(_pair_check(_check_size, _list_check(_check_text, min_items=1)))
        ),
        "denormals": _one_of_check("flush"),
        "device_targets": _list_check(_check_text, min_items=1),
        "executor": _one_of_check(*EXECUTOR_KINDS),
        "external": _map_check(_check_region),
        "host_functions": _list_check(_check_name),
        "kernels": _map_check(_KERNEL_SCHEMA),
        "main": _MAIN_SCHEMA,
        "memory": _record_check({"peak": _check_size}, {}),
        "mod_name": _check_name,
        "placement": _record_check(
            {
                "kernels": _map_check(_check_size),
                "host": _list_check(_list_check(_check_text, min_items=2)),
            },
            {},
        ),
        "producer": _check_text,
        "regions": _list_check(_check_text, min_items=1),
        "states": _list_check(_check_text, min_items=1),
        "sources": _map_check(_list_check(_pair_check(_check_size, _check_text))),
        "target": _check_text,
        "tensors": _map_check(_pair_check(_check_text, _check_size)),
        "weights": _check_size,
        "variants": _list_check(_check_text, min_items=1),
    },
)
"""The table. docs/artifact-format.md says what the fields mean."""


def _check_tables(metadata: Mapping[str, object], tables: Tables) -> None:
    """Check that the indices in the metadata exist in the artifact's tables."""
    if "main" in metadata:
        _check_component(".main", lambda main: _check_main(main, tables), metadata["main"])
    for field in ("sources", "checks"):
        rows = cast("InstructionRows", metadata.get(field, {}))
        _check_component(f".{field}", partial(_check_instruction_rows, tables=tables), rows)
    if "states" in metadata:
        _check_component(
            ".states", lambda states: _check_states(states, metadata, tables), metadata["states"]
        )
    for field in ("kernels", "host_functions", "external"):
        names = cast("Sequence[str]", metadata.get(field, ()))
        if unknown := [name for name in names if name not in tables.primitives]:
            raise _field_error(field, f"no primitive is named {unknown[0]!a}")


def _field_error(field: str, message: str) -> _SchemaError:
    error = _SchemaError(message)
    error.path.append(f".{field}")
    return error


def _check_main(main: object, tables: Tables) -> None:
    assert isinstance(main, dict), "the table says so"
    if "main" not in tables.params:
        raise _SchemaError("there is no function 'main'")
    count = tables.params["main"]
    if len(main["inputs"]) != count:
        raise _field_error("inputs", f"{count} items expected, got {len(main['inputs'])}")


INITIAL_STATE_FUNCTION = "initial_state"
"""Name of the function that returns the initial state of a program."""
CALL_CLOSURE_FUNCTION = "call closure"
"""Name prefix of the trampolines through which the host calls closures that a program returned."""


def _check_states(states: object, metadata: Mapping[str, object], tables: Tables) -> None:
    """Check that the last inputs and outputs of main are the states."""
    names, main = cast("Sequence[str]", states), metadata.get("main")
    if tables.params.get(INITIAL_STATE_FUNCTION) != 0:
        raise _SchemaError(f"a function {INITIAL_STATE_FUNCTION!a} without parameters expected")
    for field in ("inputs", "outputs"):
        infos = cast(
            "Sequence[Mapping[str, object]]", main[field] if isinstance(main, dict) else ()
        )
        if [info["name"] for info in infos[-len(names) :]] != list(names):
            raise _SchemaError(f"the names of the last {field} of main expected")


InstructionRows = Mapping[str, Sequence[Sequence[object]]]
"""Rows of facts about instructions by function; each row begins with an instruction's number."""


def _check_instruction_rows(value: object, tables: Tables) -> None:
    for function, rows in cast("InstructionRows", value).items():
        if function not in tables.instructions:
            raise _SchemaError(f"no function is named {function!a}")
        numbers = [cast(int, row[0]) for row in rows]
        count = tables.instructions[function]
        if numbers != sorted(set(numbers)) or numbers[-1:] >= [count]:
            raise _SchemaError(
                f"[{function!a}]: instructions in ascending order below {count} expected"
            )


def _reject_json_constant(text: str) -> object:
    raise _SchemaError(f"{text} is no JSON")


def _reject_duplicate_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise _SchemaError("a field is there twice")
    return fields


def read_metadata(text: str | bytes, source: str, tables: Tables | None) -> dict[str, object]:
    """Parse and validate the metadata of the artifact `source`. Raises LoadError that names the
    artifact and the field.
    """
    try:
        metadata = _parse_json(text or "{}")
        _METADATA_SCHEMA(metadata)
        if tables is not None:
            _check_tables(metadata, tables)
    except _SchemaError as error:
        path = "".join(reversed(error.path)).removeprefix(".")
        raise LoadError(f"load {source}: METADATA: {f'{path}: ' if path else ''}{error}") from None
    return metadata


def _parse_json(text: str | bytes) -> dict[str, object]:
    try:
        document = json.loads(
            text, parse_constant=_reject_json_constant, object_pairs_hook=_reject_duplicate_keys
        )
    except (ValueError, RecursionError) as error:
        raise _SchemaError(f"it is no JSON: {error}") from None
    return cast("dict[str, object]", document)


def tensor_infos(metadata: Mapping[str, object], source: str) -> tuple[tuple[TensorInfo, ...], ...]:
    """Return the inputs and the outputs of `main` in validated metadata. Raises LoadError if they
    lack `main`.
    """
    main = cast("Mapping[str, list[dict[str, object]]] | None", metadata.get("main"))
    if main is None:
        raise LoadError(f"load {source}: METADATA: the field 'main' is missing")
    return tuple(tuple(map(_tensor_info, main[field])) for field in ("inputs", "outputs"))


def _tensor_info(entry: Mapping[str, object]) -> TensorInfo:
    shape = tuple(cast("list[Dim]", entry["shape"]))
    keys = tuple(cast("list[Key]", entry.get("keys", [])))
    return TensorInfo(str(entry["name"]), shape, str(entry["dtype"]), keys)


def target_variants(metadata: Mapping[str, object]) -> tuple[str, ...]:
    """Return the targets that the artifact has code for, best first."""
    target = cast(str, metadata.get("target", ""))
    return tuple(cast("list[str]", metadata.get("variants", [target])))


def placement_summary(metadata: Mapping[str, object]) -> str:
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


def predicted_peak_memory(metadata: Mapping[str, object]) -> int | None:
    """Return the predicted peak of tensor memory of a run in bytes, or None."""
    return cast("Mapping[str, int]", metadata.get("memory", {})).get("peak")
