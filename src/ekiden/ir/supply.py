"""Names that are not taken (TVM's names).

NameSupply("prefix").fresh_name("f")   ->   "prefix_f", then "prefix_f_1", ...
"""

from __future__ import annotations

import re

from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule


class NameSupply:
    """Gives each name once; all begin with a prefix, unless they are asked for without."""

    def __init__(self, prefix: str = "") -> None:
        self.prefix = prefix
        self._taken: dict[str, int] = {}

    def _full(self, name: str, add_prefix: bool) -> str:
        whole = f"{self.prefix}_{name}" if add_prefix and self.prefix else name
        return re.sub(r"\W", "_", whole)

    def fresh_name(self, name: str, add_prefix: bool = True) -> str:
        """A name that nobody has, which is then taken: this one, or with a number behind it."""
        whole = self._full(name, add_prefix)
        if whole not in self._taken:
            self._taken[whole] = 0
            return whole
        while True:
            self._taken[whole] += 1
            found = f"{whole}_{self._taken[whole]}"
            if found not in self._taken:
                self._taken[found] = 0
                return found

    def reserve_name(self, name: str, add_prefix: bool = True) -> str:
        """Take a name, whether it is free or not."""
        whole = self._full(name, add_prefix)
        self._taken.setdefault(whole, 0)
        return whole

    def contains_name(self, name: str, add_prefix: bool = True) -> bool:
        """Whether a name is taken."""
        return self._full(name, add_prefix) in self._taken


class GlobalVarSupply:
    """Gives global variables whose names nobody has: nobody in a module, or by a name supply."""

    def __init__(self, value: NameSupply | IRModule | None = None) -> None:
        self.names = value if isinstance(value, NameSupply) else NameSupply()
        self._known: dict[str, GlobalVar] = {}
        if isinstance(value, IRModule):
            for var in value.functions:
                self.reserve_global(var)

    def reserve_global(self, global_var: GlobalVar, allow_conflict: bool = False) -> None:
        """Take a variable's name. Raises ValueError where another variable has it, unless that is
        allowed."""
        name = global_var.name_hint
        if not allow_conflict and self._known.get(name, global_var) is not global_var:
            raise ValueError(f"reserve global: @{name} is another variable already")
        self.names.reserve_name(name, add_prefix=False)
        self._known[name] = global_var

    def fresh_global(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """A variable of a name that nobody has: this one, or with a number behind it."""
        made = GlobalVar(self.names.fresh_name(name, add_prefix))
        self._known[made.name_hint] = made
        return made

    def unique_global_for(self, name: str, add_prefix: bool = True) -> GlobalVar:
        """The variable of a name, always the same."""
        whole = self.names._full(name, add_prefix)
        if whole not in self._known:
            self._known[whole] = GlobalVar(self.names.reserve_name(name, add_prefix))
        return self._known[whole]


__all__ = ["GlobalVarSupply", "NameSupply"]
