"""Executor and Runtime options of `relay.build`, with TVM's names.

The constructor checks that the option exists and has a value of its type. An option that is not
supported here is rejected where code would be generated: see `refused`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import ClassVar

from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass

Option = tuple[type, object]
"""Type of an option's value, and its default; None for unset."""

TVM_TYPE_NAMES = {bool: "IntImm", int: "IntImm", str: "runtime.String"}
"""TVM's names of the value types."""


@dataclass(frozen=True)
class RegisteredChoice:
    """Registered executor or runtime with its options."""

    name: str
    options: Mapping[str, object] | None = field(default=None)

    TABLE: ClassVar[Mapping[str, Mapping[str, Option]]] = {}

    def __post_init__(self) -> None:
        available = self.list_registered_options_of(self.name)
        for key, value in (self.options or {}).items():
            if key not in available:
                raise CompileError(
                    f'{self._kind()}: Attribute "{key}" is not available on this {self._kind()};'
                    f" there are {', '.join(available) or 'none'}"
                )
            expected = available[key][0]
            if TVM_TYPE_NAMES.get(type(value)) != TVM_TYPE_NAMES[expected]:
                actual = TVM_TYPE_NAMES.get(type(value), type(value).__name__)
                raise CompileError(
                    f'{self._kind()}: Attribute "{key}" should have type '
                    f'"{TVM_TYPE_NAMES[expected]}" but instead found "{actual}"'
                )

    @classmethod
    def _kind(cls) -> str:
        return cls.__name__

    @classmethod
    def list_registered_options_of(cls, name: str) -> Mapping[str, Option]:
        """Return the options of a name.

        Raises:
            CompileError: The name is not in the table.
        """
        if name not in cls.TABLE:
            kinds = " or ".join(map(repr, cls.TABLE))
            raise CompileError(
                f'{cls._kind()}: {cls._kind()} "{name}" is not defined; expected {kinds}'
            )
        return cls.TABLE[name]

    @classmethod
    def list_registered(cls) -> list[str]:
        """Return the registered names."""
        return list(cls.TABLE)

    @classmethod
    def list_registered_options(cls, choice: str | RegisteredChoice) -> dict[str, str]:
        """Return the type names of the options of a name or choice."""
        name = choice if isinstance(choice, str) else choice.name
        options = cls.list_registered_options_of(name).items()
        return {key: TVM_TYPE_NAMES[kind] for key, (kind, _) in options}

    def refused(self) -> str:
        """Return the first set option that is not supported, or ""."""
        table = self.TABLE[self.name]
        for key, value in (self.options or {}).items():
            # Constants are in the artifact; a program for "crt" is linked into what runs it.
            is_always = value is True and (key == "link-params" or self._is_linked(key))
            if value != table[key][1] and not is_always:
                return f"{self._kind()} {self.name!r}: {key}={value!r} has no effect here"
        return ""

    def _is_linked(self, key: str) -> bool:
        return self.name == "crt" and key == "system-lib"

    def __getitem__(self, key: str) -> object:
        """Return the value of an option.

        Raises:
            KeyError: There is no such option.
        """
        table = self.TABLE[self.name]
        if key not in table:
            raise KeyError(f"{self._kind()} {self.name!r} has no option {key!r}")
        return (self.options or {}).get(key, table[key][1])

    def __contains__(self, key: object) -> bool:
        """Return whether an option has a value."""
        table = self.TABLE[self.name]
        return key in (self.options or {}) or (key in table and table[str(key)][1] is not None)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Executor(RegisteredChoice):
    """Executor of `relay.build(executor=)`: "graph" (bytecode) or "aot" (also native code)."""

    TABLE: ClassVar[Mapping[str, Mapping[str, Option]]] = {
        "graph": {"link-params": (bool, False)},
        "aot": {
            "link-params": (bool, True),
            "unpacked-api": (bool, False),
            "interface-api": (str, "packed"),
            "workspace-byte-alignment": (int, None),
            "constant-byte-alignment": (int, None),
        },
    }


@dataclass(frozen=True)
class Runtime(RegisteredChoice):
    """Runtime of `relay.build(runtime=)`: "cpp" (runtime library) or "crt" (C without
    allocator).
    """

    TABLE: ClassVar[Mapping[str, Mapping[str, Option]]] = {
        "cpp": {"system-lib": (bool, False)},
        "crt": {"system-lib": (bool, False)},
    }


def combination_error(how: Executor, on: Runtime) -> str:
    """Return why an executor is unsupported on a runtime, or ""."""
    if on.name == "crt":
        return on.refused() or _micro_executor_error(how)
    unpacked, interface = how.name == "aot" and how["unpacked-api"], "packed"
    if how.name == "aot":
        interface = str(how["interface-api"])
    if unpacked or interface != "packed":
        return (
            f"Need unpacked-api == false (got: {int(bool(unpacked))}) and interface-api =="
            f' "packed" (got: {interface}) when targeting c++ runtime'
        )
    return how.refused() or on.refused()


def _micro_executor_error(how: Executor) -> str:
    """Return why an executor is unsupported without the runtime library, or "".

    Functions of C take addresses, with `unpacked-api` or not; `interface-api` decides the entry
    point.
    """
    if how.name != "aot":
        return f"Runtime 'crt': executor 'aot' expected, got {how.name!r}"
    interface = how["interface-api"]
    if interface not in ("c", "packed"):
        return f"Executor 'aot': interface-api 'c' or 'packed' expected, got {interface!r}"
    if interface == "c" and not how["unpacked-api"]:
        return (
            f'Either need interface_api == "packed" (got: {interface}) or unpacked-api == true'
            " (got: 0) when targeting c runtime"
        )
    if how["link-params"] is not True:
        return "Executor 'aot': link-params=False has no effect on runtime 'crt'"
    return ""


__all__ = ["Executor", "RegisteredChoice", "Runtime", "combination_error"]
