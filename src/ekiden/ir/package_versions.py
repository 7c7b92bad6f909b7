"""Versions of installed packages read from `.dist-info` folder names, since importing
`importlib.metadata` takes longer than loading most models.
"""

from __future__ import annotations

import functools
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ekiden._lazy import LazyModule

if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = LazyModule("importlib.metadata")

__all__ = ["package_version"]

_DIST_INFO_SUFFIX = ".dist-info"


def package_version(distribution: str) -> str:
    """Return a package's version, or "" if it is not installed."""
    version = _installed_versions().get(_normalize_name(distribution))
    if version is not None:
        return version
    try:  # an egg, a zip, or what was installed since
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


@functools.cache
def _installed_versions() -> dict[str, str]:
    """Return {normalized name: version} over sys.path, the first folder taking precedence."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        with suppress(OSError):
            for entry in os.listdir(folder or os.curdir):
                if entry.endswith(_DIST_INFO_SUFFIX):
                    name, _, version = entry.removesuffix(_DIST_INFO_SUFFIX).rpartition("-")
                    versions.setdefault(_normalize_name(name), version)
    return versions


def _normalize_name(distribution: str) -> str:
    return distribution.lower().replace("-", "_").replace(".", "_")
