"""Which memory accesses cannot touch the same bytes: one alias scope per buffer.

For functions with the attribute `tir.noalias` no two buffers overlap, as TVM's `T.func_attr` says:
those that Ekiden makes for models, and those that `te.create_prim_func` is told of. A store to one
buffer then leaves what was loaded from others valid, for the emitter and for LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.tir.expr import Buffer

FIRST = 100_000
"""Numbers of metadata nodes from which scopes are counted; debug information has those below."""


class AliasScopes:
    """The scopes of one function's buffers; nodes go to the metadata of its module.

    `homes`: buffers that may lie in the bytes of others have the scope of those.
    """

    def __init__(self, metadata: list[str], homes: Mapping[Buffer, Buffer]) -> None:
        self._metadata = metadata
        self._homes = homes
        self._domain = self._node(f'distinct !{{!{self._next()}, !"function"}}')
        self._scopes: dict[Buffer, int] = {}

    def _next(self) -> int:
        return FIRST + len(self._metadata)

    def _node(self, text: str) -> int:
        number = self._next()
        self._metadata.append(f"!{number} = {text}")
        return number

    def number(self, buffer: Buffer) -> int:
        """The first of three nodes of a buffer: its scope, a list of it, a list of all others."""
        buffer = self._homes.get(buffer, buffer)
        found = self._scopes.get(buffer)
        if found is None:
            scope = self._next()
            found = self._node(f'distinct !{{!{scope}, !{self._domain}, !"{_plain(buffer.name)}"}}')
            self._node(f"!{{!{scope}}}")
            self._node("")
            self._scopes[buffer] = found
        return found

    def suffix(self, buffer: Buffer) -> str:
        """What is appended to a load or store of a buffer."""
        number = self.number(buffer)
        return f", !alias.scope !{number + 1}, !noalias !{number + 2}"

    def finish(self) -> None:
        """Write the lists of others, once all buffers are known."""
        for own in self._scopes.values():
            others = ", ".join(f"!{n}" for n in self._scopes.values() if n != own)
            self._metadata[own + 2 - FIRST] = f"!{own + 2} = !{{{others}}}"


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
