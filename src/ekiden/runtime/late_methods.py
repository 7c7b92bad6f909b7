"""Dataclasses whose methods are made when they are first used: `dataclasses.dataclass` compiles up
to six functions for each class when its module is imported, of which most programs call few.

    from ekiden.runtime.late_methods import dataclass

    @dataclass(frozen=True, slots=True)
    class Row:
        name: str
        sizes: tuple[int, ...] = ()

Such classes are dataclasses to Python (`fields`, `replace`, `match`) and to type checkers.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = [
    "dataclass",
    "delete_attribute",
    "field_values",
    "initialize_late",
    "raw_fields",
    "repr_of",
    "set_attribute",
    "set_field_values",
]

_T = TypeVar("_T")
_Method = Callable[..., Any]
_Field = dataclasses.Field[Any]


class LateMethod:
    """A method that is made when it is first looked up, and takes this object's place then."""

    __slots__ = ("_make", "_name", "_owner")

    def __init__(self, owner: type, name: str, make: Callable[[type], FunctionType]) -> None:
        self._owner, self._name, self._make = owner, name, make
        setattr(owner, name, self)

    def __get__(self, instance: object, kind: type | None = None) -> _Method:
        made = self._make(self._owner)
        made.__name__ = self._name
        made.__qualname__ = f"{self._owner.__qualname__}.{self._name}"
        made.__module__ = self._owner.__module__
        if vars(self._owner).get(self._name) is self:
            setattr(self._owner, self._name, made)
        return made if instance is None else MethodType(made, instance)


def _dataclass(
    cls: type[_T] | None = None,
    /,
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> type[_T] | Callable[[type[_T]], type[_T]]:
    """As `dataclasses.dataclass` of the same arguments; fields that are `InitVar` it has not."""

    def made(cls: type[_T]) -> type[_T]:
        """The class with what was asked for."""
        own = frozenset(vars(cls))
        has_hash = "__hash__" in own and not (vars(cls)["__hash__"] is None and "__eq__" in own)
        done = fields_in(cls, slots, kw_only)
        if init and "__init__" not in own:
            initialize_late(done, frozen)
        if repr and "__repr__" not in own:
            done.__repr__ = repr_of  # type: ignore[method-assign]
        if eq and "__eq__" not in own:
            LateMethod(done, "__eq__", _equality)
        if eq and frozen and not has_hash:
            LateMethod(done, "__hash__", _hash)
        elif eq and not has_hash:
            done.__hash__ = None  # type: ignore[assignment]
        for name, method in _FROZEN.items() if frozen else ():
            if name not in own:
                setattr(done, name, method)
        return done

    return made if cls is None else made(cls)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


def fields_in(cls: type[_T], slots: bool, kw_only: bool = False) -> type[_T]:
    """The class with its fields, and without a method of its own for them. What Python says of the
    fields, and patterns, are made late as methods are: most classes of a program are never asked.
    """
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclasses would look for a signature, which takes as long
    stated = vars(cls).get("__annotations__", {})
    own = {name: text for name, text in stated.items() if not str(text).startswith("ClassVar")}
    if not all(map(_is_plain, own.values())):
        return dataclasses.dataclass(
            init=False, repr=False, eq=False, slots=slots, kw_only=kw_only
        )(cls)
    found = {name: vars(cls).get(name, dataclasses.MISSING) for name in own}
    for name, value in found.items() if not slots else ():
        if isinstance(value, dataclasses.Field):
            _set_default(cls, name, value)
    done = _with_slots(cls, tuple(own)) if slots else cls
    LateFields(done, [(name, own[name], value) for name, value in found.items()], kw_only)
    done.__dataclass_params__ = _PLAIN.__dataclass_params__  # type: ignore[attr-defined]
    if "__match_args__" not in vars(done):
        LateValue(done, "__match_args__", _match_args)
    return done


def _is_plain(annotation: object) -> bool:
    """Whether an annotation is surely that of a field."""
    return isinstance(annotation, str) and not any(map(annotation.__contains__, _NO_FIELDS))


_NO_FIELDS = ("ClassVar", "InitVar", "KW_ONLY")


def _set_default(cls: type, name: str, field: _Field) -> None:
    """Let a class have what a field has as its default in the place of the field."""
    if field.default is dataclasses.MISSING:
        delattr(cls, name)
    else:
        setattr(cls, name, field.default)


def _with_slots(cls: type[_T], own: Sequence[str]) -> type[_T]:
    """The class made anew, with slots for those fields that have none. Raises TypeError where it
    has some.
    """
    if "__slots__" in vars(cls):
        raise TypeError(f"{cls.__name__} already specifies __slots__")
    names = dict.fromkeys((*(name for name, _, _ in raw_fields(cls)), *own))
    have = {slot for base in cls.__mro__[1:-1] for slot in _slots_of(base)}
    left_out = {*names, "__dict__", "__weakref__"}
    values: dict[str, Any] = {n: v for n, v in vars(cls).items() if n not in left_out}
    values["__slots__"] = tuple(name for name in names if name not in have)
    kind: Any = type(cls)
    made: type[_T] = kind(cls.__name__, cls.__bases__, values)
    made.__qualname__ = cls.__qualname__
    return made


def _slots_of(base: type) -> tuple[str, ...]:
    slots = vars(base).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


class LateValue:
    """What a class has by a name: made when it is first asked for, in this object's place."""

    __slots__ = ("_make", "_name", "_owner")

    def __init__(self, owner: type, name: str, make: Callable[[type], object]) -> None:
        self._owner, self._name, self._make = owner, name, make
        setattr(owner, name, self)

    def __get__(self, instance: object, kind: type | None = None) -> object:
        made = self._make(self._owner)
        if vars(self._owner).get(self._name) is self:
            setattr(self._owner, self._name, made)
        return made


RawField = tuple[str, str, Any]
"""Name and annotation of a field, and its default: a `Field` where it was written by `field`."""


class LateFields(LateValue):
    """The fields of a class, by name. Those that it adds to its bases' are `own`."""

    __slots__ = ("kw_only", "own")

    def __init__(self, owner: type, own: Sequence[RawField], kw_only: bool) -> None:
        super().__init__(owner, _FIELDS, self._of)
        self.own, self.kw_only = own, kw_only

    def _of(self, cls: type) -> dict[str, _Field]:
        """What Python keeps of the fields. Raises ValueError for a default that instances would
        share and change.
        """
        found: dict[str, _Field] = {}
        for base in cls.__mro__[-1:0:-1]:
            found.update(getattr(base, _FIELDS) if _FIELDS in vars(base) else {})
        for name, text, value in self.own:
            is_written = isinstance(value, dataclasses.Field)
            made: Any = value if is_written else dataclasses.field(default=value)
            kind = type(made.default)
            if kind.__hash__ is None:
                raise ValueError(
                    f"mutable default {kind} for field {name} is not allowed: use default_factory"
                )
            made.name, made.type, made._field_type = name, text, _KIND
            if made.kw_only is dataclasses.MISSING:
                made.kw_only = self.kw_only
            found[name] = made
        return found


def raw_fields(cls: type) -> list[RawField]:
    """The fields of a class in their order, those of its bases too, without making them."""
    found: dict[str, RawField] = {}
    for base in reversed(cls.__mro__):
        fields = vars(base).get(_FIELDS, {})
        if isinstance(fields, LateFields):
            found.update((raw[0], raw) for raw in fields.own)
        else:
            found.update(
                (name, (name, str(f.type), f)) for name, f in fields.items() if _is_field(f)
            )
    return list(found.values())


def _match_args(cls: type) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(cls) if f.init and not f.kw_only)


