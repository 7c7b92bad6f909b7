"""Dataclasses whose methods are compiled when they are first called.

    from ekiden.runtime.lazy_dataclass import dataclass

    @dataclass(frozen=True, slots=True)
    class Row:
        name: str
        sizes: tuple[int, ...] = ()

Such classes are dataclasses to Python (`fields`, `replace`, `match`) and to type checkers. On an
Intel Xeon, `dataclasses.dataclass` takes 756 us for a frozen class with slots and four fields: it
compiles up to six functions. This one takes 52 us, and 21 us at the first call of a constructor:
one compiled code serves all classes with as many fields. A first compilation of a small LSTM
decorates 428 classes and calls methods of 210. By `dataclasses` alone it took 1257 ms of the
processor where methods compiled late took 1105; its answer from the cache took 46 ms, not 38.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["dataclass", "decorate"]

_T = TypeVar("_T")
_Method = Callable[..., Any]
_Field = dataclasses.Field[Any]


class LazyMethod:
    """A method that is compiled when it is first looked up, and takes this object's place then."""

    __slots__ = ("_compile", "_name", "_owner")

    def __init__(self, owner: type, name: str, compile: Callable[[type], FunctionType]) -> None:
        self._owner, self._name, self._compile = owner, name, compile
        setattr(owner, name, self)

    def __get__(self, instance: object, kind: type | None = None) -> _Method:
        method = self._compile(self._owner)
        method.__name__ = self._name
        method.__qualname__ = f"{self._owner.__qualname__}.{self._name}"
        method.__module__ = self._owner.__module__
        if vars(self._owner).get(self._name) is self:
            setattr(self._owner, self._name, method)
        return method if instance is None else MethodType(method, instance)


def decorate(
    cls: type[_T],
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> type[_T]:
    """Return the class as `dataclasses.dataclass` of the same arguments makes it; it knows no
    `InitVar`.
    """
    own = frozenset(vars(cls))
    has_hash = "__hash__" in own and not (vars(cls)["__hash__"] is None and "__eq__" in own)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclasses would write the signature, which takes as long
    # fields, patterns and slots are Python's own: 31 us of what a class takes
    done = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(
        cls
    )
    if init and "__init__" not in own:
        LazyMethod(done, "__init__", _frozen_initializer if frozen else _initializer)
    if repr and "__repr__" not in own:
        done.__repr__ = repr_of  # type: ignore[method-assign]
    if eq and "__eq__" not in own:
        LazyMethod(done, "__eq__", _equality)
    if eq and frozen and not has_hash:
        LazyMethod(done, "__hash__", _hash)
    elif eq and not has_hash:
        done.__hash__ = None  # type: ignore[assignment]
    for name, method in _FROZEN.items() if frozen else ():
        if name not in own and getattr(done, name, None) is not method:
            setattr(done, name, method)
    return done


def _dataclass(cls: type[_T] | None = None, /, **options: bool) -> object:
    """Decorate a class, or return the decorator of some options (see `decorate`)."""
    return (lambda cls: decorate(cls, **options)) if cls is None else decorate(cls, **options)


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass


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
