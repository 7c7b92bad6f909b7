"""Alias metadata: which memory accesses cannot touch the same bytes (`!alias.scope`, `!noalias`);
one alias scope per buffer.

For functions with the attribute `tir.noalias` no two buffers overlap, as TVM's `T.func_attr` says:
those that Ekiden makes for models, and those that `te.create_prim_func` is told of. A store to one
buffer then leaves what was loaded from others valid, for the emitter and for LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.tir.expr import Buffer

FIRST_SCOPE_NODE = 100_000
"""Numbers of metadata nodes from which scopes are counted; debug information has those below."""


class AliasScopes:
    """Alias scopes of one function's buffers; nodes go to its module's metadata. Buffers that may
    alias others (`homes`) share their scope.
    """

    def __init__(self, metadata: list[str], homes: Mapping[Buffer, Buffer]) -> None:
        self._metadata = metadata
        self._homes = homes
        self._domain = self._node(f'distinct !{{!{self._next()}, !"function"}}')
        self._scopes: dict[Buffer, int] = {}

    def _next(self) -> int:
        return FIRST_SCOPE_NODE + len(self._metadata)

    def _node(self, text: str) -> int:
        number = self._next()
        self._metadata.append(f"!{number} = {text}")
        return number

    def number(self, buffer: Buffer) -> int:
        """Return the first of three metadata ids of a buffer: its alias scope, the list of only
        this scope, the list of all other scopes.
        """
        buffer = self._homes.get(buffer, buffer)
        first_node = self._scopes.get(buffer)
        if first_node is None:
            scope = self._next()
            first_node = self._node(
                f'distinct !{{!{scope}, !{self._domain}, !"{_plain(buffer.name)}"}}'
            )
            self._node(f"!{{!{scope}}}")
            self._node("")
            self._scopes[buffer] = first_node
        return first_node

    def suffix(self, buffer: Buffer) -> str:
        """Return the metadata that is appended to a load or store of a buffer."""
        number = self.number(buffer)
        return f", !alias.scope !{number + 1}, !noalias !{number + 2}"

    def finish(self) -> None:
        """Write the `noalias` lists, once all buffers are known."""
        for own in self._scopes.values():
            other_scopes = ", ".join(f"!{n}" for n in self._scopes.values() if n != own)
            self._metadata[own + 2 - FIRST_SCOPE_NODE] = f"!{own + 2} = !{{{other_scopes}}}"


def _plain(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
