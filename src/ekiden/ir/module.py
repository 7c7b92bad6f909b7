"""IRModule: functions by global name, with type definitions and attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.node import Node
from ekiden.ir.type import GlobalTypeVar


class IRModule:
    """Global functions (relay.Function and tir.PrimFunc), type definitions, attributes.

    A module is immutable for passes: they return a new one (`with_functions`). Lookup by name or
    GlobalVar.
    """

    __slots__ = ("_by_name", "attrs", "functions", "type_definitions")
    type_key = "IRModule"
    printer: ClassVar[Callable[[IRModule, bool], str] | None] = None
    """How a module becomes text: set by `ekiden.relay.printer`, which stands on a higher floor."""

    def __init__(
        self,
        functions: Mapping[GlobalVar | str, BaseFunc] | None = None,
        type_definitions: Mapping[GlobalTypeVar, Node] | None = None,
        attrs: Mapping[str, object] | None = None,
    ) -> None:
        """`type_definitions` maps names of algebraic data types to relay.TypeData nodes."""
        self.functions: dict[GlobalVar, BaseFunc] = {
            GlobalVar(k) if isinstance(k, str) else k: f for k, f in (functions or {}).items()
        }
        self._by_name = {g.name_hint: g for g in self.functions}
        self.type_definitions = dict(type_definitions or {})
        self.attrs = dict(attrs or {})

    @classmethod
    def from_expr(cls, function: BaseFunc, name: str = "main") -> IRModule:
        """A module with one function."""
        return cls({name: function})

    def get_global_var(self, name: str) -> GlobalVar:
        """The GlobalVar of a function. Raises KeyError naming those there are."""
        if name not in self._by_name:
            raise KeyError(
                f"no function {name!r}; the module has {', '.join(sorted(self._by_name))}"
            )
        return self._by_name[name]

    def __getitem__(self, key: str | GlobalVar) -> BaseFunc:
        return self.functions[self.get_global_var(key) if isinstance(key, str) else key]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[GlobalVar]:
        return iter(self.functions)

    def with_functions(self, functions: Mapping[GlobalVar, BaseFunc]) -> IRModule:
        """The same module with other functions."""
        named: dict[GlobalVar | str, BaseFunc] = dict(functions.items())
        return IRModule(named, self.type_definitions, self.attrs)

    def update(self, var: GlobalVar | str, function: BaseFunc) -> IRModule:
        """A copy with one function added or replaced."""
        if isinstance(var, str):
            var = self._by_name.get(var) or GlobalVar(var)
        return self.with_functions({**self.functions, var: function})

    def astext(self, show_meta_data: bool = True) -> str:
        """The module in Relay's text format; `ekiden.relay.parse` reads it back."""
        printer = IRModule.printer
        if printer is None:
            return f"IRModule({', '.join(self._by_name)})"
        return printer(self, show_meta_data)

    def __str__(self) -> str:
        return self.astext(show_meta_data=False)
