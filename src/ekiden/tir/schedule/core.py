"""What every step of a schedule goes through: handles are looked up, the primitive is asked, its
refusal told with its place, the step recorded.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, TypeVar

from ekiden.arith import evaluate
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.printer import text_and_lines
from ekiden.tir.schedule.check import check_concurrent, is_within_block
from ekiden.tir.schedule.program import Program, RefusedError
from ekiden.tir.schedule.trace import BlockRV, ExprRV, Handle, Instruction, LoopRV, Trace
from ekiden.tir.stmt import Block, BlockRealize, For, ForKind, PrimFunc, Stmt
from ekiden.tir.views import lower_match_buffer

BlockLike: TypeAlias = BlockRV | str
LoopLike: TypeAlias = LoopRV | Var | str
Made: TypeAlias = PrimFunc | tuple[PrimFunc, Sequence[object]]
_T = TypeVar("_T")
CONCURRENT = (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.THREAD_BINDING)
RENDERING = ("detail", "fast", "none")


@dataclass(frozen=True, slots=True, eq=False)
class StmtSRef:
    """A place in a program being scheduled. `stmt`: the block or the loop."""

    stmt: Block | For

    def same_as(self, other: object) -> bool:
        """Whether two are one object."""
        return self is other


class Steps:
    """The state of a schedule and how a step changes it."""

    def __init__(
        self,
        mod: PrimFunc | IRModule,
        *,
        seed: int | None = None,
        debug_mask: str | int = "none",
        error_render_level: str = "detail",
        enable_check: bool = True,
    ) -> None:
        """Schedule a function, or the functions of a module (see `work_on`).

        `seed` makes sampling repeatable. `error_render_level`: "detail" adds the line of the
        program to refusals, "fast" and "none" leave it out. `debug_mask` and `enable_check` are
        accepted as in TVM; every step is always checked.
        """
        del debug_mask, enable_check
        if error_render_level not in RENDERING:
            raise ScheduleError(
                f"Schedule: error_render_level is one of {', '.join(RENDERING)}, got "
                f"{error_render_level!r}"
            )
        self._detail = error_render_level == "detail"
        self._module = mod if isinstance(mod, IRModule) else None
        self._programs = _programs(mod)
        self._working = "main" if "main" in self._programs else next(iter(self._programs))
        self._values: dict[Handle, tuple[str, object]] = {}
        """Handle -> (function, name of the block / variable of the loop / number)."""
        self._handles: dict[tuple[str, object], Handle] = {}
        self._trace = Trace()
        self._random = random.Random(seed)
        self._level = error_render_level

    # The program.

    @property
    def func(self) -> PrimFunc:
        """The function being scheduled, as it is now."""
        return self._program.func

    @property
    def _program(self) -> Program:
        return self._programs[self._working]

    @property
    def mod(self) -> IRModule:
        """The module being scheduled, as it is now."""
        functions: dict[GlobalVar | str, BaseFunc] = {
            name: p.func for name, p in self._programs.items()
        }
        if self._module is None:
            return IRModule(functions)
        others: dict[GlobalVar | str, BaseFunc] = {
            g: functions.get(g.name_hint, f) for g, f in self._module.functions.items()
        }
        return IRModule(others, self._module.type_definitions, self._module.attrs)

    @property
    def func_working_on(self) -> GlobalVar:
        """The function that steps change."""
        return GlobalVar(self._working)

    def work_on(self, func_name: str) -> None:
        """Let the following steps change another function of the module. Raises ScheduleError for a
        function that there is not."""
        if func_name not in self._programs:
            raise ScheduleError(
                f"work_on: no function {func_name!r}; there are {sorted(self._programs)}"
            )
        self._working = func_name
        self._trace.append(Instruction("work_on", (), {"func_name": func_name}, ()))

    # Traces.

    @property
    def trace(self) -> Trace:
        """The steps so far."""
        return self._trace

    def replay(
        self,
        instruction: Instruction,
        inputs: Sequence[object],
        attrs: Mapping[str, object],
        decision: object,
    ) -> list[Handle]:
        """Do a recorded step; gives its outputs. Raises ScheduleError for an unknown kind."""
        if instruction.kind not in self.kinds:
            raise ScheduleError(f"a trace has the unknown step {instruction.kind!r}")
        arguments = dict(attrs)
        if decision is not None:
            arguments["decision"] = decision
        result = getattr(self, instruction.kind)(*inputs, **arguments)
        if result is None:
            return []
        return list(result) if isinstance(result, (list, tuple)) else [result]

    kinds: frozenset[str] = frozenset()
    """The steps that a trace may hold."""

    # Randomness.

    def seed(self, seed: int) -> None:
        """Begin the sampling anew."""
        self._random.seed(seed)

    def fork_seed(self) -> int:
        """A seed for another schedule; the next one is different."""
        return self._random.randint(1, 2**31 - 1)

    # Handles.

    def get(self, rand_var_or_sref: Handle | PrimExpr) -> Block | For | int:
        """The block, the loop or the number that a handle stands for now."""
        found = self._resolve(rand_var_or_sref)
        if isinstance(found, BlockRealize):
            return found.block
        assert isinstance(found, (For, int))
        return found

    def get_sref(self, rand_var_or_stmt: Handle) -> StmtSRef:
        """Where a block or a loop stands now."""
        found = self.statement(rand_var_or_stmt)
        stmt = found.block if isinstance(found, BlockRealize) else found
        assert isinstance(stmt, (Block, For))
        return StmtSRef(stmt)

    def statement(self, rand_var: Handle) -> Stmt:
        """The statement of a block (its BlockRealize) or of a loop."""
        found = self._resolve(rand_var)
        assert isinstance(found, Stmt)
        return found

    def remove_rv(self, rand_var: Handle) -> None:
        """Forget a handle."""
        where = self._values.pop(rand_var, None)
        if where is not None and self._handles.get(where) is rand_var:
            del self._handles[where]

    def _new(self, made: object, func: str | None = None) -> Handle:
        """A handle for a block's name, a loop's variable or a number."""
        where = (func or self._working, made)
        handle: Handle
        if isinstance(made, str):
            handle = BlockRV()
        elif isinstance(made, Var):
            handle = LoopRV()
        else:
            handle = ExprRV("v", "int64")
        self._values[handle] = where
        if not isinstance(handle, ExprRV):
            self._handles[where] = handle
        return handle

    def _resolve(self, value: object) -> object:
        """What the handles in an input stand for: BlockRealize, For, int."""
        match value:
            case BlockRV() | LoopRV():
                return self._place(value)
            case ExprRV() if value in self._values:
                return self._values[value][1]
            case PrimExpr():
                known: dict[Var, int] = {
                    h: int(v[1])  # type: ignore[call-overload]
                    for h, v in self._values.items()
                    if isinstance(h, ExprRV)
                }
                if any(v not in known for v in free_vars(value)):  # sizes that a run knows
                    numbers: dict[Var, PrimExpr] = {v: const(n, v.dtype) for v, n in known.items()}
                    return substitute(value, numbers)
                return evaluate(value, known)
            case list() | tuple():
                return [self._resolve(v) for v in value]
        return value

    def _place(self, handle: BlockRV | LoopRV) -> BlockRealize | For:
        where = self._values.get(handle)
        what = "block" if isinstance(handle, BlockRV) else "loop"
        if where is None:
            raise ScheduleError(f"{what} handle: it is not one of this schedule")
        func, made = where
        program = self._programs[func]
        found: BlockRealize | For | None
        if isinstance(made, str):
            found = program.blocks.get(made)
        elif isinstance(made, Var):
            found = program.loops.get(made)
        else:
            raise ScheduleError("loop handle: it stands for no loop, but for the place of a block")
        if found is None:
            name = made if isinstance(made, str) else made.name
            raise ScheduleError(
                f"{what} {name!r}: the function has no such {what} any more; an earlier step took "
                "it apart or away"
            )
        return found

    def _loop(self, loop: LoopLike) -> LoopRV:
        """The handle of a loop given by handle, variable or name."""
        if isinstance(loop, LoopRV):
            return loop
        program = self._program
        if isinstance(loop, str):
            named = [v for v in program.loops if v.name == loop]
            if len(named) != 1:
                raise ScheduleError(
                    f"loop {loop!r}: there are {len(named)} of the name; loops are "
                    f"{[v.name for v in program.loops]}"
                )
            loop = named[0]
        if loop not in program.loops:
            raise ScheduleError(f"loop {loop.name!r}: the function has no such loop any more")
        known = self._handles.get((self._working, loop))
        if isinstance(known, LoopRV):
            return known
        # A loop comes into a trace through the block it is around.
        block = program.leaves(program.loops[loop])
        if not block:
            raise ScheduleError(f"loop {loop.name!r}: there is no block in it")
        name = self._block(block[0].block.name)
        self._query("get_loops", (name,), {}, [s.loop_var for s in program.loops_above(block[0])])
        return self._loop(loop)

    def _block(self, block: BlockLike) -> BlockRV:
        """The handle of a block given by handle or name."""
        if isinstance(block, BlockRV):
            return block
        if block not in self._program.blocks and block.endswith("_update"):
            # What TVM calls a sum whose init is a block of its own; here it keeps its name.
            block = block.removesuffix("_update")
        known = self._handles.get((self._working, block))
        if isinstance(known, BlockRV) and block in self._program.blocks:
            return known
        if block not in self._program.blocks:
            raise ScheduleError(
                f"block {block!r}: there is none; blocks are {list(self._program.blocks)}"
            )
        attrs = {"name": block, "func_name": self._working}
        made = self._query("get_block", (), attrs, [block])[0]
        assert isinstance(made, BlockRV)
        return made

    def _place_of(self, block_or_loop: BlockLike | LoopLike) -> BlockRV | LoopRV:
        """A handle of either kind; a name is a block's, else a loop's."""
        if isinstance(block_or_loop, (BlockRV, LoopRV)):
            return block_or_loop
        if isinstance(block_or_loop, str) and block_or_loop in self._program.blocks:
            return self._block(block_or_loop)
        return self._loop(block_or_loop)

    # Steps.

    def _query(
        self,
        kind: str,
        inputs: tuple[object, ...],
        attrs: Mapping[str, object],
        found: Sequence[object],
        decision: object = None,
        func: str | None = None,
    ) -> list[Handle]:
        made = [self._new(each, func) for each in found]
        self._trace.append(Instruction(kind, inputs, attrs, tuple(made)), decision)
        return made

    def _run(
        self,
        kind: str,
        step: Callable[..., Made],
        inputs: tuple[object, ...],
        attrs: Mapping[str, object] | None = None,
        moves: bool = False,
    ) -> list[Handle]:
        """Do a step and record it. `moves`: it puts blocks into loops, which may be concurrent."""
        program = self._program_of(inputs)
        notes = {k: v.name if isinstance(v, Buffer) else v for k, v in (attrs or {}).items()}
        resolved = [self._resolve(v) for v in inputs]
        named = {k: self._resolve(v) if _has_handles(v) else v for k, v in (attrs or {}).items()}
        try:
            result = step(program, *resolved, **named)
            func, made = result if isinstance(result, tuple) else (result, ())
            if func is not program.func:
                new = Program(func)
                if moves:
                    _recheck(kind, new)
            else:
                new = program
        except RefusedError as error:
            raise ScheduleError(self._told(error, program)) from None
        self._programs[self._working] = new
        return self._query(kind, inputs, notes, made)

    def _record(
        self,
        kind: str,
        inputs: tuple[object, ...],
        attrs: Mapping[str, object],
        made: Sequence[Handle],
        decision: object = None,
    ) -> None:
        self._trace.append(Instruction(kind, inputs, attrs, tuple(made)), decision)

    def _special(self, place: int) -> LoopRV:
        """A loop handle that stands for no loop: ROOT or INLINE."""
        handle = LoopRV()
        self._values[handle] = (self._working, place)
        return handle

    def _told_by(self, step: Callable[[], _T]) -> _T:
        """What a question gives; a refusal is told with its place."""
        try:
            return step()
        except RefusedError as error:
            raise ScheduleError(self._told(error, self._program)) from None

    def _get_loop(self, handle: LoopRV) -> For:
        found = self._place(handle)
        assert isinstance(found, For)
        return found

    def _get_block_realize(self, handle: BlockRV) -> BlockRealize:
        found = self._place(handle)
        assert isinstance(found, BlockRealize)
        return found

    def _program_of(self, inputs: tuple[object, ...]) -> Program:
        for each in inputs:
            if isinstance(each, (BlockRV, LoopRV)) and each in self._values:
                func = self._values[each][0]
                if func != self._working:
                    self.work_on(func)
                break
        return self._program

    def _told(self, error: RefusedError, program: Program) -> str:
        if error.place is None or not self._detail:
            return str(error)
        line = line_of(program, error.place)
        return str(error) if line is None else f"{error}\n  {line}"


def _has_handles(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_handles(v) for v in value)
    return isinstance(value, (BlockRV, LoopRV, ExprRV))


def _recheck(kind: str, program: Program) -> None:
    """The steps of loops that run at the same time must still not meet; a loop without blocks, such
    as those of a block's own statements, is as it was."""
    for loop in program.loops.values():
        if loop.kind in CONCURRENT and program.leaves(loop.body):
            lanes = loop.kind is ForKind.VECTORIZED
            together = is_within_block(loop.annotations)
            check_concurrent(f"{kind}: {loop.kind.value}", program, loop, lanes, together)


def line_of(program: Program, place: Stmt) -> str | None:
    """The line of the function's text where a statement begins: `line 3: for i in range(4):`."""
    if isinstance(place, Block):
        above = program.parent(place)
        place = place if above is None else above
    text, numbers = text_and_lines(program.func)
    number = numbers.get(place)
    if number is None:
        return None
    return f"line {number}: {text.splitlines()[number - 1].strip()}"


def _programs(mod: PrimFunc | IRModule) -> dict[str, Program]:
    """The functions by name; one alone is "main", as in TVM."""
    if isinstance(mod, PrimFunc):
        return {"main": Program(lower_match_buffer(mod))}
    found = {
        g.name_hint: Program(lower_match_buffer(f))
        for g, f in mod.functions.items()
        if isinstance(f, PrimFunc)
    }
    if not found:
        raise ScheduleError("Schedule: the module has no PrimFunc")
    return found
