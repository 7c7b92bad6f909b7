"""IRModule: global functions with algebraic data types and module attributes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar, overload

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.node import Node
from ekiden.ir.type import GlobalTypeVar
from ekiden.runtime import Object, define_node_class


class IRModule:
    """Module: global functions (relay.Function and tir.PrimFunc), type definitions and attributes.

    A module is immutable for passes: they return a new one (`with_functions`). Whoever builds one
    adds to it by `module[name] = function`. Lookup by name or GlobalVar.
    """

    __slots__ = ("_by_name", "attrs", "functions", "type_definitions")
    type_key = "IRModule"
    printer: ClassVar[Callable[..., str] | None] = None
    """Printer of modules as text, set by `ekiden.relay.text_hooks`."""
    script_printer: ClassVar[Callable[[IRModule, str], str] | None] = None
    """Printer of modules as TVMScript, set by `ekiden.tir.printer`."""
    relay_reader: ClassVar[Callable[[str, str, IRModule], IRModule] | None] = None
    """Parser of Relay text in scripts, set by `ekiden.relay.parser`."""
    html_printer: ClassVar[Callable[[IRModule], str] | None] = None
    """Printer of modules as HTML, set by `ekiden.relay.text_hooks` and `ekiden.tir.printer_hooks`.
    """
    wrapper: ClassVar[Callable[[object], BaseFunc] | None] = None
    """Function that wraps an expression into a function of its free variables, set by
    `ekiden.relay`.
    """
    library: ClassVar[Callable[[IRModule, str], None] | None] = None
    """Importer of files of Relay's standard library, set by `ekiden.relay.prelude`."""

    def __init__(
        self,
        functions: Mapping[GlobalVar | str, BaseFunc] | None = None,
        type_definitions: Mapping[GlobalTypeVar, Node] | None = None,
        attrs: Mapping[str, object] | None = None,
    ) -> None:
        """Set the functions, data types and attributes.

        `type_definitions` maps names of algebraic data types to relay.TypeData nodes.
        """
        self.functions: dict[GlobalVar, BaseFunc] = {
            GlobalVar(k) if isinstance(k, str) else k: f for k, f in (functions or {}).items()
        }
        # Calls hold GlobalVar objects; users and texts have names.
        self._by_name = {g.name_hint: g for g in self.functions}
        self.type_definitions = dict(type_definitions or {})
        self.attrs = dict(attrs or {})

    @staticmethod
    def from_expr(
        expr: RelayExpr,
        functions: Mapping[GlobalVar | str, BaseFunc] | None = None,
        type_defs: Mapping[GlobalTypeVar, Node] | None = None,
    ) -> IRModule:
        """Build a module with `expr` as `main`, plus further functions and types.

        An expression that is no function becomes the body of one, whose parameters are its free
        variables.
        """
        module = IRModule(functions, type_defs)
        named = expr.attr("global_symbol") if isinstance(expr, BaseFunc) else None
        # A function keeps the symbol it is exported under, as TVM's from_expr does.
        module[named if isinstance(named, str) else "main"] = expr
        return module

    def get_global_var(self, name: str) -> GlobalVar:
        """Look up the GlobalVar of a function by name. Raises KeyError naming those there are."""
        if name not in self._by_name:
            raise KeyError(
                f"no function {name!r}; the module has {', '.join(sorted(self._by_name))}"
            )
        return self._by_name[name]

    def get_global_vars(self) -> list[GlobalVar]:
        """Return the GlobalVars of all functions."""
        return list(self.functions)

    def get_global_type_var(self, name: str) -> GlobalTypeVar:
        """Look up the GlobalTypeVar of a data type by name. Raises KeyError naming those
        there are.
        """
        for header in self.type_definitions:
            if header.name_hint == name:
                return header
        type_names = ", ".join(h.name_hint for h in self.type_definitions)
        raise KeyError(f"no type {name!r}; the module has {type_names}")

    def get_global_type_vars(self) -> list[GlobalTypeVar]:
        """Return the GlobalTypeVars of all data types."""
        return list(self.type_definitions)

    def get_type(self, name: str) -> tuple[Node, ...]:
        """Return a data type's GlobalTypeVar followed by its constructors. Raises KeyError."""
        header = self.get_global_type_var(name)
        # A type that is only declared has no constructors.
        return (header, *getattr(self.type_definitions[header], "constructors", ()))

    def get_attr(self, attr_key: str) -> object:
        """Return a module attribute, or None if it is not set."""
        return self.attrs.get(attr_key)

    def with_attr(self, attr_key: str, attr_value: object) -> IRModule:
        """Return a copy with one attribute replaced."""
        attrs = {**self.attrs, attr_key: attr_value}
        named: dict[GlobalVar | str, BaseFunc] = dict(self.functions.items())
        return IRModule(named, self.type_definitions, attrs)

    def clone(self) -> IRModule:
        """Return a shallow copy whose functions may be changed independently."""
        named: dict[GlobalVar | str, BaseFunc] = dict(self.functions.items())
        return IRModule(named, dict(self.type_definitions), dict(self.attrs))

    def __setitem__(self, var: GlobalVar | GlobalTypeVar | str, value: Node) -> None:
        """Add or replace a function, or a data type by its GlobalTypeVar. For building a module:
        passes return new ones.
        """
        if isinstance(var, GlobalTypeVar):
            self.type_definitions[var] = value
            return
        if not isinstance(value, BaseFunc):
            if IRModule.wrapper is None:
                raise TypeError(f"module: expected a function, got {value!r}")
            value = IRModule.wrapper(value)
        name = self._by_name.get(var) or GlobalVar(var) if isinstance(var, str) else var
        # Calls name functions by the object: a second GlobalVar of one name would be ambiguous in
        # texts.
        if self._by_name.setdefault(name.name_hint, name) is not name:
            raise ValueError(
                f"module: {name.name_hint!r} is the name of another GlobalVar of the module"
            )
        self.functions[name] = value

    def update(self, other: IRModule | Mapping[GlobalVar | str, BaseFunc]) -> None:
        """Add the functions and data types of another module, replacing those with equal names."""
        if not isinstance(other, IRModule):
            other = IRModule(other)
        for header, data in other.type_definitions.items():
            # By name: the header of another module is another object, and the old one must not stay
            # beside it.
            mine = [h for h in self.type_definitions if h.name_hint == header.name_hint]
            for replaced in mine:
                del self.type_definitions[replaced]
            self.type_definitions[header] = data
        for name, function in other.functions.items():
            self.update_func(name, function)

    def _add(self, var: GlobalVar | GlobalTypeVar | str, val: Node, update: bool = True) -> None:
        """Add a definition as `module[var] = val` does (TVM's spelling)."""
        self[var] = val

    def update_func(self, var: GlobalVar, func: BaseFunc) -> None:
        """Add or replace one function under its GlobalVar."""
        # A GlobalVar of that name that is another object would stay in `functions` beside the new
        # one.
        old = self._by_name.pop(var.name_hint, None)
        if old is not None and old is not var:
            del self.functions[old]
        self[var] = func

    def import_from_std(self, file_to_import: str) -> None:
        """Import a file of Relay's standard library: "prelude.rly", "nat.rly", ... Raises KeyError
        naming the files there are.
        """
        if IRModule.library is None:
            raise KeyError("import_from_std: import ekiden.relay first")
        IRModule.library(self, file_to_import)

    @overload
    def __getitem__(self, key: str | GlobalVar) -> BaseFunc: ...
    @overload
    def __getitem__(self, key: GlobalTypeVar) -> Node: ...
    def __getitem__(self, key: str | GlobalVar | GlobalTypeVar) -> BaseFunc | Node:
        """Return a function by its name or variable, the definition of a type by its. Raises
        KeyError.
        """
        if isinstance(key, GlobalTypeVar):
            return self.type_definitions[key]
        return self.functions[self.get_global_var(key) if isinstance(key, str) else key]

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[GlobalVar]:
        return iter(self.functions)

    def with_functions(self, functions: Mapping[GlobalVar, BaseFunc]) -> IRModule:
        """Return a copy with the given functions and the same types and attributes."""
        named: dict[GlobalVar | str, BaseFunc] = dict(functions.items())
        return IRModule(named, self.type_definitions, self.attrs)

    def with_function(self, var: GlobalVar | str, function: BaseFunc) -> IRModule:
        """Return a copy with one function added or replaced."""
        if isinstance(var, str):
            var = self._by_name.get(var) or GlobalVar(var)
        return self.with_functions({**self.functions, var: function})

    def same_as(self, other: object) -> bool:
        """Return whether both are the same object."""
        return self is other

    def show(self, show_meta_data: bool = False) -> None:
        """Print the text, without the values of constants unless `show_meta_data`."""
        print(self._display_text(show_meta_data))

    def _display_text(self, show_meta_data: bool) -> str:
        """Return TVMScript for a module of PrimFuncs only, else Relay text."""
        are_loops = all(f.type_key == "tir.PrimFunc" for f in self.functions.values())
        if IRModule.script_printer is None or not self.functions or not are_loops:
            return self.astext(show_meta_data)
        return self.script()

    def astext(
        self,
        show_meta_data: bool = True,
        annotate: Callable[[RelayExpr], str] | None = None,
        show_spans: bool = False,
    ) -> str:
        """Return the module in Relay's text format; `ekiden.relay.parse` reads it back.

        `annotate` gives the comment after each expression in place of its type. `show_spans` adds
        the source position of each.
        """
        printer = IRModule.printer
        if printer is None:
            return f"IRModule({', '.join(self._by_name)})"
        return printer(self, show_meta_data, annotate, show_spans)

    def __str__(self) -> str:
        return self._display_text(show_meta_data=False)

    def __repr__(self) -> str:
        """Return the text, as expressions and functions do: a prompt shows the program."""
        return self._display_text(show_meta_data=False)

    def _repr_html_(self) -> str | None:
        """Return the HTML representation for notebooks."""
        return None if IRModule.html_printer is None else IRModule.html_printer(self)

    def script(self, name: str = "Module", show_meta: bool = False) -> str:
        """Return the module as TVMScript: a Python class of the given name.

        `ekiden.tir.parse` reads it back. `show_meta` asks for what stands in the text anyhow.
        Raises ValueError before `ekiden.tir` is loaded.
        """
        if IRModule.script_printer is None:
            raise ValueError("module script: import ekiden.tir first")
        return IRModule.script_printer(self, name)


Object.register(IRModule)
define_node_class(
    IRModule,
    [IRModule.type_key],
    [(name, "", True, False) for name in ("functions", "type_definitions", "attrs")],
)
