"""Verifier of well-formed loop programs: see `verify`.

Definitions and types are checked node by node; out-of-bounds accesses, uninitialised reads and
races only where they are provably wrong: passing is no proof of correctness.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

from ekiden.arith import Analyzer
from ekiden.arith.linear import LinearForm, extract_linear_form
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import INTRINSICS, find_intrinsic
from ekiden.ir.prim import (
    COMPARISON_OPS,
    And,
    BinaryExpr,
    Cast,
    IntImm,
    Intrinsic,
    Not,
    Or,
    PrimExpr,
    Select,
    Var,
    const,
    is_const,
)
from ekiden.ir.prim_visitor import children, free_vars, is_same_expr, post_order, substitute
from ekiden.runtime.errors import VerifyError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import (
    SCOPES,
    Broadcast,
    Buffer,
    BufferAddress,
    BufferLoad,
    Ramp,
    format_lanes,
)
from ekiden.tir.printer import print_with_lines
from ekiden.tir.stmt import (
    Allocate,
    AssertStmt,
    Block,
    BlockRealize,
    BufferStore,
    DeclBuffer,
    For,
    ForKind,
    IfThenElse,
    LetStmt,
    Prefetch,
    PrimFunc,
    SeqStmt,
    Stmt,
    While,
)
from ekiden.tir.visitor import conditional_nodes, stmt_exprs, sub_statements

_CONCURRENT_KINDS = (ForKind.PARALLEL, ForKind.VECTORIZED)


@dataclass(frozen=True, slots=True)
class _ScopeExit:
    """A marker of the end of a statement that defines something."""

    stmt: Stmt
    defined: tuple[Var | Buffer, ...]


class _Verifier:
    """A verifier that walks in program order, tracking definitions and written buffers."""

    def __init__(self, func: PrimFunc, lowered: bool) -> None:
        self.func = func
        self.lowered = lowered
        self.defined: set[Var | Buffer] = {*func.params}
        self.defined.update(v for b in func.buffers for v in free_vars(*b.sizes()))
        outputs = (func.attrs or {}).get("num_outputs", 0)
        count = outputs if isinstance(outputs, int) else 0
        self.unwritten: set[Var | Buffer] = set(func.params[len(func.params) - count :])
        """Buffers without any initialised element."""
        self.enclosing_scopes: list[For | Block] = []
        self.enclosing_blocks: list[tuple[Block, set[Var]]] = []
        """Enclosing blocks with iterators, each with the loop variables outside it."""
        self.condition_depth = 0
        self.checked: set[int] = set()
        self.domains: dict[Var, tuple[PrimExpr, PrimExpr]] = {}
        """(start, extent) of each loop variable."""
        self.values: dict[Var, PrimExpr] = {}
        """Definitions of let variables and block iterators over loop variables."""
        self.current_stmt: Stmt = func.body

    def fail(self, what: str, stmt: Stmt | None = None) -> NoReturn:
        """Raise VerifyError naming the function, the line of its text, and the loop or block."""
        where = self.current_stmt if stmt is None else stmt
        line = print_with_lines(self.func)[1].get(where)
        line_text = "" if line is None else f" line {line}"
        inside = ""
        if self.enclosing_scopes:
            last = self.enclosing_scopes[-1]
            named = (
                f"loop '{last.loop_var.name}'" if isinstance(last, For) else f"block '{last.name}'"
            )
            inside = f" in {named}"
        raise VerifyError(f"verify '{self.func.name}'{line_text}{inside}: {what}")

    # The walk.

    def run(self) -> None:
        """Check the whole function."""
        for buffer in self.func.buffers:
            if buffer.scope != "global":
                self.fail(f"parameter '{buffer.name}' must be in global memory, not {buffer.scope}")
        stack: list[Stmt | _ScopeExit] = [self.func.body]
        while stack:
            task = stack.pop()
            if isinstance(task, _ScopeExit):
                self.exit_scope(task)
                continue
            self.current_stmt = task
            self.check_stmt(task)
            defined = self.definitions(task)
            if defined or isinstance(task, (For, While, Block, BlockRealize, IfThenElse)):
                # Below the children on the stack, so that the scope ends after them.
                stack.append(self.enter_scope(task, defined))
            stack.extend(reversed(sub_statements(task)))

    def enter_scope(self, s: Stmt, defined: tuple[Var | Buffer, ...]) -> _ScopeExit:
        """Record what a statement defines."""
        for definition in defined:
            if definition in self.defined:
                self.fail(f"{_definition_kind(definition)} '{definition.name}' is defined twice")
        self.defined.update(defined)
        if isinstance(s, Block) and s.iter_vars:
            loops = {f.loop_var for f in self.enclosing_scopes if isinstance(f, For)}
            self.enclosing_blocks.append((s, loops))
        if isinstance(s, (For, Block)):
            self.enclosing_scopes.append(s)
        match s:
            case For():
                self.domains[s.loop_var] = (s.min, s.extent)
                if s.kind in _CONCURRENT_KINDS:
                    self.check_races(s)
            case LetStmt():
                self.values.update(_let_value(s, self.values))
            case BlockRealize():
                self.values.update(_iterator_bindings(s, self.values))
                self.condition_depth += _is_conditional(s)
            case Allocate():
                self.unwritten.add(s.buffer)
            case DeclBuffer():
                self.unwritten.discard(s.source)  # stores through a view are not tracked
            case IfThenElse() | While():
                self.condition_depth += 1
        return _ScopeExit(s, defined)

    def exit_scope(self, end: _ScopeExit) -> None:
        """Drop a statement's definitions at its end."""
        self.defined.difference_update(end.defined)
        if end.defined:
            # A node that was well-formed inside a definition's scope need not be outside it.
            self.checked.clear()
        if isinstance(end.stmt, (For, Block)):
            self.enclosing_scopes.pop()
        if isinstance(end.stmt, Block) and end.stmt.iter_vars:
            self.enclosing_blocks.pop()
        self.condition_depth -= _is_conditional(end.stmt)

    def definitions(self, s: Stmt) -> tuple[Var | Buffer, ...]:
        """Return what a statement defines for its inside."""
        match s:
            case For():
                return (s.loop_var,)
            case LetStmt():
                return (s.var,)
            case Allocate():
                return (s.buffer,)
            case DeclBuffer():
                layout = (*s.buffer.strides, s.buffer.elem_offset)
                return (s.buffer, *(v for v in layout if isinstance(v, Var)))
            case Block():
                return tuple(i.var for i in s.iter_vars)
            case _:
                return ()

    # Statements.

    def check_stmt(self, s: Stmt) -> None:
        """Check a statement without its children."""
        for expr in stmt_exprs(s):
            self.check_expr(expr)
        if self.lowered:
            self.require_lowered(s)
        match s:
            case For():
                self.check_loop(s)
            case LetStmt() if s.var.dtype != s.value.dtype:
                self.fail(f"'{s.var.name}' is {s.var.dtype}, its value {s.value.dtype}")
            case Allocate() if s.buffer.scope not in SCOPES:
                scopes = ", ".join(SCOPES)
                self.fail(f"buffer '{s.buffer.name}' is in '{s.buffer.scope}'; scopes are {scopes}")
            case BufferStore():
                self.check_store(s)
            case Prefetch() if s.buffer not in self.defined:
                self.fail(f"buffer '{s.buffer.name}' is not allocated")
            case IfThenElse() | While() | AssertStmt() if s.condition.dtype != "bool":
                self.fail(f"a condition must be bool, got {s.condition.dtype}")
            case SeqStmt() if len(s.seq) < 2 or any(isinstance(i, SeqStmt) for i in s.seq):
                self.fail("a sequence must have two statements or more, none a sequence")
            case BlockRealize():
                self.check_block_realize(s)

    def check_loop(self, s: For) -> None:
        """Check that bounds are integers of the variable's dtype."""
        kinds = {s.loop_var.dtype, s.min.dtype, s.extent.dtype}
        if len(kinds) > 1 or not dt.is_int(s.loop_var.dtype):
            actual = f"{s.loop_var.dtype} from {s.min.dtype}, {s.extent.dtype} long"
            self.fail(f"loop '{s.loop_var.name}' must run over integers of one dtype, got {actual}")

    def check_block_realize(self, s: BlockRealize) -> None:
        """Check that iterators are bound once each, by values of their dtype."""
        block = s.block
        if len(s.iter_values) != len(block.iter_vars):
            self.fail(
                f"block '{block.name}' has {len(block.iter_vars)} iterators, "
                f"{len(s.iter_values)} values"
            )
        for iter_var, value in zip(block.iter_vars, s.iter_values, strict=True):
            if iter_var.var.dtype != value.dtype:
                self.fail(
                    f"block '{block.name}': iterator '{iter_var.var.name}' is "
                    f"{iter_var.var.dtype}, "
                    f"its value {value.dtype}"
                )
        if s.predicate.dtype != "bool":
            self.fail(f"block '{block.name}': its predicate must be bool, got {s.predicate.dtype}")

    def require_lowered(self, s: Stmt) -> None:
        """Check that a lowered program has no blocks and no vectorised or unrolled loops."""
        if isinstance(s, (Block, BlockRealize)):
            name = s.name if isinstance(s, Block) else s.block.name
            self.fail(f"block '{name}' is left in a lowered program")
        if isinstance(s, For) and s.kind in (ForKind.VECTORIZED, ForKind.UNROLLED):
            self.fail(f"loop '{s.loop_var.name}' is still {s.kind.value} in a lowered program")

    def check_store(self, s: BufferStore) -> None:
        """Check that the value has the buffer's element type and the index's lanes."""
        self.check_access(s.buffer, s.indices, s.value.dtype, "store to")
        if s.predicate is None:
            self.check_bounds(s.buffer, s.indices)
        elif dt.element_dtype(s.predicate.dtype) != "bool":
            self.fail(f"the predicate of a store must be bool, got {s.predicate.dtype}")
        self.unwritten.discard(s.buffer)

    # Accesses.

    def check_access(
        self, buffer: Buffer, indices: Sequence[PrimExpr], dtype: str, verb: str = "load of"
    ) -> None:
        """Check that a buffer is allocated before its use and, once lowered, has one flat index."""
        if buffer not in self.defined:
            self.fail(f"buffer '{buffer.name}' is not allocated")
        rank = len(buffer.shape)
        if len(indices) != max(rank, self.lowered) and len(indices) != 1:
            self.fail(
                f"buffer '{buffer.name}' has {rank} axes, the {verb} it {len(indices)} indices"
            )
        for index in indices:
            if not dt.is_int(index.dtype):
                self.fail(f"buffer '{buffer.name}': an index must be an integer, got {index.dtype}")
        expected = dt.gather_dtype(buffer.dtype, (i.dtype for i in indices))
        as_bytes = (
            dt.is_byte_stored(dt.element_dtype(expected)) and dt.element_dtype(dtype) == "uint8"
        )
        if dtype != expected and not as_bytes:
            self.fail(f"buffer '{buffer.name}' has elements of {expected}, the {verb} it {dtype}")

    def check_load(self, e: BufferLoad | BufferAddress, is_guarded: bool) -> None:
        """Check that a load follows a write and is in bounds."""
        writes_first = isinstance(e, BufferAddress) and "w" in e.access
        is_asked = isinstance(e, BufferAddress) and not e.access  # how it lies, not what it holds
        if is_asked:
            return
        if e.buffer in self.unwritten and not (writes_first or is_guarded or self.condition_depth):
            self.fail(f"buffer '{e.buffer.name}' is read before anything is written to it")
        if isinstance(e, BufferAddress):
            if "w" in e.access:
                self.unwritten.discard(e.buffer)
        elif not is_guarded:
            self.check_bounds(e.buffer, e.indices)

    def check_bounds(self, buffer: Buffer, indices: Sequence[PrimExpr]) -> None:
        """Fail for an index that provably leaves its axis; accesses under a condition are not
        checked.
        """
        # Only provable faults are errors: an access under any condition may be guarded by it, and
        # strides may move an element anywhere.
        if self.condition_depth or buffer.strides or buffer.elem_offset is not None:
            return
        shape = buffer.shape
        if len(indices) == 1:
            shape = (_num_elements(shape),)  # a flat index
        if len(indices) != len(shape):
            return
        for axis, (index, size) in enumerate(zip(indices, shape, strict=True)):
            ends = self.index_bounds(substitute(index, self.values))
            if ends is None or (isinstance(index, Ramp) and len(shape) > 1):
                continue  # a vector may go on in the next row
            low, high = ends
            analyzer = Analyzer()
            if analyzer.can_prove(low < 0) or analyzer.can_prove(high >= size):
                reach = f"{analyzer.simplify(low)}..{analyzer.simplify(high)}"
                self.fail(
                    f"buffer '{buffer.name}': index {index} of axis {axis} reaches {reach}, "
                    f"the axis has {size} elements"
                )

    def index_bounds(self, index: PrimExpr) -> tuple[PrimExpr, PrimExpr] | None:
        """Return the attained minimum and maximum of an index, or None where unknown."""
        low = high = index
        if isinstance(index, Ramp):
            low, high = index.base, index.base + index.stride * (index.lanes - 1)
            if not (isinstance(index.stride, IntImm) and index.stride.value >= 0):
                return None
        if dt.lanes_suffix(low.dtype):
            return None
        looped = [v for v in free_vars(low) if v in self.domains]
        if not all(self.has_full_range(v) for v in looped) or self.may_be_empty(looped):
            return None
        extremes = self.index_bound(low, looped, False), self.index_bound(high, looped, True)
        return None if extremes[0] is None or extremes[1] is None else (extremes[0], extremes[1])

    def has_full_range(self, var: Var) -> bool:
        """Return whether a loop covers its whole range independently of other loops."""
        low, extent = self.domains[var]
        outer = free_vars(low, extent)
        return not is_const(extent, 0) and not any(v in self.domains for v in outer)

    def may_be_empty(self, looped: Sequence[Var]) -> bool:
        """Return whether an enclosing loop may have no iterations for some values of these
        variables.
        """
        extents = [s.extent for s in self.enclosing_scopes if isinstance(s, For)]
        return bool(set(looped) & set(free_vars(*extents)))

    def index_bound(self, index: PrimExpr, looped: Sequence[Var], upper: bool) -> PrimExpr | None:
        """Return the minimum or maximum of an index over loops; None where it is not linear in
        them.
        """
        form = extract_linear_form(index, looped)
        if form is None:
            return None
        total = form.base
        for var, scale in form.coefficients.items():
            low, extent = self.domains[var]
            last = low + extent - 1
            total = total + (last if (scale > 0) == upper else low) * scale
        return total

    # Expressions.

    def check_expr(self, root: PrimExpr) -> None:
        """Check each node once per scope."""
        order = post_order(root)
        guarded = conditional_nodes(root, order)
        for e in order:
            if self.enclosing_blocks and e in self.enclosing_blocks[-1][1]:
                self.fail_unbound(e)
            if isinstance(e, (BufferLoad, BufferAddress)):
                if e.buffer not in self.defined:
                    self.fail(f"buffer '{e.buffer.name}' is not allocated")
                self.check_load(e, id(e) in guarded)
            # Nodes are shared (hash-consed) in large programs; checking each once per scope keeps
            # the verifier linear.
            if id(e) not in self.checked:
                self.checked.add(id(e))
                self.check_node(e)

    def fail_unbound(self, loop_var: PrimExpr) -> NoReturn:
        """Fail for a loop variable used inside a block: a block must be a function of its
        iterators, because primitives that move it look at nothing else. (One without iterators
        is a part of the loops around it.)
        """
        block = self.enclosing_blocks[-1][0]
        self.fail(
            f"block '{block.name}' uses the variable '{loop_var}' of a loop outside of it, to which"
            " an iterator of the block must be bound"
        )

    def check_node(self, e: PrimExpr) -> None:
        """Check the definitions and dtypes of one node."""
        match e:
            case Var() if e not in self.defined:
                self.fail(f"variable '{e.name}' is used before it is defined")
            case BufferLoad():
                self.check_access(e.buffer, e.indices, e.dtype)
            case BinaryExpr():
                self.check_operands(e)
            case Not() if dt.element_dtype(e.a.dtype) != "bool":
                self.fail(f"'not' takes a bool, got {e.a.dtype}")
            case Select():
                self.check_select("a select", e.condition, e.true_value, e.false_value, e.dtype)
            case Intrinsic(op="if_then_else"):
                self.check_select("if_then_else", e.args[0], e.args[1], e.args[2], e.dtype)
            case Intrinsic(op=op) if op not in INTRINSICS:
                self.fail(f"there is no intrinsic '{op}'")
            case Intrinsic(op=op) if 0 <= find_intrinsic(op).arity != len(e.args):
                self.fail(f"'{op}' takes {find_intrinsic(op).arity} arguments, got {len(e.args)}")
            case Cast() if dt.lanes_suffix(e.value.dtype) != dt.lanes_suffix(e.dtype):
                self.fail(f"a cast must keep the lanes, got {e.value.dtype} to {e.dtype}")
            case Ramp() | Broadcast() if dt.lanes_suffix(e.dtype) != format_lanes(e.lanes) or any(
                dt.lanes_suffix(c.dtype) for c in children(e)
            ):
                self.fail(f"lanes disagree in {e}")

    def check_operands(self, e: BinaryExpr) -> None:
        """Check that both operands have one dtype, which is the result's except for comparisons."""
        if e.a.dtype != e.b.dtype:
            self.fail(f"operands of '{e.symbol}' differ: {e.a.dtype} and {e.b.dtype}")
        if isinstance(e, (And, Or)) and dt.element_dtype(e.a.dtype) != "bool":
            self.fail(f"'{e.symbol}' takes bools, got {e.a.dtype}")
        expected = dt.with_lanes("bool", dt.lanes_suffix(e.a.dtype))
        if e.dtype != (expected if isinstance(e, (*COMPARISON_OPS, And, Or)) else e.a.dtype):
            self.fail(f"'{e.symbol}' of {e.a.dtype} is no {e.dtype}")

    def check_select(
        self, subject: str, condition: PrimExpr, yes: PrimExpr, no: PrimExpr, dtype: str
    ) -> None:
        """Check that a bool chooses between values of the result's dtype."""
        if dt.element_dtype(condition.dtype) != "bool":
            self.fail(f"the condition of {subject} must be bool, got {condition.dtype}")
        for side in (yes, no):
            if side.dtype != dtype:
                self.fail(f"sides of {subject} must be {dtype}, got {side.dtype}")

    # Races.

    def check_races(self, loop: For) -> None:
        """Check that concurrent iterations of a loop do not store to one element."""
        if is_const(loop.extent, 1) or is_const(loop.extent, 0):
            return
        stores: dict[Buffer, list[_UnconditionalAccess]] = {}
        touched: dict[Buffer, list[_UnconditionalAccess]] = {}
        for touch in _unconditional_accesses(loop.body, self.values):
            touched.setdefault(touch.buffer, []).append(touch)
            if touch.is_store:
                stores.setdefault(touch.buffer, []).append(touch)
        for buffer, buffer_stores in stores.items():
            # CompactBufferAllocation will give each iteration its own copy, so two iterations
            # cannot meet in it.
            if not self.lowered and self.is_private(loop, buffer):
                continue
            for store in buffer_stores:
                self.check_race(loop, store, touched[buffer])

    def is_private(self, loop: For, buffer: Buffer) -> bool:
        """Return whether a buffer is used only in a loop, so that lowering makes it private to each
        iteration.
        """
        if buffer in self.func.params:
            return False
        stack: list[Stmt] = [self.func.body]
        while stack:
            s = stack.pop()
            if s is loop:
                continue
            used = [e for e in post_order(*stmt_exprs(s)) if getattr(e, "buffer", None) is buffer]
            if used or (isinstance(s, BufferStore) and s.buffer is buffer):
                return False
            stack.extend(sub_statements(s))
        return True

    def check_race(
        self, loop: For, store: _UnconditionalAccess, touched: Sequence[_UnconditionalAccess]
    ) -> None:
        """Fail where two iterations provably access one element that one of them stores."""
        var, kind = loop.loop_var, loop.kind.value
        ranges = {f.loop_var: f for f in store.loops}
        if var in free_vars(*(b for f in store.loops for b in (f.min, f.extent))):
            return  # inner bounds depend on it: iterations access different ranges
        moving = [i for i in store.indices if var in free_vars(i)]
        if not moving:
            element = store.element_text()
            self.fail(f"every step of the {kind} loop '{var.name}' stores to the same {element}")
        # The check is deliberately incomplete: it reports races that are certain, and leaves
        # undecidable ones to the primitives.
        if len(moving) > 1 or not isinstance(loop.extent, IntImm):
            return
        form = extract_linear_form(moving[0], [var, *ranges])
        scale = 0 if form is None else form.coefficients.get(var, 0)
        if form is None or scale == 0:
            return
        for inner, step in form.coefficients.items():
            if inner is var or scale % step or inner not in ranges:
                continue
            size = ranges[inner].extent
            apart = abs(scale // step)
            # If the inner variable moves another axis as well, the elements may differ there.
            alone = sum(inner in free_vars(i) for i in store.indices) == 1
            # One iteration's stores span `size` inner steps, the next iteration begins `apart`
            # steps later: they overlap.
            if isinstance(size, IntImm) and size.value > apart and alone:
                self.fail(
                    f"steps of the {kind} loop '{var.name}' store to the same "
                    f"{store.element_text()}: '{inner.name}' reaches into the next"
                )
        for touch in touched:
            self.check_overlap(loop, store, touch, form)

    def check_overlap(
        self,
        loop: For,
        store: _UnconditionalAccess,
        second_touch: _UnconditionalAccess,
        form: LinearForm,
    ) -> None:
        """Fail where a store and another access are a whole number of iterations apart."""
        var = loop.loop_var
        scale = form.coefficients[var]
        assert isinstance(loop.extent, IntImm)
        if len(store.indices) != len(second_touch.indices):
            return
        for a, b in zip(store.indices, second_touch.indices, strict=True):
            if var not in free_vars(a):
                # Another axis may keep the accesses apart: only certain overlaps are errors.
                if not is_same_expr(a, b):
                    return
                continue
            second = extract_linear_form(b, [var, *(f.loop_var for f in store.loops)])
            if second is None or second.coefficients != form.coefficients:
                return
            apart = Analyzer().simplify(second.base - form.base)
            if not isinstance(apart, IntImm) or apart.value % scale:
                return
            steps = abs(apart.value // scale)
            if 0 < steps < loop.extent.value:
                verb = "stores to" if second_touch.is_store else "reads"
                self.fail(
                    f"a step of the {loop.kind.value} loop '{var.name}' {verb} "
                    f"{second_touch.element_text()}, to which another step stores"
                )


def _num_elements(shape: Sequence[PrimExpr]) -> PrimExpr:
    total: PrimExpr = const(1)
    for extent in shape:
        total = total * extent
    return total


def _definition_kind(definition: Var | Buffer) -> str:
    return "buffer" if isinstance(definition, Buffer) else "variable"


@dataclass(frozen=True, slots=True)
class _UnconditionalAccess:
    """A load or store that happens in every iteration, with indices over loop variables alone."""

    buffer: Buffer
    indices: tuple[PrimExpr, ...]
    is_store: bool
    loops: tuple[For, ...]

    def element_text(self) -> str:
        """Return the accessed element as text, as in `A[i, j]`."""
        return f"{self.buffer.name}[{', '.join(map(str, self.indices))}]"


def _unconditional_accesses(
    body: Stmt, values: Mapping[Var, PrimExpr]
) -> list[_UnconditionalAccess]:
    """Return the unconditional accesses to buffers that are allocated outside."""
    touches: list[_UnconditionalAccess] = []
    allocated: set[Buffer] = set()
    stack: list[tuple[Stmt, tuple[For, ...], Mapping[Var, PrimExpr]]] = [(body, (), values)]
    while stack:
        s, loops, bindings = stack.pop()
        # An access that may not happen proves no race.
        if _is_conditional(s):
            continue
        for root in stmt_exprs(s):
            order = post_order(root)
            guarded = conditional_nodes(root, order)
            touches += [
                _UnconditionalAccess(e.buffer, _substituted(e.indices, bindings), False, loops)
                for e in order
                if isinstance(e, BufferLoad) and id(e) not in guarded
            ]
        match s:
            case BufferStore(predicate=None):
                touches.append(
                    _UnconditionalAccess(s.buffer, _substituted(s.indices, bindings), True, loops)
                )
            case Allocate():
                allocated.add(s.buffer)
            case For():
                loops = (*loops, s)
            case LetStmt():
                bindings = {**bindings, **_let_value(s, bindings)}
            case BlockRealize():
                bindings = {**bindings, **_iterator_bindings(s, bindings)}
        stack.extend((child, loops, bindings) for child in reversed(sub_statements(s)))
    return [t for t in touches if t.buffer not in allocated]


def _substituted(
    indices: Sequence[PrimExpr], bindings: Mapping[Var, PrimExpr]
) -> tuple[PrimExpr, ...]:
    return tuple(substitute(i, dict(bindings)) for i in indices)


def _let_value(s: LetStmt, bindings: Mapping[Var, PrimExpr]) -> dict[Var, PrimExpr]:
    return {s.var: substitute(s.value, dict(bindings))} if s.var.dtype in ("int64", "int32") else {}


def _iterator_bindings(
    s: BlockRealize, outer_bindings: Mapping[Var, PrimExpr]
) -> dict[Var, PrimExpr]:
    pairs = zip(s.block.iter_vars, s.iter_values, strict=True)
    return {i.var: substitute(value, dict(outer_bindings)) for i, value in pairs}


def _is_conditional(s: Stmt) -> bool:
    """Return whether the inside of a statement may not run."""
    return isinstance(s, (IfThenElse, While)) or (
        isinstance(s, BlockRealize) and not is_const(s.predicate, 1)
    )


def verify(func: PrimFunc, lowered: bool = True) -> PrimFunc:
    """Return the function if it is well formed; else raise VerifyError.

    Checked: definitions precede uses; dtypes, lanes and ranks agree; scopes exist; a block with
    iterators uses outer loop variables only through them. Provably wrong are: an index that leaves
    its axis, a buffer (allocated, or one of the `num_outputs` last parameters) read before anything
    was written, and two iterations of a parallel or vectorised loop that access an element one of
    them stores to.

    Args:
        func: the function to check.
        lowered: check the form that code generators accept, too.

    Raises:
        VerifyError: names the first fault, the function, the loop or block, and the line of
            `func.script()`.
    """
    _Verifier(func, lowered).run()
    return func
