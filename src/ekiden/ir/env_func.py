"""EnvFunc: named global functions as nodes that can be saved and compared."""

from __future__ import annotations

from ekiden.ir.node import Node, node
from ekiden.runtime import PackedFunc, get_global_func


@node("EnvFunc")
class EnvFunc(Node):
    """Reference to a global function by name; obtain one with `EnvFunc.get`."""

    name: str

    @staticmethod
    def get(name: str) -> EnvFunc:
        """Return the EnvFunc of a registered global function. Raises ValueError where none is
        registered.
        """
        get_global_func(name)
        return EnvFunc(name)

    @property
    def func(self) -> PackedFunc:
        """Return the function currently registered under the name. Raises ValueError where
        none is.
        """
        return get_global_func(self.name)

    def __call__(self, *args: object) -> object:
        """Call the function."""
        return self.func(*args)
