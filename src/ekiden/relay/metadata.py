"""The `#[metadata]` section of Relay text: constants and nodes without syntax, as TVM JSON.

    {"root": 1, "nodes": [{"type_key": ""}, {"type_key": "Map", "keys": [...], "data": [2]}, ...],
     "b64ndarrays": ["P6G0lvBAXt0AAAAA...", ...], "attrs": {"tvm_version": "0.16.0"}}

Node 0 is nothing; the others name each other by number. `meta[relay.Constant][3]` is the fourth
entry of the array under that key of the root.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import cast

from ekiden.ir.ndarray_format import array_to_bytes
from ekiden.relay.expr import Constant
from ekiden.relay.tvm_json import TvmJsonReader
from ekiden.runtime.errors import LoadError

Entries = Mapping[str, Sequence[object]]
"""Metadata objects by type key, in the order of their numbers."""
_TVM_JSON_VERSION = "0.16.0"


def write_metadata(constants: Sequence[Constant]) -> str:
    """Serialise the constants of a text as the section's JSON."""
    # Node 0 is TVM's null; 1 and 2 are the map and its array.
    first = 3
    numbers = list(range(first, first + len(constants)))
    nodes: list[dict[str, object]] = [
        {"type_key": ""},
        {"type_key": "Map", "keys": ["relay.Constant"], "data": [2]},
        {"type_key": "Array", "data": numbers},
    ]
    for index in range(len(constants)):
        attrs = {"_checked_type_": "0", "data": str(index), "span": "0", "virtual_device_": "0"}
        nodes.append({"type_key": "relay.Constant", "attrs": attrs})
    arrays = [base64.b64encode(array_to_bytes(c.data)).decode() for c in constants]
    document = {
        "root": 1,
        "nodes": nodes,
        "b64ndarrays": arrays,
        "attrs": {"tvm_version": _TVM_JSON_VERSION},
    }
    return json.dumps(document, separators=(",", ":"))


def read_metadata(text: str) -> Entries:
    """Parse the entries of a section; None for unknown types.

    Raises:
        LoadError: The text is no such JSON.
    """
    if not text.strip():
        return {}
    try:
        document = json.loads(text)
        reader = TvmJsonReader(document, skips_unknown=True)
        root = reader.read(int(document["root"]))
        if not isinstance(root, dict):
            raise LoadError("the root is no map")
        return {kind: cast(tuple[object, ...], reader.as_dims(e)) for kind, e in root.items()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise LoadError(f"{type(error).__name__}: {error}") from error
