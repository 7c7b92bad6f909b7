"""Generators of unique names and global variables (TVM's NameSupply).

NameSupply("prefix").fresh_name("f")   ->   "prefix_f", then "prefix_f_1", ...
"""

from __future__ import annotations

import re

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.name_uniquer import NameUniquer


class NameSupply:
    """Generator of unique names, with an optional common prefix."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._names = NameUniquer()

    def _full_name(self, name: str, add_prefix: bool) -> str:
        full_name = f"{self.prefix}_{name}" if add_prefix and self.prefix else name
        return re.sub(r"\W", "_", full_name)

    def fresh_name(self, name: str, add_prefix: bool = True) -> str:
        """Return and reserve an unused name: the given one, with a number appended if needed."""
        return self._names.fresh(self._full_name(name, add_prefix))

    def reserve_name(self, name: str, add_prefix: bool = True) -> str:
        """Reserve a name even if it is already in use."""
        full_name = self._full_name(name, add_prefix)
        self._names.reserve(full_name)
        return full_name

    def contains_name(self, name: str, add_prefix: bool = True) -> bool:
        """Return whether a name is reserved."""
        return self._full_name(name, add_prefix) in self._names


class GlobalVarSupply:
    """Generator of GlobalVars with names unique in a module or a NameSupply."""

    def __init__(self, value: NameSupply | IRModule | None = None) -> None:
        self.names = value if isinstance(value, NameSupply) else NameSupply()
        self._vars_by_name: dict[str, GlobalVar] = {}
        if isinstance(value, IRModule):
            for var in value.functions:
                self.reserve_global(var)

    def reserve_global(self, global_var: GlobalVar, allow_conflict: bool = False) -> None:
        """Reserve a GlobalVar's name. Raises ValueError where another variable has it, unless that
        is allowed.
        """
        name = global_var.name_hint
        if not allow_conflict and self._vars_by_name.get(name, global_var) is not global_var:
            raise ValueError(f"reserve global: @{name} is another variable already")
        self.names.reserve_name(name, add_prefix=False)
        self._vars_by_name[name] = global_var

    def fresh_global(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """Return a new GlobalVar with an unused name, with a number appended if needed."""
        var = GlobalVar(self.names.fresh_name(name, add_prefix))
        self._vars_by_name[var.name_hint] = var
        return var

    def unique_global_for(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """Return the one GlobalVar of a name, creating it on first use."""
        full_name = self.names._full_name(name, add_prefix)
        if full_name not in self._vars_by_name:
            self._vars_by_name[full_name] = GlobalVar(self.names.reserve_name(name, add_prefix))
        return self._vars_by_name[full_name]


__all__ = ["GlobalVarSupply", "NameSupply"]
