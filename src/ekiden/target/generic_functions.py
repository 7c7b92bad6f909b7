"""Functions whose implementation the current target chooses (TVM's generic functions).

@target.generic_func
def schedule(outputs): ...

@schedule.register(["cuda", "gpu"])
def _(outputs): ...

with Target("cuda"):
    schedule(outputs)  # the second one
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from ekiden.runtime.errors import InputError
from ekiden.target.target import Target

__all__ = [
    "GenericFunc",
    "generic_func",
    "get_native_generic_func",
    "override_native_generic_func",
]

Implementation = Callable[..., Any]


class GenericFunc:
    """Function with implementations by keys of targets: the first key of the current target that
    has one decides, else the default is called.
    """

    def __init__(self, name: str, default: Implementation | None = None) -> None:
        self.name = name
        self._default = default
        self._by_key: dict[str, Implementation] = {}
        if default is not None:
            functools.update_wrapper(self, default)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  of the implementation
        """Call the implementation for the current target. Raises InputError without any."""
        target = Target.current(allow_none=True)
        keys = () if target is None else (*target.keys, target.kind.name)
        chosen = next((self._by_key[key] for key in keys if key in self._by_key), self._default)
        if chosen is None:
            where = "without a target" if target is None else f"for the target '{target.kind.name}'"
            raise InputError(f"generic function '{self.name}': no implementation {where}")
        return chosen(*args, **kwargs)

    def set_default(self, func: Implementation, allow_override: bool = False) -> None:
        """Set the default. Raises InputError where there is one."""
        if self._default is not None and not allow_override:
            raise InputError(f"generic function '{self.name}': it has a default already")
        self._default = func

    def register(
        self,
        func: Implementation | str | Sequence[str] | None = None,
        key_list: str | Sequence[str] | None = None,
        allow_override: bool = False,
        override: bool = False,
    ) -> Any:  # noqa: ANN401  the function, or a decorator
        """Register an implementation for keys; without one, return a decorator that does.

        Args:
            func: The implementation, or the keys.
            key_list: One key or several.
            allow_override: Whether an implementation of a key may be replaced.
            override: The same, as TVM's decorator calls it.

        Raises:
            InputError: A key has an implementation already.
        """
        if not callable(func):
            keys = func if key_list is None else key_list

            def register_decorated(implementation: Implementation) -> Implementation:
                """Register the decorated function."""
                self.register(implementation, keys, allow_override, override)
                return implementation

            return register_decorated
        for key in [key_list] if isinstance(key_list, str) else key_list or ():
            if key in self._by_key and not (allow_override or override):
                raise InputError(f"generic function '{self.name}': '{key}' is registered already")
            self._by_key[key] = func
        return func

    def get_packed_func(self) -> GenericFunc:
        """Return the function itself, under TVM's name."""
        return self


def generic_func(fdefault: Implementation) -> GenericFunc:
    """Make a function generic, with itself as the default (a decorator)."""
    return GenericFunc(fdefault.__name__, fdefault)


_NAMED: dict[str, GenericFunc] = {}


def get_native_generic_func(name: str) -> GenericFunc:
    """Return the generic function of a name; the first request makes it, without a default."""
    return _NAMED.setdefault(name, GenericFunc(name))


def override_native_generic_func(func_name: str) -> Callable[[Implementation], GenericFunc]:
    """Return a decorator that makes a function the default of the generic function of a name."""

    def make_default(fdefault: Implementation) -> GenericFunc:
        """Set the default."""
        generic = get_native_generic_func(func_name)
        generic.set_default(fdefault, allow_override=True)
        functools.update_wrapper(generic, fdefault)
        return generic

    return make_default
