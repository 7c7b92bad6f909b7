"""Functions of the global registry as nodes: what a node can name, save and compare."""

from __future__ import annotations

from ekiden.ir.node import Node, node
from ekiden.runtime import PackedFunc, get_global_func


@node("EnvFunc")
class EnvFunc(Node):
    """A global function by its name; get one with `EnvFunc.get`."""

    name: str

    @staticmethod
    def get(name: str) -> EnvFunc:
        """Return the function of a name. Raises ValueError where none is registered."""
        get_global_func(name)
        return EnvFunc(name)

    @property
    def func(self) -> PackedFunc:
        """Return the function that is registered now. Raises ValueError where none is."""
        return get_global_func(self.name)

    def __call__(self, *args: object) -> object:
        """Call the function."""
        return self.func(*args)
