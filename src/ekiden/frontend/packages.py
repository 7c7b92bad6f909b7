"""Python packages required by frontends: whether they are installed, recent, and importable."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from warnings import catch_warnings, simplefilter

from ekiden.ir.package_versions import package_version
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Package:
    """Python package that a frontend or a converter requires.

    It has the module's name, its distributions' names, the oldest supported version, the first
    unsupported one, a function that the module must have, and the newest version that was tried.
    """

    module: str
    distributions: tuple[str, ...]
    min_version: str = ""
    first_unsupported_version: str = ""
    required_function: str = ""
    tested_version: str = ""

    def installed_version(self) -> str:
        """Return the installed version; "" if it is unknown."""
        return next(filter(None, map(package_version, self.distributions)), "")

    @property
    def distribution_name(self) -> str:
        """Return the name of the installed distribution, otherwise of the one to install."""
        return next(filter(package_version, self.distributions), self.distributions[0])

    def is_newer_than_tested(self) -> bool:
        """Return whether the installed version is newer than the newest one that was tried."""
        tested = _parse_version(self.tested_version)
        return bool(tested) and _parse_version(self.installed_version()) > tested

    def problem(self) -> PackageProblem | None:
        """Return the problem of a missing package or an unsupported version; None if there
        is none.
        """
        if not _is_installed(self.module):
            return PackageProblem(
                f"the package {self.distributions[0]!r} is missing", "pip install"
            )
        actual = self.installed_version()
        too_old = (
            actual
            and self.min_version
            and _parse_version(actual) < _parse_version(self.min_version)
        )
        too_new = (
            actual
            and self.first_unsupported_version
            and _parse_version(actual) >= _parse_version(self.first_unsupported_version)
        )
        if not too_old and not too_new:
            return None
        bounds = ("from", self.min_version), ("below", self.first_unsupported_version)
        expected = " ".join(f"{word} {number}" for word, number in bounds if number)
        text = f"expected {self.distributions[0]} {expected}, got {actual}"
        return PackageProblem(text, "pip install --upgrade")

    def unusable_reason(self) -> str:
        """Import the package and return why it cannot be used, with the pip command that helps; ""
        if it can.
        """
        problem = self.problem()
        if problem is None:
            try:
                with catch_warnings():
                    simplefilter("ignore")
                    module = import_module(self.module)
                if self.required_function:
                    getattr(module, self.required_function)
            except IMPORT_ERRORS as error:
                problem = broken_import_problem((self,), error)
        return "" if problem is None else problem.as_text(self.distribution_name)


@dataclass(frozen=True, slots=True)
class PackageProblem:
    """Problem with a Python package, and the pip command that solves it."""

    description: str
    pip_command: str

    def as_text(self, install: str) -> str:
        """Format problem and command as text. `install` is what pip is to install."""
        return f"{self.description}; {self.pip_command} {install}"


IMPORT_ERRORS = (Exception, SystemExit)
"""What importing a package may raise."""


def broken_import_problem(packages: Sequence[Package], error: BaseException) -> PackageProblem:
    """Return the problem of packages whose import raised, which pip must reinstall."""
    have = ", ".join(f"{p.distribution_name} {p.installed_version()}".strip() for p in packages)
    message = str(error) or type(error).__name__
    return PackageProblem(f"{have} cannot be imported: {message}", "pip install --force-reinstall")


def importer_problem(packages: Sequence[Package], error: BaseException) -> str:
    """Return why a frontend's own module cannot be imported, with the pip command that helps: a
    package is broken, or is newer than the versions that were tried and does not have what the
    module uses.
    """
    newer = [p for p in packages if p.is_newer_than_tested()]
    # Python removes a package whose import fails; one that stays is not broken.
    if not newer or not all(p.module in sys.modules for p in packages):
        problem = broken_import_problem(packages, error)
        return problem.as_text(" ".join(p.distribution_name for p in packages))
    have = ", ".join(f"{p.distribution_name} {p.installed_version()}" for p in newer)
    tested = " ".join(f"{p.distribution_name}=={p.tested_version}" for p in newer)
    message = str(error) or type(error).__name__
    description = f"{have} is newer than what Ekiden is tested with, and lacks a part: {message}"
    return PackageProblem(description, "pip install").as_text(tested)


def _is_installed(module: str) -> bool:
    """Return whether a module can be found without importing it."""
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # where something stands in the way of importing it
        return False


def _parse_version(text: str) -> tuple[int, ...]:
    """Parse a version into numbers: "2.13.0+cpu" is (2, 13, 0)."""
    components = text.partition("+")[0].split(".")
    return tuple(int(p) for p in components if p.isdigit())
