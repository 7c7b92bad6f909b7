"""A function with an index of its loops and blocks, and the edits that all primitives consist of.

Loops are identified by their variable, blocks by their name: both are unique in a program and
stable under edits elsewhere. An edit copies the path from the root to the edited statement and
shares everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from typing import NoReturn
from weakref import WeakKeyDictionary

from ekiden.arith import Analyzer
from ekiden.ir.prim import Cast, IntImm, PrimExpr, SizeVar, Var, cast, const, convert, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.ir.range import Range
from ekiden.runtime.errors import ScheduleError
from ekiden.tir import access_regions
from ekiden.tir.access_regions import Access
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)
from ekiden.tir.visitor import (
    NO_OP,
    ExprRewriter,
    StmtMutator,
    all_exprs,
    buffers_read,
    buffers_written,
    direct_accesses,
    flatten_seq,
    is_no_op,
    pre_order_stmts,
    sub_statements,
)
from ekiden.tir.visitor import substitute as substitute_stmt


class RefusedError(ScheduleError):
    """The error of a primitive that refuses, with the statement concerned, whose line the schedule
    adds.
    """

    def __init__(self, message: str, stmt: Stmt | None = None) -> None:
        super().__init__(message)
        self.stmt = stmt


def refuse(message: str, stmt: Stmt | None = None) -> NoReturn:
    """Raise RefusedError for a statement."""
    raise RefusedError(message, stmt)


class ScheduleProgram:
    """A function under scheduling with lookup tables of its loops, blocks and parents.

    is_trusted: whether primitives skip the proofs that do not decide the form of their result.
    """

    __slots__ = ("_parents", "blocks", "func", "is_trusted", "loops")

    def __init__(self, func: PrimFunc, is_trusted: bool = False) -> None:
        self.func = func
        self.is_trusted = is_trusted
        self.loops: dict[Var, For] = {}
        self.blocks: dict[str, BlockRealize] = {}
        # By identity: a statement stands at one place of a program. Between programs statements are
        # shared, which is why a Program is of one version of a function and never changed: what was
        # looked up in it is found again in the next version by name, not by identity.
        self._parents: dict[int, Stmt] = {}
        stack: list[Stmt] = [func.body]
        while stack:
            s = stack.pop()
            if isinstance(s, For):
                self.loops[s.loop_var] = s
            elif isinstance(s, BlockRealize):
                if s.block.name in self.blocks:
                    raise ScheduleError(
                        f"block {s.block.name!r}: there are two of the name; names tell blocks "
                        "apart in a schedule"
                    )
                self.blocks[s.block.name] = s
            inner = sub_statements(s)
            for child in inner:
                self._parents[id(child)] = s
            # Reversed, so that loops and blocks are registered in program order.
            stack.extend(reversed(inner))

    def with_trust(self, is_trusted: bool) -> ScheduleProgram:
        """Return the program whose primitives skip proofs, or make all; its tables are shared."""
        if is_trusted == self.is_trusted:
            return self
        program = copy(self)
        program.is_trusted = is_trusted
        return program

    def parent_of(self, s: Stmt) -> Stmt | None:
        """Return the statement directly around one; None for the body of the function."""
        return self._parents.get(id(s))

    def path_to(self, s: Stmt) -> list[Stmt]:
        """Return the statements from the body of the function down to one."""
        trail = [s]
        above = self.parent_of(s)
        while above is not None:
            trail.append(above)
            above = self.parent_of(above)
        trail.reverse()
        return trail

    def loops_above(self, s: Stmt) -> list[For]:
        """Return the loops around a statement, outermost first, up to the enclosing block."""
        loops: list[For] = []
        above = self.parent_of(s)
        while above is not None and not isinstance(above, Block):
            if isinstance(above, For):
                loops.append(above)
            above = self.parent_of(above)
        loops.reverse()
        return loops

    def scope_of(self, s: Stmt) -> Stmt:
        """Return the body of the block around a statement, or of the function."""
        inner = s
        above = self.parent_of(s)
        while above is not None and not isinstance(above, Block):
            inner, above = above, self.parent_of(above)
        return inner

    def outermost_perfect_loop(self, s: Stmt) -> Stmt:
        """Return the outermost loop of the perfect nest around a statement, or the statement."""
        above = self.parent_of(s)
        while isinstance(above, For):
            s, above = above, self.parent_of(above)
        return s

    def perfect_chain(self, first: For, last: For) -> list[For] | None:
        """Return the loops from one down to another if they are perfectly nested, else None."""
        loops = [first]
        while loops[-1] is not last:
            inner = loops[-1].body
            if not isinstance(inner, For):
                return None
            loops.append(inner)
        return loops

    def position(self, s: Stmt) -> int:
        """Return the position of a statement in program order."""
        for n, stmt in enumerate(pre_order_stmts(self.func.body)):
            if stmt is s:
                return n
        raise AssertionError("the statement must be in the program")

    def precedes(self, a: Stmt, b: Stmt) -> bool:
        """Return whether a precedes b and neither is inside the other."""
        x, y = self.path_to(a), self.path_to(b)
        for n, (p, q) in enumerate(zip(x, y, strict=False)):
            if p is not q:
                around = x[n - 1]
                order = sub_statements(around)
                return _child_index(order, p) < _child_index(order, q)
        return False

    def is_inside(self, inner: Stmt, outer: Stmt) -> bool:
        """Return whether one statement is within another, or is it."""
        ancestor: Stmt | None = inner
        while ancestor is not None:
            if ancestor is outer:
                return True
            ancestor = self.parent_of(ancestor)
        return False

    def replace(self, old: Stmt, new: Stmt) -> PrimFunc:
        """Return the function with one statement replaced by another; loops left empty are
        removed.
        """
        above = self.parent_of(old)
        while above is not None:
            old, new, above = above, _replace_child(above, old, new), self.parent_of(above)
        return self.func.with_fields(body=new)

    # Buffers.

    def writers(self, buffer: Buffer) -> list[BlockRealize]:
        """Return the outermost blocks that write a buffer.

        Refuses a buffer that statements outside blocks touch: nothing is known of those.
        """
        self._require_in_blocks(buffer)
        return [b for b in self.outermost_blocks() if buffer in block_writes(b.block)]

    def readers(self, buffer: Buffer) -> list[BlockRealize]:
        """Return the outermost blocks that read a buffer; refuses as `writers`."""
        self._require_in_blocks(buffer)
        return [b for b in self.outermost_blocks() if buffer in block_reads(b.block)]

    def _require_in_blocks(self, buffer: Buffer) -> None:
        if buffer not in _buffers_outside_blocks(self.func.body):
            return
        accesses = _accesses_outside_blocks(self.func.body)
        *_, stmt = (s for other, s in accesses if other is buffer)
        refuse(f"{buffer.name!r} is used by statements that are in no block", stmt)

    def outermost_blocks(self, root: Stmt | None = None) -> list[BlockRealize]:
        """Return the outermost blocks under a statement (default: the function's body) in program
        order.
        """
        if root is not None and root is not self.func.body and id(root) not in self._parents:
            return list(iter_outermost_blocks(root))  # a statement that is not in the program yet
        return [b for b in self.blocks.values() if self._is_outermost_in(b, root)]

    def _is_outermost_in(self, realize: BlockRealize, root: Stmt | None) -> bool:
        """Return whether a block is under a statement (None: the function's body) with no other
        block between.
        """
        s: Stmt | None = realize
        while s is not root:
            s = None if s is None else self.parent_of(s)
            if s is None:
                return root is None
            if isinstance(s, Block) and s is not root:
                return False
        return True

    def is_param(self, buffer: Buffer) -> bool:
        """Return whether a buffer is an argument of the function."""
        return any(buffer is p for p in self.func.params)

    def fresh_block_name(self, hint: str) -> str:
        """Return an unused block name: the hint, numbered if necessary."""
        if hint not in self.blocks:
            return hint
        n = 1
        while f"{hint}_{n}" in self.blocks:
            n += 1
        return f"{hint}_{n}"

    def fresh_buffer_name(self, hint: str) -> str:
        """Return an unused buffer name."""
        names = {b.name for b in self.func.params}
        names |= {s.buffer.name for s in pre_order_stmts(self.func.body) if isinstance(s, Allocate)}
        if hint not in names:
            return hint
        n = 1
        while f"{hint}_{n}" in names:
            n += 1
        return f"{hint}_{n}"


def _child_index(order: Sequence[Stmt], s: Stmt) -> int:
    return next(n for n, stmt in enumerate(order) if stmt is s)


def _replace_child(above: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """Return a statement with one of its direct children replaced."""
    match above:
        case SeqStmt():
            return flatten_seq(*(new if s is old else s for s in above.seq))
        case For() | While() | LetStmt() | Allocate():
            return new if is_no_op(new) else above.with_fields(body=new)
        case BlockRealize():
            return above.with_fields(block=new)
        case Block():
            return above.with_fields(init=new) if old is above.init else above.with_fields(body=new)
        case IfThenElse():
            field = "then_case" if old is above.then_case else "else_case"
            return above.with_fields(**{field: new})
        case _:
            raise AssertionError(f"{type(above).__name__} has nothing inside")


def _accesses_outside_blocks(root: Stmt) -> Iterator[tuple[Buffer, Stmt]]:
    """Yield the buffers that statements outside blocks touch, with the statement."""
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, BlockRealize):
            continue
        inner = sub_statements(s)
        if isinstance(s, BufferStore):
            yield s.buffer, s
        for e in direct_accesses(s):
            yield e.buffer, s
        stack.extend(inner)


_BUFFERS_OUTSIDE_BLOCKS_CACHE: WeakKeyDictionary[Stmt, frozenset[Buffer]] = WeakKeyDictionary()


# By statement: an edit makes the statements on the path to it anew, and the sets of all others, in
# which the tiles of earlier steps are most, are known.
def _buffers_outside_blocks(root: Stmt) -> frozenset[Buffer]:
    """Return the buffers that statements outside blocks touch; cached by statement."""
    stack = [root]
    while stack:
        s = stack[-1]
        inner = () if isinstance(s, BlockRealize) else sub_statements(s)
        unknown = [c for c in inner if c not in _BUFFERS_OUTSIDE_BLOCKS_CACHE]
        if unknown:
            stack += unknown
            continue
        stack.pop()
        touched: set[Buffer] = set()
        if not isinstance(s, BlockRealize):
            touched.update(e.buffer for e in direct_accesses(s))
        if isinstance(s, BufferStore):
            touched.add(s.buffer)
        sets = [_BUFFERS_OUTSIDE_BLOCKS_CACHE[c] for c in inner]
        _BUFFERS_OUTSIDE_BLOCKS_CACHE[s] = frozenset(touched.union(*sets))
    return _BUFFERS_OUTSIDE_BLOCKS_CACHE[root]


def iter_outermost_blocks(root: Stmt) -> Iterator[BlockRealize]:
    """Yield the outermost blocks under a statement."""
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, BlockRealize):
            yield s
        else:
            stack.extend(reversed(sub_statements(s)))


# What a block touches, found once per block.

_READ_BUFFERS_CACHE: WeakKeyDictionary[Block, tuple[Buffer, ...]] = WeakKeyDictionary()
_WRITTEN_BUFFERS_CACHE: WeakKeyDictionary[Block, tuple[Buffer, ...]] = WeakKeyDictionary()
_FREE_VARS_CACHE: WeakKeyDictionary[Block, frozenset[Var]] = WeakKeyDictionary()


def block_writes(block: Block) -> tuple[Buffer, ...]:
    """Return the buffers a block stores to, in order; cached by block."""
    cached = _WRITTEN_BUFFERS_CACHE.get(block)
    if cached is None:
        cached = _WRITTEN_BUFFERS_CACHE[block] = tuple(buffers_written(block.body))
    return cached


def block_reads(block: Block) -> tuple[Buffer, ...]:
    """Return the buffers a block loads from, in order of first use, accumulators included; cached
    by block.
    """
    cached = _READ_BUFFERS_CACHE.get(block)
    if cached is None:
        cached = _READ_BUFFERS_CACHE[block] = tuple(buffers_read(block))
    return cached


def accesses_of_buffer(root: Stmt, buffer: Buffer) -> list[Access]:
    """Return a statement's accesses of a buffer, as `regions.accesses` does, skipping blocks that
    do not touch it.
    """
    found_accesses: list[Access] = []
    stack: list[tuple[Stmt, tuple[For, ...], bool]] = [(root, (), False)]
    while stack:
        s, loops, conditional = stack.pop()
        if isinstance(s, BlockRealize):
            if buffer not in block_reads(s.block) and buffer not in block_writes(s.block):
                continue
            for a in access_regions.buffer_accesses(s, buffer):
                loops_in = (*loops, *a.loops)
                under = conditional or a.is_conditional
                found_accesses.append(Access(a.indices, loops_in, a.is_store, under, a.extents))
        elif not isinstance(s, (For, SeqStmt, Allocate, IfThenElse)):
            found_accesses.extend(
                Access(a.indices, (*loops, *a.loops), a.is_store, conditional, a.extents)
                for a in access_regions.buffer_accesses(s, buffer)
            )
        else:
            inside = (*loops, s) if isinstance(s, For) else loops
            under = conditional or isinstance(s, IfThenElse)
            stack.extend((child, inside, under) for child in reversed(sub_statements(s)))
    return found_accesses


def block_inputs(block: Block) -> tuple[Buffer, ...]:
    """Return the buffers a block reads and does not write: TVM's read numbering."""
    own = block_writes(block)
    return tuple(b for b in block_reads(block) if b not in own)


def free_vars_of_block(block: Block) -> frozenset[Var]:
    """Return the variables a block uses that none of its own iterators, loops or lets define;
    cached by block.
    """
    cached = _FREE_VARS_CACHE.get(block)
    if cached is None:
        used = {e for e in all_exprs(block) if isinstance(e, Var)}
        own = {i.var for s in pre_order_stmts(block) if isinstance(s, Block) for i in s.iter_vars}
        own |= {s.loop_var for s in pre_order_stmts(block) if isinstance(s, For)}
        own |= {s.var for s in pre_order_stmts(block) if isinstance(s, LetStmt)}
        cached = _FREE_VARS_CACHE[block] = frozenset(used - own)
    return cached


# Substitution.


class _LoopVarSubstituter(StmtMutator):
    """A rewriter of variables in loops and bindings; it enters only blocks that use one of them."""

    def __init__(
        self, values: Mapping[Var, PrimExpr], change: Callable[[PrimExpr], PrimExpr] | None
    ) -> None:
        self._values = dict(values)
        self._rewrite = change

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Substitute variables, then apply `change`."""
        if isinstance(expr, IntImm):
            return expr
        new = substitute_expr(expr, self._values)
        return new if new is expr or self._rewrite is None else self._rewrite(new)

    def visit_block(self, stmt: Block) -> Stmt:
        """Return a block without these variables unchanged, as the same object; rewrite others."""
        if free_vars_of_block(stmt).isdisjoint(self._values):
            return stmt
        return substitute_stmt(stmt, self._values)


def substitute_loop_vars(
    stmt: Stmt,
    values: Mapping[Var, PrimExpr],
    change: Callable[[PrimExpr], PrimExpr] | None = None,
) -> Stmt:
    """Return the statement with loop variables substituted; `change` is applied to the changed
    expressions.
    """
    return _LoopVarSubstituter(values, change).visit(stmt)


def replace_buffer(root: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """Return the statement with one buffer replaced by another, at the same indices."""
    return _AccessRewriter(old, new, None).visit(root)


Indices = tuple[PrimExpr, ...]


def _same_indices(indices: Indices) -> Indices:
    return indices


class _AccessRewriter(ExprRewriter):
    def __init__(self, old: Buffer, new: Buffer, move: Callable[[Indices], Indices] | None) -> None:
        super().__init__(self._rewrite_load)
        self._old, self._new, self._moves = old, new, move is not None
        self._map_indices = move if move is not None else _same_indices

    def _rewrite_load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return BufferLoad(self._new, self._map_indices(e.indices), e.dtype)
        if isinstance(e, BufferAddress) and e.buffer is self._old:
            if self._moves:
                refuse(f"a part of {self._old.name!r} is handed to a call, which knows its layout")
            return e.with_fields(buffer=self._new)
        return e

    def rewrite_buffer(self, buffer: Buffer) -> Buffer:
        return self._new if buffer is self._old else buffer

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """Rewrite old[i] = v to new[move(i)] = v."""
        new = super().visit_store(stmt)
        if stmt.buffer is self._old:
            assert isinstance(new, BufferStore)
            return new.with_fields(indices=self._map_indices(new.indices))
        return new


def replace_accesses(
    root: Stmt, old: Buffer, new: Buffer, move: Callable[[Indices], Indices]
) -> Stmt:
    """Return the statement with accesses of one buffer replaced by accesses of another at moved
    indices.
    """
    return _AccessRewriter(old, new, move).visit(root)


def add_allocation(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """Return the function with a buffer allocated around its whole body."""
    around: list[Buffer] = []
    body = func.body
    while isinstance(body, Allocate):
        around.append(body.buffer)
        body = body.body
    for allocated_buffer in (buffer, *reversed(around)):
        body = Allocate(allocated_buffer, body)
    return func.with_fields(body=body)


def remove_allocation(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """Return the function without the Allocate of a buffer."""
    around: list[Buffer] = []
    body = func.body
    while isinstance(body, Allocate):
        if body.buffer is buffer:
            inside = body.body
            for outer in reversed(around):
                inside = inside if is_no_op(inside) else Allocate(outer, inside)
            return func.with_fields(body=inside)
        around.append(body.buffer)
        body = body.body
    for s in pre_order_stmts(body):
        if isinstance(s, Allocate) and s.buffer is buffer:
            return ScheduleProgram(func).replace(s, s.body)
    return func


# Loops and conditions.


def bound_analyzer(loops: Iterable[For]) -> Analyzer:
    """Return an analyzer with the loops' ranges bound; a loop over parts has the full range."""
    analyzer = Analyzer()
    for loop in loops:
        if PART_OF_ANNOTATION in (loop.annotations or {}):
            analyzer.bind(loop.loop_var, _first_part_min(loop), _total_part_extent(loop))
        else:
            analyzer.bind(loop.loop_var, loop.min, loop.extent)
    return analyzer


PART_OF_ANNOTATION = "part_of"
"""Annotation of a loop over one part of a range, whose start depends on the loop that counts parts:
the total extent of all parts. Only `split` makes it.
"""

PART_EXTENT_BOUND_ANNOTATION = "at_most"
"""Annotation of a loop over a part: the largest extent of a part."""


def loop_ranges(loops: Iterable[For]) -> dict[Var, Range]:
    """Return the range of each loop in the form that iteration maps take.

    A loop over parts has the full range where the loop that counts the parts is given too; the
    latter then has no entry.
    """
    loop_list = list(loops)
    ranges = {s.loop_var: Range.from_min_extent(s.min, s.extent) for s in loop_list}
    counted = _part_loops_by_counter(loop_list)
    for part_loop in dict.fromkeys(counted.values()):
        ranges[part_loop.loop_var] = Range.from_min_extent(
            _first_part_min(part_loop), _total_part_extent(part_loop)
        )
    # The loop over parts stands for the whole range: its counter would count it twice.
    for var in counted:
        del ranges[var]
    return ranges


def determining_vars(loops: Iterable[For], loop_vars: Iterable[Var]) -> set[Var]:
    """Return the variables that determine the wanted loops: a loop that counts parts is replaced by
    the loop over them.
    """
    counted = _part_loops_by_counter(list(loops))
    result: set[Var] = set()
    for var in loop_vars:
        while var in counted:
            var = counted[var].loop_var
        result.add(var)
    return result


def _part_loops_by_counter(loops: Sequence[For]) -> dict[Var, For]:
    """Return the loops over parts by the variables that count the parts, where all of those are
    given.
    """
    complete_vars: set[Var] = set()
    part_loops: dict[Var, For] = {}
    for loop in loops:
        counters = _partition_name_counters(loop)
        if counters <= complete_vars:
            complete_vars.add(loop.loop_var)
            part_loops.update((v, loop) for v in counters)
    return part_loops


def _partition_name_counters(loop: For) -> set[Var]:
    """Return the loop variables that the start of a loop over parts depends on."""
    if is_const(loop.min) or PART_OF_ANNOTATION not in (loop.annotations or {}):
        return set()
    return {v for v in free_vars(loop.min) if not isinstance(v, SizeVar)}


def _first_part_min(part_loop: For) -> PrimExpr:
    """Return the begin of the first part."""
    zeros: dict[Var, PrimExpr] = {v: const(0, v.dtype) for v in _partition_name_counters(part_loop)}
    return substitute_expr(part_loop.min, zeros)


def _total_part_extent(part_loop: For) -> PrimExpr:
    """Return the total extent of all parts."""
    assert part_loop.annotations is not None
    return convert(part_loop.annotations[PART_OF_ANNOTATION], part_loop.loop_var.dtype)  # type: ignore[arg-type]


def unit_loop_values(loops: Iterable[For]) -> dict[Var, PrimExpr]:
    """Return the values of the variables of single-iteration loops, given outermost first."""
    values: dict[Var, PrimExpr] = {}
    for loop in loops:
        if is_const(loop.extent, 1):
            values[loop.loop_var] = Analyzer().simplify(substitute_expr(loop.min, values))
    return values


def loops_between(root: Stmt, leaf: Stmt, program: ScheduleProgram) -> list[For]:
    """Return the loops inside `root` (itself included) around a statement, outermost first."""
    loops: list[For] = []
    ancestor: Stmt | None = leaf
    while ancestor is not None:
        if isinstance(ancestor, For):
            loops.append(ancestor)
        if ancestor is root:
            break
        ancestor = program.parent_of(ancestor)
    loops.reverse()
    return loops


def wrap_in_loops(loops: Sequence[For], body: Stmt) -> Stmt:
    """Return a body wrapped in loops, given outermost first."""
    for loop in reversed(loops):
        body = loop.with_fields(body=body)
    return body


def to_index_dtype(e: PrimExpr, dtype: str) -> PrimExpr:
    """Return a size or index as an expression of one integer dtype, undoing the analysis's
    widening.
    """

    def narrow_node(x: PrimExpr) -> PrimExpr:
        """Convert constants to the dtype and drop integer casts from it."""
        if isinstance(x, Cast) and x.dtype in ("int32", "int64"):
            return x.value if x.value.dtype == dtype else x
        if isinstance(x, IntImm) and x.dtype in ("int32", "int64"):
            return const(x.value, dtype)
        return x

    if e.dtype == dtype and not any(isinstance(x, Cast) for x in post_order(e)):
        return e
    return cast(rewrite(e, narrow_node), dtype)


def serial_loop(var: Var, extent: PrimExpr, body: Stmt = NO_OP) -> For:
    """Return a serial loop from 0."""
    return For(var, const(0, var.dtype), to_index_dtype(extent, var.dtype), ForKind.SERIAL, body)


def uses_any_var(e: PrimExpr, variables: Iterable[Var]) -> bool:
    """Return whether an expression depends on any of the variables."""
    variable_set = set(variables)
    return any(v in variable_set for v in free_vars(e))
