"""Wide accesses of device kernels in dialects of C, whose vectors are loops over lanes.

    b[i * 4 : +4] = a[i * 4 : +4] * 2

        float near[4];                                 /* 16 bytes at once where a begins at a */
        ek_load_near<uint4>(near, &a[i * 4], a_near);  /* multiple of 16, else element by element */
        float wide[4];
        for (int lane = 0; lane < 4; ++lane) { wide[lane] = near[lane] * 2.0f; }
        ek_store_near<uint4>(&b[i * 4], wide, b_near);

Accesses that are not proven to be aligned (`codegen.wide_access`), or are guarded by a condition,
stay in the loop.
"""

from __future__ import annotations

from ekiden.codegen.c.helpers import HelperFunctions
from ekiden.codegen.c.types import memory_type
from ekiden.codegen.c.vector_writer import VectorWriter
from ekiden.codegen.common import contract_fma
from ekiden.codegen.device.dialect import KernelDialect
from ekiden.codegen.wide_access import MAX_ACCESS_BYTES, vector_access_bytes
from ekiden.ir import dtype as dt
from ekiden.ir.prim import PrimExpr, is_const
from ekiden.ir.prim_visitor import post_order
from ekiden.tir.expr import Buffer, BufferLoad, Ramp
from ekiden.tir.stmt import BufferStore
from ekiden.tir.visitor import conditional_nodes


class WideAccessWriter(VectorWriter):
    """Statement writer of a kernel in a dialect that may have wide accesses."""

    def __init__(self, helpers: HelperFunctions, symbol: str, dialect: KernelDialect) -> None:
        super().__init__(helpers, symbol, dialect.vectors)
        self.dialect = dialect
        self.top: list[str] = []
        self.alignment_flags: dict[Buffer, str] = {}
        """Name of the alignment flag of each memory parameter; empty until an access needs it."""
        self._loaded_lanes: dict[PrimExpr, str] = {}
        """Lane array of each wide load that was emitted."""

    def invalidate_loads(self) -> None:
        """Drop loaded lanes, as memory may have changed."""
        super().invalidate_loads()
        self._loaded_lanes = {}

    def _cached_text(self, e: PrimExpr) -> str | None:
        if isinstance(e, BufferLoad) and e in self._loaded_lanes:
            return f"{self._loaded_lanes[e]}[lane]"
        return super()._cached_text(e)

    def hoist_lane_reductions(self, *values: PrimExpr) -> None:
        """Emit wide loads before a loop over lanes."""
        super().hoist_lane_reductions(*values)
        for value in values if self.dialect.wide_types else ():
            order = post_order(value)
            guarded = conditional_nodes(value, order)
            for e in order:
                # A guarded load may be out of bounds where its condition is false, so it cannot be
                # hoisted.
                if (
                    isinstance(e, BufferLoad)
                    and id(e) not in guarded
                    and e not in self._loaded_lanes
                ):
                    self._emit_wide_load(e)

    def _emit_wide_load(self, e: BufferLoad) -> None:
        index = e.indices[0]
        access_type = self._wide_type(e.buffer, index)
        if not access_type:
            return
        assert isinstance(index, Ramp)
        offset, name = self.text(index.base), self.unique("near")
        self.emit_line(self.syntax.var(memory_type(e.dtype), name, dt.lanes(e.dtype)))
        guard = self._alignment_flag(e.buffer)
        self.emit_line(
            f"ek_load_near<{access_type}>({name}, &{self.name(e.buffer)}[{offset}], {guard});"
        )
        self._loaded_lanes[e] = name

    def write_store(self, s: BufferStore) -> None:
        """Emit the lanes, then one wide store of them."""
        access_type = self._wide_type(s.buffer, s.indices[0]) if self.dialect.wide_types else ""
        is_whole = s.predicate is None or is_const(s.predicate, 1)
        value = contract_fma(s)
        if not access_type or not is_whole or dt.lanes(value.dtype) != dt.lanes(s.indices[0].dtype):
            super().write_store(s)
            return
        index = s.indices[0]
        assert isinstance(index, Ramp)
        # Wide loads of the value must precede the loop over its lanes.
        self.hoist_lane_reductions(value)
        offset, name = self.text(index.base), self._loaded_lanes.get(value, "")
        if not name:
            name = self.unique("wide")
            self.emit_line(
                self.syntax.var(memory_type(s.buffer.dtype), name, dt.lanes(value.dtype))
            )
            self.write_lane_loop(
                dt.lanes(value.dtype), lambda: f"{name}[lane] = {self.text(value)};"
            )
        guard = self._alignment_flag(s.buffer)
        self.emit_line(
            f"ek_store_near<{access_type}>(&{self.name(s.buffer)}[{offset}], {name}, {guard});"
        )
        # The store may change memory whose lanes are cached.
        self.invalidate_loads()

    def _wide_type(self, buffer: Buffer, index: PrimExpr) -> str:
        """Return the type of a wide access at an index; "" where the access is scalar."""
        size = vector_access_bytes(buffer, index, is_argument=buffer in self.alignment_flags)
        return self.dialect.wide_types.get(size, "")

    def _alignment_flag(self, buffer: Buffer) -> str:
        """Return the name of the flag that tells whether a buffer is 16-byte aligned; emitted once
        per argument.
        """
        self.helpers.texts.setdefault("near", self.dialect.wide_helpers)
        # Shared arrays are declared with their alignment: only arguments need a test.
        if buffer not in self.alignment_flags:
            return "true"
        if not self.alignment_flags[buffer]:
            self.alignment_flags[buffer] = self.unique(f"{self.name(buffer)}_near")
            location = f"(uint64_t){self.name(buffer)} % {MAX_ACCESS_BYTES}"
            self.top.append(f"  const bool {self.alignment_flags[buffer]} = {location} == 0;")
        return self.alignment_flags[buffer]


__all__ = ["WideAccessWriter"]