@dataclasses.dataclass(init=False, repr=False, eq=False)
class _Plain:
    """One class by Python's decorator: what all have in common is that of this one."""

    x: int


_FIELDS = "__dataclass_fields__"
_PLAIN: Any = _Plain
_KIND = _PLAIN.__dataclass_fields__["x"]._field_type
"""What Python marks fields by that are no constants of the class."""


def _is_field(field: _Field) -> bool:
    return field._field_type is _KIND  # type: ignore[attr-defined]


def _is_frozen(kind: type, name: str) -> bool:
    """Whether an attribute may not be assigned: any of a frozen class, its fields in a class made
    of one.
    """
    return "__dataclass_fields__" in vars(kind) or name in getattr(kind, "__dataclass_fields__", ())


def set_attribute(self: object, name: str, value: object) -> None:
    """`__setattr__` of frozen classes. Raises FrozenInstanceError."""
    if _is_frozen(type(self), name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def delete_attribute(self: object, name: str) -> None:
    """`__delattr__` of frozen classes. Raises FrozenInstanceError."""
    if _is_frozen(type(self), name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def field_values(self: Any) -> list[object]:  # noqa: ANN401
    """`__getstate__` of frozen classes: what copies and pickles have."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def set_field_values(self: Any, state: Iterable[object]) -> None:  # noqa: ANN401
    """`__setstate__` of frozen classes: take the values of the fields."""
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN: Mapping[str, _Method] = {
    "__setattr__": set_attribute,
    "__delattr__": delete_attribute,
    "__getstate__": field_values,
    "__setstate__": set_field_values,
}


@reprlib.recursive_repr()
def repr_of(self: Any) -> str:  # noqa: ANN401
    """As dataclasses write it: `Conv2DAttrs(strides=(1, 1), ...)`."""
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def initialize_late(cls: type, frozen: bool) -> None:
    """Give a class with fields its constructor; that of a frozen one sets them by their slots, past
    `__setattr__`.
    """
    LateMethod(cls, "__init__", _frozen_initializer if frozen else _initializer)


def _initializer(cls: Any, frozen: bool = False) -> FunctionType:  # noqa: ANN401
    """The constructor. Raises TypeError where a field without a default follows one that has it."""
    fields = dataclasses.fields(cls)
    values: dict[str, object] = {"_LATER": _LATER, "_set": object.__setattr__}
    body = [_setting(i, field, cls, frozen, values) for i, field in enumerate(fields)]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    given = [field for field in fields if field.init]
    plain, named = ([f for f in given if bool(f.kw_only) is is_named] for is_named in (False, True))
    place = {field.name: f"_{i}" for i, field in enumerate(fields)}
    parameters = ["self", *(place[f.name] for f in plain)]
    parameters += ["*", *(place[f.name] for f in named)] if named else []
    text = f"def made({', '.join(parameters)}): {'; '.join(filter(None, body)) or 'pass'}"
    made = FunctionType(_named(text, tuple(place)), values)
    optional = [field for field in plain if _has_default(field)]
    if optional != plain[len(plain) - len(optional) :]:
        raise TypeError(f"{cls.__qualname__}: a field without a default follows one that has it")
    made.__defaults__ = tuple(map(_default, optional))
    made.__kwdefaults__ = {f.name: _default(f) for f in named if _has_default(f)}
    made.__annotations__ = {f.name: f.type for f in (*plain, *named)} | {"return": None}
    return made


def _frozen_initializer(cls: type) -> FunctionType:
    return _initializer(cls, True)


def _setting(i: int, field: _Field, cls: type, frozen: bool, values: dict[str, object]) -> str:
    """The statement that sets the field in a place; what it names is put into `values`. Empty where
    nothing gives the field a value.
    """
    if not field.init and not _has_default(field):
        return ""
    value = f"_{i}" if field.init else f"_default_{i}"
    values[f"_default_{i}"] = field.default
    if field.default_factory is not dataclasses.MISSING:
        values[f"_make_{i}"] = field.default_factory
        value = f"_make_{i}() if _{i} is _LATER else _{i}" if field.init else f"_make_{i}()"
    if not frozen:
        return f"self._{i} = {value}"
    slot = getattr(cls, field.name, None)
    if isinstance(slot, MemberDescriptorType):
        values[f"_set_{i}"] = slot.__set__
        return f"_set_{i}(self, {value})"
    values[f"_name_{i}"] = field.name
    return f"_set(self, _name_{i}, {value})"


def _has_default(field: _Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


class _Later:
    """What a parameter has until a factory makes its value."""

    def __repr__(self) -> str:
        return "<factory>"


_LATER = _Later()


def _default(field: _Field) -> object:
    return _LATER if field.default is dataclasses.MISSING else field.default


def _equality(cls: Any) -> FunctionType:  # noqa: ANN401
    """`__eq__`: of one class, by the fields that are compared."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    text = (
        f"def made(self, other):\n"
        f" if other.__class__ is not self.__class__: return NotImplemented\n"
        f" return {_values_of('self', names)} == {_values_of('other', names)}"
    )
    return FunctionType(_named(text, names), {})


def _hash(cls: Any) -> FunctionType:  # noqa: ANN401
    """`__hash__`: by the fields that are compared, or that say that they take part."""
    fields = dataclasses.fields(cls)
    names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    return FunctionType(
        _named(f"def made(self): return hash({_values_of('self', names)})", names), {}
    )


def _values_of(owner: str, names: Sequence[str]) -> str:
    """The tuple of the fields in these places."""
    return f"({''.join(f'{owner}._{i}, ' for i in range(len(names)))})"


def _named(text: str, names: Sequence[str]) -> CodeType:
    """The code of a function in which `_0` stands for the first of the names, `_1` for the next:
    compiling is what takes the time, and is the same for all classes with as many fields.
    """
    code = _code(text)
    name_of = {f"_{i}": name for i, name in enumerate(names)}
    return code.replace(
        co_names=tuple(name_of.get(each, each) for each in code.co_names),
        co_varnames=tuple(name_of.get(each, each) for each in code.co_varnames),
    )


@cache
def _code(text: str) -> CodeType:
    """Of the function `made`."""
    scope: dict[str, Any] = {}
    exec(compile(text, "<fields>", "exec"), scope)
    code: CodeType = scope["made"].__code__
    return code
