"""Alias metadata: which memory accesses cannot touch the same bytes (`!alias.scope`, `!noalias`);
one alias scope per buffer.

For functions with the attribute `tir.noalias` no two buffers overlap, as TVM's `T.func_attr` says:
those that Ekiden makes for models, and those that `te.create_prim_func` is told of. A store to one
buffer then leaves what was loaded from others valid, for the emitter and for LLVM.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.tir.expr import Buffer

FIRST_SCOPE_METADATA_ID = 100_000
"""First metadata id of alias scopes; debug information uses lower ones."""


class AliasScopes:
    """Alias scopes of one function's buffers; nodes go to its module's metadata. Buffers that may
    alias others (`homes`) share their scope.
    """

    def __init__(self, metadata: list[str], homes: Mapping[Buffer, Buffer]) -> None:
        self._metadata = metadata
        self._scope_ids = homes
        self._domain = self._add_metadata(f'distinct !{{!{self._next_metadata_id()}, !"function"}}')
        self._scopes: dict[Buffer, int] = {}

    def _next_metadata_id(self) -> int:
        return FIRST_SCOPE_METADATA_ID + len(self._metadata)

    def _add_metadata(self, text: str) -> int:
        number = self._next_metadata_id()
        self._metadata.append(f"!{number} = {text}")
        return number

    def scope_id(self, buffer: Buffer) -> int:
        """Return the first of three metadata ids of a buffer: its alias scope, the list of only
        this scope, the list of all other scopes.
        """
        buffer = self._scope_ids.get(buffer, buffer)
        first_node = self._scopes.get(buffer)
        if first_node is None:
            scope = self._next_metadata_id()
            first_node = self._add_metadata(
                f'distinct !{{!{scope}, !{self._domain}, !"{_metadata_name(buffer.name)}"}}'
            )
            self._add_metadata(f"!{{!{scope}}}")
            self._add_metadata("")
            self._scopes[buffer] = first_node
        return first_node

    def access_metadata(self, buffer: Buffer) -> str:
        """Return the metadata that is appended to a load or store of a buffer."""
        number = self.scope_id(buffer)
        return f", !alias.scope !{number + 1}, !noalias !{number + 2}"

    def finish(self) -> None:
        """Write the `noalias` lists, once all buffers are known."""
        for own in self._scopes.values():
            other_scopes = ", ".join(f"!{n}" for n in self._scopes.values() if n != own)
            self._metadata[own + 2 - FIRST_SCOPE_METADATA_ID] = f"!{own + 2} = !{{{other_scopes}}}"


def _metadata_name(name: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
