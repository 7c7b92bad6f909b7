"""Comparison of a program's loops with the description of a tensor intrinsic or a micro-kernel."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.arith import Analyzer
from ekiden.ir.prim import IntImm, PrimExpr, Var, const, is_const
from ekiden.ir.prim_visitor import children, free_vars, literal_fields, substitute
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BlockRealize, BufferStore, For, SeqStmt, Stmt
from ekiden.tir.visitor import substitute as substitute_stmt


class MismatchError(Exception):
    """The error of a program that does not match an intrinsic's description; the message says
    where.
    """


class DescriptionMatcher:
    """A matcher of a description's loops and buffers to a program's loops and buffer regions."""

    def __init__(self, inside: set[Var]) -> None:
        self.var_map: dict[Var, PrimExpr] = {}
        self.inner_vars = inside
        """Variables of the matched program part, on which buffer offsets must not depend."""
        self.buffer_map: dict[Buffer, tuple[Buffer, tuple[PrimExpr, ...]]] = {}
        self.analyzer = Analyzer()

    def match_stmt(self, desc: Stmt, actual: Stmt) -> None:
        """Match statements; blocks are opened, with their iterators replaced by the bindings."""
        desc, actual = substitute_block_bindings(desc), substitute_block_bindings(actual)
        # A schedule may have dropped unit loops that the description still has.
        if isinstance(desc, For) and is_const(desc.extent, 1) and not isinstance(actual, For):
            self.match_stmt(substitute_stmt(desc.body, {desc.loop_var: desc.min}), actual)
            return
        match desc, actual:
            case For(), For():
                if not self.analyzer.can_prove_equal(desc.extent, actual.extent):
                    raise MismatchError(
                        f"loop {actual.loop_var.name!r} has {_comparable_size(actual.extent)} "
                        f"steps, expected {_comparable_size(desc.extent)}"
                    )
                self.var_map[desc.loop_var] = actual.loop_var
                self.inner_vars.add(actual.loop_var)
                self.analyzer.bind(actual.loop_var, actual.min, actual.extent)
                self.match_stmt(desc.body, actual.body)
            case BufferStore(), BufferStore():
                self.match_access(desc.buffer, desc.indices, actual.buffer, actual.indices)
                self.match_expr(desc.value, actual.value)
            case SeqStmt(), SeqStmt() if len(desc.seq) == len(actual.seq):
                for a, b in zip(desc.seq, actual.seq, strict=True):
                    self.match_stmt(a, b)
            case _:
                raise MismatchError(
                    f"expected a {type(desc).__name__}, got a {type(actual).__name__}"
                )

    def match_expr(self, desc: PrimExpr, actual: PrimExpr) -> None:
        """Match expressions node by node."""
        stack = [(desc, actual)]
        while stack:
            a, b = stack.pop()
            if isinstance(a, Var):
                if not self.analyzer.can_prove_equal(self.var_map.get(a, a), b):
                    raise MismatchError(f"another variable stands for {a.name!r}")
                continue
            if type(a) is not type(b) or a.dtype != b.dtype:
                raise MismatchError(
                    f"expected {type(a).__name__} of {a.dtype}, got {type(b).__name__} of {b.dtype}"
                )
            if isinstance(a, BufferLoad):
                assert isinstance(b, BufferLoad)
                self.match_access(a.buffer, a.indices, b.buffer, b.indices)
                continue
            if literal_fields(a) != literal_fields(b):
                raise MismatchError(f"expected {literal_fields(a)}, got {literal_fields(b)}")
            stack.extend(zip(children(a), children(b), strict=True))

    def match_access(
        self,
        desc: Buffer,
        desc_indices: Sequence[PrimExpr],
        actual: Buffer,
        indices: Sequence[PrimExpr],
    ) -> None:
        """Match elements: the last axes are the description's, from an offset."""
        if desc.dtype != actual.dtype:
            raise MismatchError(f"{actual.name!r} is of {actual.dtype}, expected {desc.dtype}")
        lead = len(indices) - len(desc_indices)
        if lead < 0:
            raise MismatchError(
                f"{actual.name!r} has {len(indices)} axes, {len(desc_indices)} expected"
            )
        offsets = [self.analyzer.simplify(i) for i in indices[:lead]]
        for a, b in zip(desc_indices, indices[lead:], strict=True):
            offsets.append(self.analyzer.simplify(b - substitute(a, self.var_map)))
        for n, offset in enumerate(offsets):
            if any(v in self.inner_vars for v in free_vars(offset)):
                raise MismatchError(f"axis {n} of {actual.name!r} does not run as described")
        # A described buffer maps to one region: every later access must give the same buffer and
        # offsets.
        mapped = self.buffer_map.setdefault(desc, (actual, tuple(offsets)))
        same = mapped[0] is actual and all(
            self.analyzer.can_prove_equal(x, y) for x, y in zip(mapped[1], offsets, strict=True)
        )
        if not same:
            raise MismatchError(f"{desc.name!r} stands for two parts of buffers")


def _comparable_size(e: PrimExpr) -> object:
    return e.value if isinstance(e, IntImm) else "a symbolic number of"


def substitute_block_bindings(s: Stmt) -> Stmt:
    """Return the body of nested blocks, with iterators replaced by their bindings."""
    while isinstance(s, BlockRealize):
        values = dict(zip((i.var for i in s.block.iter_vars), s.iter_values, strict=True))
        s = substitute_stmt(s.block.body, values)
    return s


def row_major_strides(shape: Sequence[PrimExpr]) -> list[PrimExpr]:
    """Return the strides of a dense row-major shape."""
    strides: list[PrimExpr] = []
    size: PrimExpr = const(1)
    for extent in reversed(shape):
        strides.append(size)
        size = size * extent
    return strides[::-1]


__all__ = [
    "DescriptionMatcher",
    "MismatchError",
    "row_major_strides",
    "substitute_block_bindings",
]
