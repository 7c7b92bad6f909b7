"""Kernels of devices as bytes: the section DEVICE_CODE of an artifact (docs/artifact-format.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ekiden.runtime.binding._core import Device
from ekiden.runtime.lazy_dataclass import dataclass

MAGIC = b"EKDEVC\0\1"


@dataclass(frozen=True, slots=True)
class DeviceKernel:
    """A kernel for a kind of device.

    device_type: DLPack's number. format: what its code is in, "opencl", "cuda", "ptx". args: a
    letter for each argument, "b" for memory and "l" for an int64. checks: kind and format of C of
    each error that its threads may report.
    """

    name: str
    device_type: int
    format: str
    args: str
    code: bytes
    checks: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, object]:
        """For the cache of kernels: `of_json` reads it."""
        return {
            "name": self.name,
            "device_type": self.device_type,
            "format": self.format,
            "args": self.args,
            "code": self.code.decode("latin-1"),
            "checks": [list(check) for check in self.checks],
        }

    @staticmethod
    def of_json(row: Mapping[str, object]) -> DeviceKernel:
        """The kernel that `as_json` describes."""
        checks = row["checks"]
        assert isinstance(checks, list)
        return DeviceKernel(
            str(row["name"]),
            int(str(row["device_type"])),
            str(row["format"]),
            str(row["args"]),
            str(row["code"]).encode("latin-1"),
            tuple((str(kind), str(text)) for kind, text in checks),
        )


def _string(data: str | bytes) -> bytes:
    encoded = data.encode() if isinstance(data, str) else data
    return struct.pack("<I", len(encoded)) + encoded


def pack_kernels(kernels: Sequence[DeviceKernel]) -> bytes:
    """The bytes that the runtime reads."""
    parts = [MAGIC, struct.pack("<I", len(kernels))]
    for each in kernels:
        parts += [struct.pack("<I", each.device_type), *map(_string, (each.format, each.name))]
        parts += [_string(each.args), struct.pack("<I", len(each.checks))]
        parts += [_string(text) for check in each.checks for text in check]
        parts.append(_string(each.code))
    return b"".join(parts)


def unpack_kernels(data: bytes) -> list[DeviceKernel]:
    """The kernels in bytes that `pack_kernels` made."""
    at = len(MAGIC)

    def number() -> int:
        """The next four bytes as an unsigned number, little-endian; moves on."""
        nonlocal at
        at += 4
        return int(struct.unpack_from("<I", data, at - 4)[0])

    def string() -> bytes:
        """The next bytes, behind the number of them; moves on."""
        nonlocal at
        size = number()
        at += size
        return data[at - size : at]

    found = []
    for _ in range(number()):
        kind, form, name, args = number(), string().decode(), string().decode(), string().decode()
        checks = tuple((string().decode(), string().decode()) for _ in range(number()))
        found.append(DeviceKernel(name, kind, form, args, string(), checks))
    return found


def texts(data: bytes) -> dict[str, str]:
    """The code of the kernels in such bytes by its format, one after another; bytes that are no
    text (SPIR-V) are shown by their escapes."""
    found: dict[str, list[str]] = {}
    for each in unpack_kernels(data):
        found.setdefault(each.format, []).append(each.code.decode("utf-8", "backslashreplace"))
    return {form: "\n".join(parts) for form, parts in found.items()}


def kind_of(data: bytes) -> str:
    """The kind of device that the kernels in such bytes are for: "cuda"; "device" without any."""
    numbers = {each.device_type for each in unpack_kernels(data)}
    return str(Device(min(numbers), 0)).partition("(")[0] if numbers else "device"
