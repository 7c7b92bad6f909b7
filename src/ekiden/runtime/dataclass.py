"""`dataclass` of the standard library, made in a third of the time: there are hundreds of them, and
it compiles up to six functions for each, which took a third of the time that importing Ekiden did.

Here one is compiled, the constructor; it sets fields by their slots, past `__setattr__`. The others
are the same for all, or made of `attrgetter`. `fields`, `replace`, `asdict`, matching, pickling and
copying are those of the standard library.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, cast

__all__ = ["dataclass", "initializer", "text_of"]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        cls: type | None = None,
        /,
        *,
        frozen: bool = False,
        slots: bool = False,
        eq: bool = True,
        repr: bool = True,
        init: bool = True,
        kw_only: bool = False,
    ) -> object:
        """As of the standard library, without the options that Ekiden has no use for."""

        def make(cls: type) -> type:
            own = frozenset(vars(cls))
            made = dataclasses.dataclass(
                init=False, eq=False, repr=False, slots=slots, kw_only=kw_only
            )(cls)
            methods = _frozen_methods(made) if frozen else {}
            if init and "__init__" not in own:
                methods["__init__"] = initializer(made, is_frozen=frozen)
            if repr and "__repr__" not in own:
                methods["__repr__"] = text_of
            if eq:
                methods |= _comparisons(made, own, frozen)
            for name, method in methods.items():
                setattr(made, name, method)
            return made

        return make if cls is None else make(cls)


@reprlib.recursive_repr()
def text_of(self: object) -> str:
    """As dataclasses write it: `Conv2DAttrs(strides=(1, 1), ...)`."""
    fields = dataclasses.fields(self)  # type: ignore[arg-type]
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in fields if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _values(cls: type, names: list[str]) -> Callable[[object], object]:
    """What gives the values of fields, to be compared and hashed."""
    if not names:
        return lambda _: ()
    found = attrgetter(*names)
    return (lambda self: (found(self),)) if len(names) == 1 else found


def _comparisons(cls: type, own: frozenset[str], is_frozen: bool) -> dict[str, object]:
    """Equality by the fields, and the hash that goes with it, which what may change has not."""
    fields = dataclasses.fields(cls)
    compared = _values(cls, [f.name for f in fields if f.compare])
    hashed = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    values = _values(cls, hashed)

    def __eq__(self: object, other: object) -> bool:  # noqa: N807
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self is other or compared(self) == compared(other)

    def __hash__(self: object) -> int:  # noqa: N807
        return hash(values(self))

    methods: dict[str, object] = {} if "__eq__" in own else {"__eq__": __eq__}
    if "__hash__" not in own or ("__eq__" in own and vars(cls)["__hash__"] is None):
        methods["__hash__"] = __hash__ if is_frozen else None
    return methods


def _frozen_methods(cls: type) -> dict[str, object]:
    """What refuses to change a field, and copies and pickles that need not."""

    def __setattr__(self: object, name: str, value: object) -> None:  # noqa: N807
        if type(self) is cls or name in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)  # type: ignore[arg-type]

    def __delattr__(self: object, name: str) -> None:  # noqa: N807
        if type(self) is cls or name in cls.__dataclass_fields__:  # type: ignore[attr-defined]
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)  # type: ignore[arg-type]

    methods: dict[str, object] = {"__setattr__": __setattr__, "__delattr__": __delattr__}
    if "__slots__" in vars(cls) and "__getstate__" not in vars(cls):
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    return methods


def _state(self: object) -> list[object]:
    return [getattr(self, f.name) for f in dataclasses.fields(self)]  # type: ignore[arg-type]


def _set_state(self: object, state: list[object]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):  # type: ignore[arg-type]
        object.__setattr__(self, field.name, value)


def initializer(cls: type, is_frozen: bool = True) -> Callable[..., None]:
    """The constructor of a dataclass; fields that are `InitVar` go to `__post_init__`."""
    real = dataclasses.fields(cls)
    rows: dict[str, dataclasses.Field[Any]] = cls.__dataclass_fields__  # type: ignore[attr-defined]
    extra = [f for f in rows.values() if str(f.type).startswith(("InitVar", "dataclasses.InitVar"))]
    given = [f for f in rows.values() if (f in real and f.init) or f in extra]
    names: dict[str, object] = {"_MISSING": dataclasses.MISSING, "_set": object.__setattr__}
    parameters = []
    for field in sorted(given, key=lambda f: bool(f.kw_only)):
        if field.kw_only and "*" not in parameters:
            parameters.append("*")
        parameters.append(_parameter(field, names))
    body = [line for f in real if (line := _assignment(cls, f, names, is_frozen))]
    if hasattr(cls, "__post_init__"):
        body.append(f"self.__post_init__({', '.join(f.name for f in extra)})")
    exec(f"def __init__(self, {', '.join(parameters)}): {'; '.join(body) or 'pass'}", names)
    made = cast(Callable[..., None], names["__init__"])
    made.__annotations__ = {f.name: f.type for f in given} | {"return": None}
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return made


def _parameter(field: dataclasses.Field[Any], names: dict[str, object]) -> str:
    """How the constructor takes a field."""
    if field.default is not dataclasses.MISSING:
        names[f"_default_{field.name}"] = field.default
        return f"{field.name}=_default_{field.name}"
    is_made = field.default_factory is not dataclasses.MISSING
    return f"{field.name}=_MISSING" if is_made else field.name


def _assignment(
    cls: type, field: dataclasses.Field[Any], names: dict[str, object], is_frozen: bool
) -> str:
    """The statement that sets a field; none for one that `__post_init__` sets."""
    name, value = field.name, field.name
    if field.default_factory is not dataclasses.MISSING:
        names[f"_make_{name}"] = field.default_factory
        value = f"_make_{name}()"
        if field.init:
            value = f"{value} if {name} is _MISSING else {name}"
    elif not field.init:
        if field.default is dataclasses.MISSING:
            return ""
        names[f"_default_{name}"] = field.default
        value = f"_default_{name}"
    if not is_frozen:
        return f"self.{name} = {value}"
    setter = getattr(getattr(cls, name, None), "__set__", None)
    if setter is None:
        return f"_set(self, {name!r}, {value})"
    names[f"_set_{name}"] = setter
    return f"_set_{name}(self, {value})"
