"""The table of all messages and values exchanged in sessions.

docs/rpc.md is written from these tables, and so is the C side's `ek_rpc_table.h`
(scripts/generate_rpc.py): a message or a value is added here.
"""

from __future__ import annotations

from enum import IntEnum

from ekiden.runtime.lazy_dataclass import dataclass

PROTOCOL_MAGIC = 0x0043_5052_4B45_8901
"""What HELLO begins with: bytes 01 89 EKRPC 00."""
PROTOCOL_VERSION = 1
FRAME_HEADER_BYTES = 8
"""Bytes before the body of a frame: u32 size of the body, u8 message, three zeros."""
RETURN_PREFIX_BYTES = 5
"""Bytes of a RETURN before the bytes that it returns: their tag, and how many they are."""
MAX_HELLO_BYTES = 64 << 10
"""Bytes of a body before the other side's limit is known."""
DEFAULT_MAX_FRAME_BYTES = 4 << 20
"""Bytes of a body that Python's side takes; each side says its own in HELLO."""
MIN_FRAME_LIMIT_BYTES = 4 << 10
"""The smallest limit that a side may have."""
MAX_VALUE_DEPTH = 16
"""Containers inside each other in a value."""
MAX_CALL_DEPTH = 32
"""Calls that wait for each other: callbacks of callbacks."""
MAX_HANDLES = 1 << 20
"""Things of one side that the other may hold at once."""
UPLOAD_SUFFIX = ".upload"
"""What a file is called in the session's folder until all of it has come: no file has this name."""

FIELD_TYPES = {
    "u": ("u32", 4, "a number"),
    "q": ("u64", 8, "a number"),
    "i": ("i64", 8, "a number with sign"),
    "h": ("u64", 8, "a handle of the receiver's; 0 is none"),
    "s": ("u32, bytes", 4, "text: its length, then UTF-8"),
    "b": ("u32, bytes", 4, "bytes: their number, then they"),
    "t": (
        "i32, i32, u8, u8, u16, u32, i64 each",
        16,
        "a tensor's type: device, dtype, rank, sizes",
    ),
    "v": ("u8, ...", 1, "a value"),
    "V": ("u32, values", 4, "several values: their number, then they"),
    "H": ("u32, u64 each", 4, "several handles of the receiver's"),
}
"""Letter of a field -> how it is written, the fewest bytes it takes, what it is."""


class Kind(IntEnum):
    """Message kind; `MESSAGES` describes the contents."""

    HELLO = 1
    CALL = 2
    FUNCTION = 3
    LOAD = 4
    ALLOC = 5
    WRITE = 6
    READ = 7
    COPY = 8
    TIME = 9
    UPLOAD = 10
    DOWNLOAD = 11
    SIZE = 12
    REMOVE = 13
    LIST = 14
    RELEASE = 15
    IMPORT = 16
    RETURN = 17
    ERROR = 18
    PUT = 19
    REQUEST = 20
    DROP = 21
    SUMMARY = 22


@dataclass(frozen=True, slots=True)
class MessageRow:
    """Row of the message table: the field letters, the field names, and the meaning."""

    kind: Kind
    fields: str
    names: str
    meaning: str

    @property
    def min_body_bytes(self) -> int:
        """Return the minimum size of the body in bytes."""
        return sum(FIELD_TYPES[letter][1] for letter in self.fields)


