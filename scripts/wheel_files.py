"""Wheel files: selection of the files of the deployment package, and its reproducible writing.

`ekiden-runtime` is a part of the wheel `ekiden` that was built: the same bytes under another name.
The table `tool.ekiden-runtime` of pyproject.toml says which part.
"""

from __future__ import annotations

import base64
import hashlib
import re
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path
from typing import Any

from generated_files import REPOSITORY_ROOT

RUNTIME_PACKAGE_NAME = "ekiden-runtime"
_ZIP_TIMESTAMP = (1980, 1, 1, 0, 0, 0)
"""The time of all files: the earliest that a zip file can say."""
_COPIED_HEADERS = (
    "Metadata-Version",
    "Version",
    "License-Expression",
    "License-File",
    "Classifier",
)
"""Headers of Ekiden's metadata that its part has too."""


def runtime_package_table() -> dict[str, Any]:
    """Return `tool.ekiden-runtime` of pyproject.toml."""
    text = (REPOSITORY_ROOT / "pyproject.toml").read_text(encoding="utf-8")
    settings: dict[str, Any] = tomllib.loads(text)["tool"][RUNTIME_PACKAGE_NAME]
    return settings


def select_files(names: Iterable[str], row: Mapping[str, Any]) -> list[str]:
    """Return the sorted files of a wheel that the table's patterns include and do not exclude.
    Raises ValueError if an entry of the table matches nothing, since it would be out of date.
    """
    sorted_names = sorted(names)
    for entry in (*row["include"], *row["exclude"]):
        if not any(_matches_entry(name, entry) for name in sorted_names):
            raise ValueError(
                f"pyproject.toml: tool.{RUNTIME_PACKAGE_NAME}: the wheel has no '{entry}'"
            )
    included = [
        name
        for name in sorted_names
        if any(_matches_entry(name, entry) for entry in row["include"])
    ]
    return [
        name
        for name in included
        if not any(_matches_entry(name, entry) for entry in row["exclude"])
    ]


def _matches_entry(name: str, entry: str) -> bool:
    return name == entry or (entry.endswith("/") and name.startswith(entry))


def runtime_wheel(wheel: Path, folder: Path) -> Path:
    """Extract the runtime part of an Ekiden wheel as a separate wheel in the folder."""
    row = runtime_package_table()
    with zipfile.ZipFile(wheel) as source:
        names = source.namelist()
        included = select_files([n for n in names if ".dist-info/" not in n], row)
        old = next(n for n in names if n.endswith(".dist-info/METADATA")).rpartition("/")[0]
        files = {name: source.read(name) for name in included}
        about = BytesParser(policy=compat32).parsebytes(source.read(f"{old}/METADATA"))
        tags = source.read(f"{old}/WHEEL")
        licences = [n for n in names if n.startswith(f"{old}/licenses/")]
        version = about["Version"]
        info = f"{RUNTIME_PACKAGE_NAME.replace('-', '_')}-{version}.dist-info"
        files |= {f"{info}{name.removeprefix(old)}": source.read(name) for name in licences}
    files[f"{info}/METADATA"] = runtime_metadata(about, row)
    files[f"{info}/WHEEL"] = re.sub(
        rb"(?m)^Generator: .*$", b"Generator: ekiden build_wheels", tags
    )
    files[f"{info}/sboms/{RUNTIME_PACKAGE_NAME}.cdx.json"] = (
        REPOSITORY_ROOT / "sbom" / f"{RUNTIME_PACKAGE_NAME}.cdx.json"
    ).read_bytes()
    target = folder / wheel.name.replace("ekiden-", f"{RUNTIME_PACKAGE_NAME.replace('-', '_')}-", 1)
    write_wheel(target, files, info)
    return target


def runtime_metadata(about: Message, row: Mapping[str, Any]) -> bytes:
    """Return the METADATA of the runtime wheel, from Ekiden's and the table's entries."""
    lines = [("Metadata-Version", about["Metadata-Version"]), ("Name", RUNTIME_PACKAGE_NAME)]
    lines += [("Version", about["Version"]), ("Summary", row["description"])]
    # Metadata-Version and Version, which come first, are written above.
    for header in _COPIED_HEADERS[2:]:
        lines += [(header, value) for value in about.get_all(header, [])]
    lines.append(("Requires-Python", about["Requires-Python"]))
    lines += [("Requires-Dist", requirement) for requirement in row["dependencies"]]
    for extra, needed in row["optional-dependencies"].items():
        lines.append(("Provides-Extra", extra))
        lines += [
            ("Requires-Dist", f'{extra_requirement}; extra == "{extra}"')
            for extra_requirement in needed
        ]
    lines.append(("Description-Content-Type", "text/markdown"))
    head = "".join(f"{key}: {value}\n" for key, value in lines)
    return f"{head}\n{(REPOSITORY_ROOT / 'runtime/README.md').read_text(encoding='utf-8')}".encode()


def write_wheel(target: Path, files: Mapping[str, bytes], info: str) -> None:
    """Write a wheel reproducibly: equal files give equal bytes."""
    ordered = sorted(files, key=lambda name: (name.startswith(info), name))
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as out:
        for name in ordered:
            _add_file(out, name, files[name])
        _add_file(out, f"{info}/RECORD", _record_lines(files, ordered, info))


def _add_file(out: zipfile.ZipFile, name: str, data: bytes) -> None:
    item = zipfile.ZipInfo(name, _ZIP_TIMESTAMP)
    item.compress_type = zipfile.ZIP_DEFLATED
    item.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
    out.writestr(item, data)


def _record_lines(files: Mapping[str, bytes], ordered: Sequence[str], info: str) -> bytes:
    rows = []
    for name in ordered:
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        rows.append(f"{name},sha256={digest.decode()},{len(files[name])}\n")
    return "".join([*rows, f"{info}/RECORD,,\n"]).encode()
