#!/usr/bin/env python3
"""Generate sbom/*.cdx.json, the bills of materials of Ekiden's packages, from pyproject.toml.

The format is CycloneDX 1.6. Nothing in the files depends on when or where they are written; a wheel
carries its own as `*.dist-info/sboms/NAME.cdx.json` (PEP 770). `--check` only compares.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from generated_files import REPOSITORY_ROOT, write_or_check

BUNDLED_PACKAGES = {
    "cython": (
        "Apache-2.0",
        "its helper code in C is part of the extension ekiden.runtime.binding._core",
    ),
    "numpy": ("BSD-3-Clause", "its C headers are compiled into the same extension"),
    "ziglang": ("MIT", "its compiler-rt, the arithmetic that a processor lacks, is linked in"),
}
"""Packages of which code is in the wheels: their licence, and which code. Their versions are those
that releases are built with."""


def package_version() -> str:
    """Return the package's version."""
    text = (REPOSITORY_ROOT / "src/ekiden/__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    assert match is not None, "pyproject.toml's metadata provider reads the same line"
    return match[1]


def normalized_name(requirement: str) -> str:
    """Return the normalized package name of a requirement: ml-dtypes for `ml_dtypes>=0.5`."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert match is not None, f"a requirement begins with a name: {requirement!r}"
    return re.sub(r"[-_.]+", "-", match[0]).lower()


def pinned_versions(release: Iterable[str]) -> dict[str, str]:
    """Return the version to which the release extra pins each bundled package. Raises SystemExit if
    one is not pinned, since the contents of a wheel would be unknown.
    """
    pinned = {
        normalized_name(requirement): requirement.partition("==")[2] for requirement in release
    }
    for key in BUNDLED_PACKAGES:
        if not pinned.get(key):
            raise SystemExit(f"generate_sbom: {key}: the extra 'release' must pin it with ==")
    return {key: pinned[key] for key in BUNDLED_PACKAGES}


def cyclonedx_bom(
    name: str,
    description: str,
    needed: Iterable[str],
    extras: dict[str, list[str]],
    built_in: dict[str, str],
) -> dict[str, Any]:
    """Return the CycloneDX bill of materials of one package; `built_in` gives the versions of
    bundled packages.
    """
    optional = {
        normalized_name(optional_requirement): optional_requirement
        for names in extras.values()
        for optional_requirement in names
    }
    components_by_name = {
        normalized_name(required_requirement): (required_requirement, "required")
        for required_requirement in needed
    }
    for key in sorted(optional.keys() - components_by_name.keys()):
        components_by_name[key] = (optional[key], "optional")
    package_url = f"pkg:pypi/{name}@{package_version()}"
    components = [
        _dependency_component(key, *components_by_name[key]) for key in sorted(components_by_name)
    ]
    components += [_bundled_component(key, number) for key, number in built_in.items()]
    about = {
        "type": "library",
        "bom-ref": package_url,
        "name": name,
        "version": package_version(),
        "description": description,
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": package_url,
    }
    required = [
        f"pkg:pypi/{key}"
        for key, (_, scope) in sorted(components_by_name.items())
        if scope == "required"
    ]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": about},
        "components": components,
        "dependencies": [{"ref": package_url, "dependsOn": required}],
    }


def _dependency_component(key: str, requirement: str, scope: str) -> dict[str, Any]:
    purl = f"pkg:pypi/{key}"
    properties = [{"name": "ekiden:requirement", "value": requirement}]
    return {
        "type": "library",
        "bom-ref": purl,
        "name": key,
        "scope": scope,
        "purl": purl,
        "properties": properties,
    }


def _bundled_component(key: str, number: str) -> dict[str, Any]:
    licence, what = BUNDLED_PACKAGES[key]
    return {
        "type": "library",
        "bom-ref": f"built-in/{key}",
        "name": key,
        "version": number,
        "scope": "required",
        "description": what,
        "licenses": [{"license": {"id": licence}}],
        "purl": f"pkg:pypi/{key}@{number}",
    }


def main() -> int:
    """Write both files, or with --check compare them; return the exit status."""
    table = tomllib.loads((REPOSITORY_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, runtime = table["project"], table["tool"]["ekiden-runtime"]
    bills = [
        ("ekiden", project),
        ("ekiden-runtime", runtime),
    ]
    built_in = pinned_versions(project["optional-dependencies"]["release"])
    files = {}
    for name, row in bills:
        extras = row["optional-dependencies"]
        package_bill = cyclonedx_bom(
            name, row["description"], row["dependencies"], extras, built_in
        )
        files[REPOSITORY_ROOT / "sbom" / f"{name}.cdx.json"] = (
            json.dumps(package_bill, indent=1) + "\n"
        )
    return write_or_check(files, "generate_sbom.py")


if __name__ == "__main__":
    sys.exit(main())