# fmt: off
_MESSAGE_ROWS = (
    MessageRow(Kind.HELLO,    "quuusV", "magic version limit timeout key constructor",
        "the first message of each side: what it speaks, the largest body it takes,"
        " milliseconds the session may last (0: any), the name of the device, what makes the"
        " session"),
    MessageRow(Kind.CALL, "hV", "function arguments", "calls a function; RETURN has its result"),
    MessageRow(Kind.FUNCTION, "hs",  "module name",
        "the function of that name, of a module or (0) of all: RETURN it, or none; without a"
        " name a module's only one, or main"),
    MessageRow(Kind.LOAD,     "s",   "file",               "the module in an uploaded file"),
    MessageRow(Kind.ALLOC,    "t",   "type",               "a new tensor"),
    MessageRow(Kind.WRITE,    "hqb", "tensor offset data", "writes elements of a tensor, as bytes"),
    MessageRow(Kind.READ, "hqu", "tensor offset size", "reads elements of a tensor: RETURN bytes"),
    MessageRow(Kind.COPY,     "hh",  "source target", "copies a tensor to another of its type"),
    MessageRow(Kind.TIME, "hsuuuuuuqsV", "module name number repeat min_repeat_ms limit_zero_time"
        " cooldown_ms repeats_to_cooldown flush preproc arguments",
        "measures a function as time_evaluator: RETURN bytes, an f64 of seconds per repeat"),
    MessageRow(Kind.UPLOAD,   "sqqb", "file offset size data",
        "the next piece of a file of so many bytes, the first at 0: with the last one it is in"
        " the session's folder, in place of what had its name"),
    MessageRow(Kind.DOWNLOAD, "squ", "file offset size",   "reads from such a file: RETURN bytes"),
    MessageRow(Kind.SIZE,     "s",   "file", "how many bytes such a file has: RETURN int"),
    MessageRow(Kind.REMOVE,   "s",   "file",               "removes such a file"),
    MessageRow(Kind.LIST,     "",    "", "the names of such files: RETURN array of str"),
    MessageRow(Kind.RELEASE, "H", "handles", "releases objects of the receiver; no answer"),
    MessageRow(Kind.IMPORT,   "hh",  "module imported",
        "has a module look for functions in another too"),
    MessageRow(Kind.RETURN,   "v",   "value", "the answer to the last request that waits for one"),
    MessageRow(Kind.ERROR,    "sss", "kind message traceback", "the answer where it failed"),
    MessageRow(Kind.PUT,      "ssus", "key host port match", "to a tracker: a device is free"),
    MessageRow(Kind.REQUEST,  "si",  "key priority",
        "to a tracker: RETURN array of host, port and match, once a device is free"),
    MessageRow(Kind.DROP,     "s",   "match", "to a tracker: what was put is free no more"),
    MessageRow(Kind.SUMMARY,  "",    "",                   "to a tracker: RETURN str, JSON"),
)
# fmt: on
MESSAGES = {row.kind: row for row in _MESSAGE_ROWS}
ANSWER_KINDS = frozenset((Kind.RETURN, Kind.ERROR))
SESSION_KINDS = frozenset(k for k in Kind if Kind.CALL <= k <= Kind.IMPORT)
"""What a session serves."""
SERVED_KINDS = frozenset((Kind.CALL, Kind.RELEASE))
"""What its client serves: callbacks."""


class ValueTag(IntEnum):
    """Value tag, numbered like the runtime's types (ek_type) where there is one."""

    NONE = 0
    INT = 1
    BOOL = 2
    FLOAT = 3
    DTYPE = 5
    DEVICE = 6
    OBJECT = 64
    STR = 65
    BYTES = 66
    FUNCTION = 68
    SHAPE = 69
    TENSOR = 70
    ARRAY = 71
    MAP = 72
    MODULE = 73
    YOURS = 74
    ADT = 129


VALUE_TYPES = {
    ValueTag.NONE: ("", "nothing"),
    ValueTag.INT: ("i64", "an integer"),
    ValueTag.BOOL: ("u8", "0 or 1"),
    ValueTag.FLOAT: ("f64", "a number"),
    ValueTag.DTYPE: ("u8, u8, u16", "code, bits and lanes, as DLPack has them"),
    ValueTag.DEVICE: ("i32, i32", "kind of device, number"),
    ValueTag.OBJECT: (
        "u64, text",
        "handle of the sender's, type: any other object, to be passed back",
    ),
    ValueTag.STR: ("u32, bytes", "text"),
    ValueTag.BYTES: ("u32, bytes", "bytes"),
    ValueTag.FUNCTION: ("u64", "handle of the sender's"),
    ValueTag.SHAPE: ("u32, i64 each", "sizes"),
    ValueTag.TENSOR: (
        "u64, tensor's type",
        "handle of the sender's: elements cross by READ and WRITE",
    ),
    ValueTag.ARRAY: ("u32, values", "items"),
    ValueTag.MAP: ("u32, values", "number of pairs; keys and values alternately"),
    ValueTag.MODULE: ("u64", "handle of the sender's"),
    ValueTag.YOURS: ("u64", "handle of the receiver's, whatever it is of"),
    ValueTag.ADT: ("i32, u32, values", "a tag, fields: a tuple has tag 0"),
}
"""What follows the tag of a value, and what it is."""
