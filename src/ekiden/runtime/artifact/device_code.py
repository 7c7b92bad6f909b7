"""Serialised device kernels; the section DEVICE_CODE of an artifact (docs/artifact-format.md)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from ekiden.runtime.binding._core import Device
from ekiden.runtime.lazy_dataclass import dataclass

DEVICE_CODE_MAGIC = b"EKDEVC\0\1"


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

    def to_json(self) -> dict[str, object]:
        """Return the kernel as JSON for the kernel cache; `from_json` reads it."""
        return {
            "name": self.name,
            "device_type": self.device_type,
            "format": self.format,
            "args": self.args,
            # Latin-1 maps each byte to one code point, so binary code (SPIR-V) survives JSON.
            "code": self.code.decode("latin-1"),
            "checks": [list(check) for check in self.checks],
        }

    @staticmethod
    def from_json(row: Mapping[str, object]) -> DeviceKernel:
        """Return the kernel that `to_json` returned."""
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


def _pack_length_prefixed(data: str | bytes) -> bytes:
    encoded = data.encode() if isinstance(data, str) else data
    return struct.pack("<I", len(encoded)) + encoded


def pack_kernels(kernels: Sequence[DeviceKernel]) -> bytes:
    """Serialise kernels in the form that the runtime reads."""
    fields = [DEVICE_CODE_MAGIC, struct.pack("<I", len(kernels))]
    for kernel in kernels:
        fields += [
            struct.pack("<I", kernel.device_type),
            *map(_pack_length_prefixed, (kernel.format, kernel.name)),
        ]
        fields += [_pack_length_prefixed(kernel.args), struct.pack("<I", len(kernel.checks))]
        fields += [_pack_length_prefixed(text) for check in kernel.checks for text in check]
        fields.append(_pack_length_prefixed(kernel.code))
    return b"".join(fields)


def unpack_kernels(data: bytes) -> list[DeviceKernel]:
    """Deserialise what `pack_kernels` returns."""
    at = len(DEVICE_CODE_MAGIC)

    def read_uint32() -> int:
        """Read a little-endian uint32 and advance."""
        nonlocal at
        at += 4
        return int(struct.unpack_from("<I", data, at - 4)[0])

    def read_bytes() -> bytes:
        """Read a length-prefixed byte string and advance."""
        nonlocal at
        size = read_uint32()
        at += size
        return data[at - size : at]

    kernels = []
    for _ in range(read_uint32()):
        # A tuple is evaluated from left to right, which is the order of the fields in the file.
        kind, form, name, args = (
            read_uint32(),
            read_bytes().decode(),
            read_bytes().decode(),
            read_bytes().decode(),
        )
        checks = tuple((read_bytes().decode(), read_bytes().decode()) for _ in range(read_uint32()))
        kernels.append(DeviceKernel(name, kind, form, args, read_bytes(), checks))
    return kernels


def sources_by_format(data: bytes) -> dict[str, str]:
    """Return the kernels' code by format; binary code (SPIR-V) is shown with escapes."""
    code_by_format: dict[str, list[str]] = {}
    for kernel in unpack_kernels(data):
        code_by_format.setdefault(kernel.format, []).append(
            kernel.code.decode("utf-8", "backslashreplace")
        )
    return {form: "\n".join(codes) for form, codes in code_by_format.items()}


def device_type_of_kernels(data: bytes) -> str:
    """Return the kind of device of serialised kernels, such as "cuda"; "device" without any."""
    numbers = {kernel.device_type for kernel in unpack_kernels(data)}
    return str(Device(min(numbers), 0)).partition("(")[0] if numbers else "device"
