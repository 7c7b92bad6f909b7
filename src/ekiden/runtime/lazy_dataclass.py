"""Dataclasses whose methods are compiled at their first call.

    from ekiden.runtime.lazy_dataclass import dataclass

    @dataclass(frozen=True, slots=True)
    class Row:
        name: str
        sizes: tuple[int, ...] = ()

Such classes are dataclasses to Python (`fields`, `replace`, `match`) and to type checkers. On an
AMD EPYC (Zen 5), `dataclasses.dataclass` takes 310 us for a frozen class with slots and four
fields: it compiles up to six functions. This one takes 17 us, and 18 us at the first call of a
constructor: one compiled code serves all classes with as many fields. A first compilation of a
small LSTM decorates 437 classes and calls constructors of 200; an answer from the cache, 10 and 9.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from types import CodeType, FunctionType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, get_origin

__all__ = ["apply_dataclass", "dataclass", "read_declared_defaults"]

_T = TypeVar("_T")
_Method = Callable[..., Any]
_Field = dataclasses.Field[Any]


class LazyAttribute:
    """Descriptor of a class attribute that is computed at the first look-up, and then replaces the
    descriptor. A function that is looked up by an instance is its method.
    """

    __slots__ = ("_make", "_name", "_owner")

    def __init__(self, owner: type, name: str, make: Callable[[type], object]) -> None:
        self._owner, self._name, self._make = owner, name, make
        setattr(owner, name, self)

    def __get__(self, instance: object, kind: type | None = None) -> object:
        value = self._make(self._owner)
        if vars(self._owner).get(self._name) is self:
            setattr(self._owner, self._name, value)
        if instance is None or not isinstance(value, FunctionType):
            return value
        return MethodType(value, instance)


_FIELDS_ATTRIBUTE = "__dataclass_fields__"


class LazyFields(LazyAttribute):
    """Descriptor of `__dataclass_fields__`, computed when it is first read. The fields that the
    class body declares then go through Python's decorator, on a class that has nothing else;
    constructors and comparisons are compiled from `declared_fields`, so that most classes never
    need it.
    """

    __slots__ = ("_declared", "defaults", "kw_only")

    def __init__(self, owner: type, defaults: Mapping[str, object], kw_only: bool) -> None:
        super().__init__(owner, _FIELDS_ATTRIBUTE, self._collect_fields)
        self.defaults, self.kw_only = defaults, kw_only
        self._declared: Mapping[str, _Field] | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(self.defaults)

    @property
    def declared_fields(self) -> Mapping[str, _Field]:
        """Return the fields that the class body declares. Raises ValueError for a default that
        instances would share and change.
        """
        if self._declared is None:
            annotations = self._owner.__annotations__
            self._declared = {
                name: self._field(name, annotations[name], value)
                for name, value in self.defaults.items()
            }
        return self._declared

    def _field(self, name: str, annotation: Any, value: Any) -> _Field:  # noqa: ANN401
        is_written = isinstance(value, dataclasses.Field)
        field: _Field = value if is_written else dataclasses.field(default=value)
        if type(field.default).__hash__ is None:
            raise ValueError(
                f"mutable default {type(field.default)} for field {name} is not allowed: "
                "use default_factory"
            )
        field.name, field.type = name, annotation
        if field.kw_only is dataclasses.MISSING:
            field.kw_only = self.kw_only
        return field

    def _collect_fields(self, cls: Any) -> dict[str, _Field]:  # noqa: ANN401
        body: dict[str, object] = dict(self.declared_fields)
        # Python looks for ClassVar in annotations that are texts, with three patterns a field
        body["__annotations__"] = dict.fromkeys(self.defaults, object)
        body["__doc__"] = cls.__doc__  # else Python writes one, for which it imports `inspect`
        decorated: Any = dataclasses.dataclass(init=False, repr=False, eq=False)(
            type(cls.__name__, (), body)
        )
        fields: dict[str, _Field] = {}
        for base in reversed(cls.__mro__[1:]):
            fields.update(getattr(base, _FIELDS_ATTRIBUTE, {}))
        for name, field in decorated.__dataclass_fields__.items():
            fields[name] = field
            field.type = cls.__annotations__[name]
        cls.__dataclass_params__ = decorated.__dataclass_params__
        return fields


def _fields(cls: type) -> list[_Field]:
    """Return the fields of a class and its bases, those of bases first."""
    fields: dict[str, _Field] = {}
    for base in reversed(cls.__mro__):
        declared = vars(base).get(_FIELDS_ATTRIBUTE)
        if isinstance(declared, LazyFields):
            fields.update(declared.declared_fields)
        elif declared is not None:
            fields.update((field.name, field) for field in dataclasses.fields(base))
    return list(fields.values())


def read_declared_defaults(cls: type) -> dict[str, object]:
    """Return the fields that the body of a class declares: name -> default, as written; MISSING
    where there is none, a `Field` for `field(...)`."""
    return {
        name: _class_default(cls, name)
        for name, annotation in cls.__annotations__.items()
        if not _is_class_variable(annotation)
    }


def _class_default(cls: type, name: str) -> object:
    value = getattr(cls, name, dataclasses.MISSING)
    is_slot = isinstance(value, MemberDescriptorType)  # of a base that declares the field too
    return dataclasses.MISSING if is_slot else value


def _is_class_variable(annotation: object) -> bool:
    if isinstance(annotation, str):
        return annotation.startswith(("ClassVar", "typing.ClassVar"))
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _recreate_with_slots(cls: type[_T], defaults: Mapping[str, object]) -> type[_T]:
    """Recreate the class with slots for its fields, except those for which its bases have slots.
    Raises TypeError where its body has `__slots__`.
    """
    if "__slots__" in vars(cls):
        raise TypeError(f"{cls.__name__} already specifies __slots__")
    bases = [vars(base) for base in cls.__mro__[-2:0:-1]]
    slotted = set(chain.from_iterable(map(_new_slots, bases)))
    names = dict.fromkeys(chain(*(base.get(_FIELDS_ATTRIBUTE, ()) for base in bases), defaults))
    no_part = {*names, "__dict__", "__weakref__"}
    body: dict[str, Any] = {n: value for n, value in vars(cls).items() if n not in no_part}
    body["__slots__"] = tuple(name for name in names if name not in slotted)
    metaclass: Any = type(cls)
    # Slots exist from the creation of a class on, so the class is created again.
    remade: type[_T] = metaclass(cls.__name__, cls.__bases__, body)
    remade.__qualname__ = cls.__qualname__
    return remade


def _new_slots(body: Mapping[str, Any]) -> tuple[str, ...]:
    slots = body.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _restore_field_defaults(cls: type[_T], defaults: Mapping[str, object]) -> type[_T]:
    """Replace the `field(...)` objects in the class by their defaults."""
    for name, value in defaults.items():
        if isinstance(value, dataclasses.Field):
            if value.default is dataclasses.MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, value.default)
    return cls


def _match_args(cls: Any) -> tuple[str, ...]:  # noqa: ANN401
    return tuple(f.name for f in _fields(cls) if f.init and not f.kw_only)


def apply_dataclass(
    cls: type[_T],
    *,
    init: bool = True,
    repr: bool = True,
    eq: bool = True,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
) -> type[_T]:
    """Return the class as `dataclasses.dataclass` of the same arguments would; it knows no
    `InitVar`.
    """
    class_fields = frozenset(vars(cls))
    has_hash = "__hash__" in class_fields and not (
        vars(cls)["__hash__"] is None and "__eq__" in class_fields
    )
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # dataclasses would write the signature, which takes as long
    defaults = read_declared_defaults(cls)
    done = (_recreate_with_slots if slots else _restore_field_defaults)(cls, defaults)
    LazyFields(done, defaults, kw_only)
    done.__replace__ = dataclasses.replace  # type: ignore[attr-defined]  # copy.replace, from 3.13
    if "__match_args__" not in class_fields:
        LazyAttribute(done, "__match_args__", _match_args)
    if init and "__init__" not in class_fields:
        LazyAttribute(done, "__init__", _compile_frozen_init if frozen else _compile_init)
    if repr and "__repr__" not in class_fields:
        done.__repr__ = dataclass_repr  # type: ignore[method-assign]
    if eq and "__eq__" not in class_fields:
        LazyAttribute(done, "__eq__", _compile_eq)
    # As dataclasses define it: mutable classes with __eq__ are unhashable.
    if eq and frozen and not has_hash:
        LazyAttribute(done, "__hash__", _compile_hash)
    elif eq and not has_hash:
        done.__hash__ = None  # type: ignore[assignment]
    for name, method in _FROZEN_METHODS.items() if frozen else ():
        if name not in class_fields and getattr(done, name, None) is not method:
            setattr(done, name, method)
    return done


def _dataclass_decorator(cls: type[_T] | None = None, /, **options: bool) -> object:
    """Decorate a class, or return the decorator of some options (see `decorate`)."""
    return (
        (lambda cls: apply_dataclass(cls, **options))
        if cls is None
        else apply_dataclass(cls, **options)
    )


if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    dataclass = _dataclass_decorator


def _is_frozen(kind: type, name: str) -> bool:
    """Return whether an attribute is read-only: any of a frozen class, the fields in a subclass of
    one.
    """
    return "__dataclass_fields__" in vars(kind) or name in getattr(kind, "__dataclass_fields__", ())


def set_attribute(self: object, name: str, value: object) -> None:
    """Implement `__setattr__` of frozen classes. Raises FrozenInstanceError."""
    if _is_frozen(type(self), name):
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
    object.__setattr__(self, name, value)


def delete_attribute(self: object, name: str) -> None:
    """Implement `__delattr__` of frozen classes. Raises FrozenInstanceError."""
    if _is_frozen(type(self), name):
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
    object.__delattr__(self, name)


def field_values(self: Any) -> list[object]:  # noqa: ANN401
    """Implement `__getstate__` of frozen classes: the state of copies and pickles."""
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def set_field_values(self: Any, state: Iterable[object]) -> None:  # noqa: ANN401
    """Implement `__setstate__` of frozen classes: set the fields' values."""
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN_METHODS: Mapping[str, _Method] = {
    "__setattr__": set_attribute,
    "__delattr__": delete_attribute,
    "__getstate__": field_values,
    "__setstate__": set_field_values,
}


