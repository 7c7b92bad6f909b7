"""A function with its loops and blocks found, and the edits that all primitives are made of.

Loops are named by their variable, blocks by their name: both are unique in a program and survive
what happens to the rest of it. An edit copies the path from the root to the place and shares
everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NoReturn
from weakref import WeakKeyDictionary

from ekiden.arith import Analyzer
from ekiden.ir.prim import Cast, IntImm, PrimExpr, SizeVar, Var, cast, const, convert, is_const
from ekiden.ir.prim_visitor import free_vars, post_order, rewrite
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.ir.range import Range
from ekiden.runtime.errors import ScheduleError
from ekiden.tir import regions
from ekiden.tir.expr import Buffer, BufferAddress, BufferLoad
from ekiden.tir.regions import Access
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
    NOTHING,
    ExprRewriter,
    StmtMutator,
    all_expressions,
    buffers_read,
    buffers_written,
    expressions,
    is_nothing,
    sequence,
    sub_statements,
    walk,
)


class RefusedError(ScheduleError):
    """A primitive refuses at a place of the program, whose line the schedule adds."""

    def __init__(self, message: str, place: Stmt | None = None) -> None:
        super().__init__(message)
        self.place = place


def refuse(message: str, place: Stmt | None = None) -> NoReturn:
    """Raise RefusedError."""
    raise RefusedError(message, place)


class Program:
    """What one step of a schedule looks things up in."""

    __slots__ = ("_outside", "_parents", "blocks", "func", "loops")

    def __init__(self, func: PrimFunc) -> None:
        self.func = func
        self.loops: dict[Var, For] = {}
        self.blocks: dict[str, BlockRealize] = {}
        # By identity: a statement stands at one place of a program. Between programs statements are
        # shared, which is why a Program is of one version of a function and never changed: what was
        # looked up in it is found again in the next version by name, not by identity.
        self._parents: dict[int, Stmt] = {}
        self._outside: dict[Buffer, Stmt] | None = None
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
            for each in inner:
                self._parents[id(each)] = s
            stack.extend(reversed(inner))

    def parent(self, s: Stmt) -> Stmt | None:
        """The statement directly around one; None for the body of the function."""
        return self._parents.get(id(s))

    def path(self, s: Stmt) -> list[Stmt]:
        """The statements from the body of the function down to one."""
        trail = [s]
        above = self.parent(s)
        while above is not None:
            trail.append(above)
            above = self.parent(above)
        trail.reverse()
        return trail

    def loops_above(self, s: Stmt) -> list[For]:
        """The loops around a statement, outermost first, up to the block it is in."""
        found: list[For] = []
        above = self.parent(s)
        while above is not None and not isinstance(above, Block):
            if isinstance(above, For):
                found.append(above)
            above = self.parent(above)
        found.reverse()
        return found

    def scope(self, s: Stmt) -> Stmt:
        """The body of the block around a statement, or of the function."""
        inner = s
        above = self.parent(s)
        while above is not None and not isinstance(above, Block):
            inner, above = above, self.parent(above)
        return inner

    def nest(self, s: Stmt) -> Stmt:
        """The outermost loop around a statement with nothing else in it, or the statement."""
        above = self.parent(s)
        while isinstance(above, For):
            s, above = above, self.parent(above)
        return s

    def chain(self, first: For, last: For) -> list[For] | None:
        """The loops from one down to another if each is alone in the one before."""
        found = [first]
        while found[-1] is not last:
            inner = found[-1].body
            if not isinstance(inner, For):
                return None
            found.append(inner)
        return found

    def position(self, s: Stmt) -> int:
        """Where a statement stands in program order."""
        for n, each in enumerate(walk(self.func.body)):
            if each is s:
                return n
        raise AssertionError("the statement must be in the program")

    def before(self, a: Stmt, b: Stmt) -> bool:
        """Whether a stands before b, and neither is inside the other."""
        x, y = self.path(a), self.path(b)
        for n, (p, q) in enumerate(zip(x, y, strict=False)):
            if p is not q:
                around = x[n - 1]
                order = sub_statements(around)
                return _index(order, p) < _index(order, q)
        return False

    def is_inside(self, inner: Stmt, outer: Stmt) -> bool:
        """Whether one statement is within another, or is it."""
        at: Stmt | None = inner
        while at is not None:
            if at is outer:
                return True
            at = self.parent(at)
        return False

    def replace(self, old: Stmt, new: Stmt) -> PrimFunc:
        """The function with one statement in the place of another; what is left empty vanishes."""
        above = self.parent(old)
        while above is not None:
            old, new, above = above, _with_child(above, old, new), self.parent(above)
        return self.func.with_fields(body=new)

    # Buffers.

    def writers(self, buffer: Buffer) -> list[BlockRealize]:
        """The blocks, those inside other blocks left out, that write a buffer.

        Refuses a buffer that statements outside blocks touch: nothing is known of those.
        """
        self._require_in_blocks(buffer)
        return [b for b in self.leaves() if buffer in written(b.block)]

    def readers(self, buffer: Buffer) -> list[BlockRealize]:
        """The blocks, those inside other blocks left out, that read a buffer; refuses as
        `writers`.
        """
        self._require_in_blocks(buffer)
        return [b for b in self.leaves() if buffer in read(b.block)]

    def _require_in_blocks(self, buffer: Buffer) -> None:
        if self._outside is None:
            self._outside = dict(_outside_blocks(self.func.body))
        place = self._outside.get(buffer)
        if place is not None:
            refuse(f"{buffer.name!r} is used by statements that are in no block", place)

    def leaves(self, root: Stmt | None = None) -> list[BlockRealize]:
        """The blocks under a statement (the function's body) in program order, not those inside
        other blocks.
        """
        return list(outer_blocks(self.func.body if root is None else root))

    def is_param(self, buffer: Buffer) -> bool:
        """Whether a buffer is an argument of the function."""
        return any(buffer is p for p in self.func.params)

    def fresh_block(self, hint: str) -> str:
        """A block name that is not taken: the hint, or numbered."""
        if hint not in self.blocks:
            return hint
        n = 1
        while f"{hint}_{n}" in self.blocks:
            n += 1
        return f"{hint}_{n}"

    def fresh_buffer(self, hint: str) -> str:
        """A buffer name that is not taken."""
        names = {b.name for b in self.func.params}
        names |= {s.buffer.name for s in walk(self.func.body) if isinstance(s, Allocate)}
        if hint not in names:
            return hint
        n = 1
        while f"{hint}_{n}" in names:
            n += 1
        return f"{hint}_{n}"


def _index(order: Sequence[Stmt], s: Stmt) -> int:
    return next(n for n, each in enumerate(order) if each is s)


def _with_child(above: Stmt, old: Stmt, new: Stmt) -> Stmt:
    """A statement with one of those directly inside it replaced."""
    match above:
        case SeqStmt():
            return sequence(*(new if s is old else s for s in above.seq))
        case For() | While() | LetStmt() | Allocate():
            return new if is_nothing(new) else above.with_fields(body=new)
        case BlockRealize():
            return above.with_fields(block=new)
        case Block():
            return above.with_fields(init=new) if old is above.init else above.with_fields(body=new)
        case IfThenElse():
            part = "then_case" if old is above.then_case else "else_case"
            return above.with_fields(**{part: new})
        case _:
            raise AssertionError(f"{type(above).__name__} has nothing inside")


def _outside_blocks(root: Stmt) -> Iterator[tuple[Buffer, Stmt]]:
    """The buffers that statements outside blocks touch, and where."""
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, BlockRealize):
            continue
        inner = sub_statements(s)
        if isinstance(s, BufferStore):
            yield s.buffer, s
        for e in post_order(*expressions(s)):
            if isinstance(e, (BufferLoad, BufferAddress)):
                yield e.buffer, s
        stack.extend(inner)


def outer_blocks(root: Stmt) -> Iterator[BlockRealize]:
    """The blocks under a statement, not those inside other blocks."""
    stack = [root]
    while stack:
        s = stack.pop()
        if isinstance(s, BlockRealize):
            yield s
        else:
            stack.extend(reversed(sub_statements(s)))


# What a block touches, found once per block.

_READ: WeakKeyDictionary[Block, tuple[Buffer, ...]] = WeakKeyDictionary()
_WRITTEN: WeakKeyDictionary[Block, tuple[Buffer, ...]] = WeakKeyDictionary()
_FREE: WeakKeyDictionary[Block, frozenset[Var]] = WeakKeyDictionary()


def written(block: Block) -> tuple[Buffer, ...]:
    """The buffers a block stores to, in order."""
    found = _WRITTEN.get(block)
    if found is None:
        found = _WRITTEN[block] = tuple(buffers_written(block.body))
    return found


def read(block: Block) -> tuple[Buffer, ...]:
    """The buffers a block loads from, in order of appearance (its own sums among them)."""
    found = _READ.get(block)
    if found is None:
        found = _READ[block] = tuple(buffers_read(block))
    return found


def accesses(root: Stmt, buffer: Buffer) -> list[Access]:
    """As `regions.accesses`; blocks that do not touch the buffer are not looked into."""
    found: list[Access] = []
    stack: list[tuple[Stmt, tuple[For, ...], bool]] = [(root, (), False)]
    while stack:
        s, loops, conditional = stack.pop()
        if isinstance(s, BlockRealize):
            if buffer not in read(s.block) and buffer not in written(s.block):
                continue
            for a in regions.accesses(s, buffer):
                loops_in = (*loops, *a.loops)
                under = conditional or a.conditional
                found.append(Access(a.indices, loops_in, a.is_store, under, a.extents))
        elif not isinstance(s, (For, SeqStmt, Allocate, IfThenElse)):
            found.extend(
                Access(a.indices, (*loops, *a.loops), a.is_store, conditional, a.extents)
                for a in regions.accesses(s, buffer)
            )
        else:
            inside = (*loops, s) if isinstance(s, For) else loops
            under = conditional or isinstance(s, IfThenElse)
            stack.extend((each, inside, under) for each in reversed(sub_statements(s)))
    return found


def inputs(block: Block) -> tuple[Buffer, ...]:
    """The buffers a block reads and does not write: what TVM numbers as its reads."""
    own = written(block)
    return tuple(b for b in read(block) if b not in own)


def free_in(block: Block) -> frozenset[Var]:
    """The variables a block uses that none of its own iterators or loops define."""
    found = _FREE.get(block)
    if found is None:
        used = {e for e in all_expressions(block) if isinstance(e, Var)}
        own = {i.var for s in walk(block) if isinstance(s, Block) for i in s.iter_vars}
        own |= {s.loop_var for s in walk(block) if isinstance(s, For)}
        own |= {s.var for s in walk(block) if isinstance(s, LetStmt)}
        found = _FREE[block] = frozenset(used - own)
    return found


# Substitution.


class _Bindings(StmtMutator):
    """Variables replaced in loops and bindings; blocks are opened only where they use one."""

    def __init__(
        self, values: Mapping[Var, PrimExpr], change: Callable[[PrimExpr], PrimExpr] | None
    ) -> None:
        self._values = dict(values)
        self._change = change
        self._inside = ExprRewriter(lambda e: self._values.get(e, e) if isinstance(e, Var) else e)

    def expr(self, expr: PrimExpr) -> PrimExpr:
        """Variables replaced, then `change`."""
        if isinstance(expr, IntImm):
            return expr
        new = substitute_expr(expr, self._values)
        return new if new is expr or self._change is None else self._change(new)

    def visit_block(self, stmt: Block) -> Stmt:
        """A block that has none of the variables is left as it is, the same object."""
        if free_in(stmt).isdisjoint(self._values):
            return stmt
        return self._inside.visit_block(stmt)


def rebind(
    stmt: Stmt,
    values: Mapping[Var, PrimExpr],
    change: Callable[[PrimExpr], PrimExpr] | None = None,
) -> Stmt:
    """The statement with loop variables replaced; `change` is applied to what that made."""
    return _Bindings(values, change).visit(stmt)


def replace_buffer(root: Stmt, old: Buffer, new: Buffer) -> Stmt:
    """The statement with one buffer in the place of another, at the same indices."""
    return _Accesses(old, new, None).visit(root)


Indices = tuple[PrimExpr, ...]


def _stay(indices: Indices) -> Indices:
    return indices


class _Accesses(ExprRewriter):
    def __init__(self, old: Buffer, new: Buffer, move: Callable[[Indices], Indices] | None) -> None:
        super().__init__(self._load)
        self._old, self._new, self._moves = old, new, move is not None
        self._move = move if move is not None else _stay

    def _load(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferLoad) and e.buffer is self._old:
            return BufferLoad(self._new, self._move(e.indices), e.dtype)
        if isinstance(e, BufferAddress) and e.buffer is self._old:
            if self._moves:
                refuse(f"a part of {self._old.name!r} is handed to a call, which knows its layout")
            return e.with_fields(buffer=self._new)
        return e

    def buffer(self, buffer: Buffer) -> Buffer:
        return self._new if buffer is self._old else buffer

    def visit_store(self, stmt: BufferStore) -> Stmt:
        """old[i] = v  ->  new[move(i)] = v"""
        new = super().visit_store(stmt)
        if stmt.buffer is self._old:
            assert isinstance(new, BufferStore)
            return new.with_fields(indices=self._move(new.indices))
        return new


def replace_accesses(
    root: Stmt, old: Buffer, new: Buffer, move: Callable[[Indices], Indices]
) -> Stmt:
    """The statement with accesses of one buffer made accesses of another at moved indices."""
    return _Accesses(old, new, move).visit(root)


def allocated(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """The function with a buffer that lives in all of it."""
    around: list[Buffer] = []
    body = func.body
    while isinstance(body, Allocate):
        around.append(body.buffer)
        body = body.body
    for each in (buffer, *reversed(around)):
        body = Allocate(each, body)
    return func.with_fields(body=body)


def unallocated(func: PrimFunc, buffer: Buffer) -> PrimFunc:
    """The function without the Allocate of a buffer."""
    for s in walk(func.body):
        if isinstance(s, Allocate) and s.buffer is buffer:
            return Program(func).replace(s, s.body)
    return func


# Loops and conditions.


def bound_analyzer(loops: Iterable[For]) -> Analyzer:
    """An analyzer that knows the ranges of loops: of one over parts, that of all of them."""
    analyzer = Analyzer()
    for each in loops:
        if PART in (each.annotations or {}):
            analyzer.bind(each.loop_var, _first(each), _whole(each))
        else:
            analyzer.bind(each.loop_var, each.min, each.extent)
    return analyzer


PART = "part_of"
"""Annotation of a loop that runs over one of the parts of a range, one for each step of the loop
that its start depends on: how many steps all parts have together. Only `split` makes it."""

MOST = "at_most"
"""Annotation of such a loop: the most steps of a part."""


def ranges_of(loops: Iterable[For]) -> dict[Var, Range]:
    """The range of each loop, as iteration maps take them. A loop over parts has the whole range
    where the loop that counts the parts is given too, which then has none.
    """
    many = list(loops)
    found = {s.loop_var: Range.from_min_extent(s.min, s.extent) for s in many}
    counted = _counted(many)
    for part in dict.fromkeys(counted.values()):
        found[part.loop_var] = Range.from_min_extent(_first(part), _whole(part))
    for var in counted:
        del found[var]
    return found


def determining(loops: Iterable[For], wanted: Iterable[Var]) -> set[Var]:
    """What has to be known to know some loops: for one that counts parts, the loop over them."""
    counted = _counted(list(loops))
    found: set[Var] = set()
    for var in wanted:
        while var in counted:
            var = counted[var].loop_var
        found.add(var)
    return found


def _counted(loops: Sequence[For]) -> dict[Var, For]:
    """The loops over parts, by the variables that count the parts, all of which are given."""
    whole: set[Var] = set()
    found: dict[Var, For] = {}
    for each in loops:
        counters = _counters(each)
        if counters <= whole:
            whole.add(each.loop_var)
            found.update((v, each) for v in counters)
    return found


def _counters(loop: For) -> set[Var]:
    """The loops that the start of a loop depends on."""
    if is_const(loop.min) or PART not in (loop.annotations or {}):
        return set()
    return {v for v in free_vars(loop.min) if not isinstance(v, SizeVar)}


def _first(part: For) -> PrimExpr:
    """Where the first part begins."""
    zeros: dict[Var, PrimExpr] = {v: const(0, v.dtype) for v in _counters(part)}
    return substitute_expr(part.min, zeros)


def _whole(part: For) -> PrimExpr:
    """How many steps all parts have together."""
    assert part.annotations is not None
    return convert(part.annotations[PART], part.loop_var.dtype)  # type: ignore[arg-type]


def single_steps(loops: Iterable[For]) -> dict[Var, PrimExpr]:
    """What the variables of loops of one step are, of loops given outermost first."""
    found: dict[Var, PrimExpr] = {}
    for each in loops:
        if is_const(each.extent, 1):
            found[each.loop_var] = Analyzer().simplify(substitute_expr(each.min, found))
    return found


def loops_between(root: Stmt, leaf: Stmt, program: Program) -> list[For]:
    """The loops inside `root` (and itself) around a statement, outermost first."""
    found: list[For] = []
    at: Stmt | None = leaf
    while at is not None:
        if isinstance(at, For):
            found.append(at)
        if at is root:
            break
        at = program.parent(at)
    found.reverse()
    return found


def wrap(loops: Sequence[For], body: Stmt) -> Stmt:
    """A body inside loops, given outermost first."""
    for each in reversed(loops):
        body = each.with_fields(body=body)
    return body


def indexed(e: PrimExpr, dtype: str) -> PrimExpr:
    """A size or an index as an expression of one integer dtype: where analysis widened it, it is
    taken back.
    """

    def change(x: PrimExpr) -> PrimExpr:
        """A constant takes the dtype; a cast to it (or between integers) of what has it already
        goes.
        """
        if isinstance(x, Cast) and x.dtype in ("int32", "int64"):
            return x.value if x.value.dtype == dtype else x
        if isinstance(x, IntImm) and x.dtype in ("int32", "int64"):
            return const(x.value, dtype)
        return x

    if e.dtype == dtype and not any(isinstance(x, Cast) for x in post_order(e)):
        return e
    return cast(rewrite(e, change), dtype)


def serial(var: Var, extent: PrimExpr, body: Stmt = NOTHING) -> For:
    """A plain loop from 0."""
    return For(var, const(0, var.dtype), indexed(extent, var.dtype), ForKind.SERIAL, body)


def uses(e: PrimExpr, variables: Iterable[Var]) -> bool:
    """Whether an expression depends on any of the variables."""
    wanted = set(variables)
    return any(v in wanted for v in free_vars(e))
