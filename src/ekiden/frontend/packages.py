"""Python packages required by frontends: whether they are installed, recent, and importable."""

from __future__ import annotations

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
    unsupported one, and a function that the module must have.
    """

    module: str
    distributions: tuple[str, ...]
    min_version: str = ""
    first_unsupported_version: str = ""
    required_function: str = ""

    def installed_version(self) -> str:
        """Return the installed version; "" if it is unknown."""
        return next(filter(None, map(package_version, self.distributions)), "")

    @property
    def distribution_name(self) -> str:
        """Return the name of the installed distribution, otherwise of the one to install."""
        return next(filter(package_version, self.distributions), self.distributions[0])

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