@reprlib.recursive_repr()
def dataclass_repr(self: Any) -> str:  # noqa: ANN401
    """Return the representation of dataclasses: `Conv2DAttrs(strides=(1, 1), ...)`."""
    shown = (f"{f.name}={getattr(self, f.name)!r}" for f in dataclasses.fields(self) if f.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _compile_init(cls: Any, frozen: bool = False) -> FunctionType:  # noqa: ANN401
    """Compile `__init__`. Raises TypeError where a field without a default follows one with a
    default.
    """
    fields = _fields(cls)
    values: dict[str, object] = {"_LATER": _FACTORY_DEFAULT, "_set": object.__setattr__}
    body = [_assignment_text(i, field, cls, frozen, values) for i, field in enumerate(fields)]
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    parameters_fields = [field for field in fields if field.init]
    plain, named = (
        [f for f in parameters_fields if bool(f.kw_only) is is_named] for is_named in (False, True)
    )
    # Numbered names make the text equal for all classes of one shape, so that it is compiled once.
    parameter_name = {field.name: f"_{i}" for i, field in enumerate(fields)}
    parameters = ["self", *(parameter_name[f.name] for f in plain)]
    parameters += ["*", *(parameter_name[f.name] for f in named)] if named else []
    text = f"def method({', '.join(parameters)}): {'; '.join(filter(None, body)) or 'pass'}"
    initializer = _compile_method(cls, "__init__", text, tuple(parameter_name), values)
    optional = [field for field in plain if _has_default(field)]
    if optional != plain[len(plain) - len(optional) :]:
        raise TypeError(f"{cls.__qualname__}: a field without a default follows one that has it")
    initializer.__defaults__ = tuple(map(_default_value, optional))
    initializer.__kwdefaults__ = {f.name: _default_value(f) for f in named if _has_default(f)}
    initializer.__annotations__ = {f.name: f.type for f in (*plain, *named)} | {"return": None}
    return initializer


def _compile_frozen_init(cls: type) -> FunctionType:
    return _compile_init(cls, True)


def _assignment_text(
    i: int, field: _Field, cls: type, frozen: bool, values: dict[str, object]
) -> str:
    """Return the statement that sets the i-th field, "" if it has no value; the objects that the
    statement names are added to `values`.
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
    # The slot's descriptor sets a frozen field without a look-up by name.
    if isinstance(slot, MemberDescriptorType):
        values[f"_set_{i}"] = slot.__set__
        return f"_set_{i}(self, {value})"
    values[f"_name_{i}"] = field.name
    return f"_set(self, _name_{i}, {value})"


def _has_default(field: _Field) -> bool:
    missing = dataclasses.MISSING
    return field.default is not missing or field.default_factory is not missing


class _FactoryDefault:
    """Default of a parameter whose value a factory creates."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY_DEFAULT = _FactoryDefault()


def _default_value(field: _Field) -> object:
    return _FACTORY_DEFAULT if field.default is dataclasses.MISSING else field.default


def _compile_eq(cls: Any) -> FunctionType:  # noqa: ANN401
    """Compile `__eq__`: same class, and equal compared fields."""
    names = [field.name for field in _fields(cls) if field.compare]
    text = (
        f"def method(self, other):\n"
        f" if other.__class__ is not self.__class__: return NotImplemented\n"
        f" return {_field_tuple_text('self', names)} == {_field_tuple_text('other', names)}"
    )
    return _compile_method(cls, "__eq__", text, names, {})


def _compile_hash(cls: Any) -> FunctionType:  # noqa: ANN401
    """Compile `__hash__` over the hashed fields."""
    fields = _fields(cls)
    names = [f.name for f in fields if (f.compare if f.hash is None else f.hash)]
    text = f"def method(self): return hash({_field_tuple_text('self', names)})"
    return _compile_method(cls, "__hash__", text, names, {})


def _field_tuple_text(owner: str, names: Sequence[str]) -> str:
    """Return the source of a tuple of the first fields of an object."""
    return f"({''.join(f'{owner}._{i}, ' for i in range(len(names)))})"


def _compile_method(
    cls: type, name: str, text: str, fields: Sequence[str], values: dict[str, object]
) -> FunctionType:
    """Compile a method from a text with `_0` for the first field, `_1` for the next: compiling is
    what takes the time, and its result is shared by all classes with as many fields.
    """
    code = _compile_text(text)
    field_of = {f"_{i}": field for i, field in enumerate(fields)}
    # Renames the numbered placeholders to the class's fields in the compiled code.
    code = code.replace(
        co_names=tuple(field_of.get(n, n) for n in code.co_names),
        co_varnames=tuple(field_of.get(n, n) for n in code.co_varnames),
    )
    method = FunctionType(code, values, name)
    method.__qualname__, method.__module__ = f"{cls.__qualname__}.{name}", cls.__module__
    return method


@cache
def _compile_text(text: str) -> CodeType:
    """Compile the text of a function `method`."""
    scope: dict[str, Any] = {}
    exec(compile(text, "<fields>", "exec"), scope)
    code: CodeType = scope["method"].__code__
    return code
