"""The machinery common to all schedule primitives: resolve handles, run the primitive, report a
refusal with its source line, record the instruction in the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from ekiden.arith import evaluate
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, Var, const
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.runtime.errors import ScheduleError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.tir.expr import Buffer
from ekiden.tir.printer import print_with_lines
from ekiden.tir.schedule.legality import is_bound_within_block, require_concurrent
from ekiden.tir.schedule.program import RefusedError, ScheduleProgram
from ekiden.tir.schedule.trace import BlockRV, ExprRV, Handle, Instruction, LoopRV, Trace
from ekiden.tir.stmt import Block, BlockRealize, For, ForKind, PrimFunc, Stmt
from ekiden.tir.views import lower_match_buffer

BlockLike: TypeAlias = BlockRV | str
LoopLike: TypeAlias = LoopRV | Var | str
PrimitiveResult: TypeAlias = PrimFunc | tuple[PrimFunc, Sequence[object]]
_T = TypeVar("_T")
CONCURRENT_KINDS = (ForKind.PARALLEL, ForKind.VECTORIZED, ForKind.THREAD_BINDING)
ERROR_RENDER_LEVELS = ("detail", "fast", "none")
CHECKED, TRUSTED = PROOF_MODES = ("checked", "trusted")
"""Whether primitives prove that they keep the program's meaning, or trust that they do."""


@dataclass(frozen=True, slots=True, eq=False)
class StmtSRef:
    """A reference to a block or loop of a program being scheduled. `stmt`: the block or
    the loop.
    """

    stmt: Block | For

    def same_as(self, other: object) -> bool:
        """Return whether two references are one object."""
        return self is other


class ScheduleState:
    """The state of a schedule and the operations that change it."""

    def __init__(
        self,
        mod: PrimFunc | IRModule,
        *,
        seed: int | None = None,
        debug_mask: str | int = "none",
        error_render_level: str = "detail",
        enable_check: bool = True,
        proofs: str = CHECKED,
    ) -> None:
        """Schedule a function, or the functions of a module (see `work_on`).

        `seed` makes sampling repeatable. `proofs="trusted"` is for schedules that tests have
        proved, as those of the library's kernels: scheduling takes a fifth to a third less time. A
        step then refuses what it cannot transform, but not what would change a result.
        `error_render_level`: "detail" adds the line of the program to refusals, "fast" and "none"
        leave it out. `debug_mask` and `enable_check` are accepted as in TVM.
        """
        del debug_mask, enable_check
        if proofs not in PROOF_MODES:
            raise ScheduleError(
                f"Schedule: proofs is one of {', '.join(PROOF_MODES)}, got {proofs!r}"
            )
        self._is_trusted = proofs == TRUSTED
        if error_render_level not in ERROR_RENDER_LEVELS:
            raise ScheduleError(
                f"Schedule: error_render_level is one of {', '.join(ERROR_RENDER_LEVELS)}, got "
                f"{error_render_level!r}"
            )
        self._error_render_level = error_render_level == "detail"
        self._module = mod if isinstance(mod, IRModule) else None
        self._programs = _schedule_programs(mod)
        self._current_function = "main" if "main" in self._programs else next(iter(self._programs))
        self._referents: dict[Handle, tuple[str, object]] = {}
        """Referent of each handle: (function, block name, loop variable or number)."""
        self._handles: dict[tuple[str, object], Handle] = {}
        self._trace = Trace()
        self._random = random.Random(seed)
        self._enable_check = error_render_level

    # The program.

    @property
    def func(self) -> PrimFunc:
        """Return the function being scheduled in its current form."""
        return self._current_program.func

    @property
    def _current_program(self) -> ScheduleProgram:
        return self._programs[self._current_function]

    @property
    def mod(self) -> IRModule:
        """Return the module being scheduled in its current form."""
        functions: dict[GlobalVar | str, BaseFunc] = {
            name: p.func for name, p in self._programs.items()
        }
        if self._module is None:
            return IRModule(functions)
        all_functions: dict[GlobalVar | str, BaseFunc] = {
            g: functions.get(g.name_hint, f) for g, f in self._module.functions.items()
        }
        return IRModule(all_functions, self._module.type_definitions, self._module.attrs)

    @property
    def func_working_on(self) -> GlobalVar:
        """Return the function that primitives change."""
        return GlobalVar(self._current_function)

    @property
    def proofs(self) -> str:
        """Return whether steps are "checked" or "trusted"."""
        return TRUSTED if self._is_trusted else CHECKED

    @contextmanager
    def checking(self) -> Iterator[None]:
        """Make all proofs of the steps inside, of a trusted schedule, too: where a refusal decides
        what is done instead.
        """
        before, self._is_trusted = self._is_trusted, False
        try:
            yield
        finally:
            self._is_trusted = before

    def work_on(self, func_name: str) -> None:
        """Select the function that the following primitives change. Raises ScheduleError for an
        unknown name.
        """
        if func_name not in self._programs:
            raise ScheduleError(
                f"work_on: no function {func_name!r}; there are {sorted(self._programs)}"
            )
        self._current_function = func_name
        self._trace.append(Instruction("work_on", (), {"func_name": func_name}, ()))

    # Traces.

    @property
    def trace(self) -> Trace:
        """Return the trace of the primitives so far."""
        return self._trace

    def replay(
        self,
        instruction: Instruction,
        inputs: Sequence[object],
        attrs: Mapping[str, object],
        decision: object,
    ) -> list[Handle]:
        """Run a recorded primitive and return its outputs. Raises ScheduleError for an unknown
        kind.
        """
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
    """Primitives by the instruction kind that a trace records."""

    # Randomness.

    def seed(self, seed: int) -> None:
        """Reseed the sampling."""
        self._random.seed(seed)

    def fork_seed(self) -> int:
        """Return a seed for another schedule and advance the random state."""
        return self._random.randint(1, 2**31 - 1)

    # Handles.

    def get(self, rand_var_or_sref: Handle | PrimExpr) -> Block | For | int:
        """Return the block, loop or number that a handle currently refers to."""
        resolved = self._resolve_handles(rand_var_or_sref)
        if isinstance(resolved, BlockRealize):
            return resolved.block
        assert isinstance(resolved, (For, int))
        return resolved

    def get_sref(self, rand_var_or_stmt: Handle) -> StmtSRef:
        """Return a reference to a block or loop in the current program."""
        resolved = self.statement(rand_var_or_stmt)
        stmt = resolved.block if isinstance(resolved, BlockRealize) else resolved
        assert isinstance(stmt, (Block, For))
        return StmtSRef(stmt)

    def statement(self, rand_var: Handle) -> Stmt:
        """Return the statement of a block (its BlockRealize) or of a loop."""
        resolved = self._resolve_handles(rand_var)
        assert isinstance(resolved, Stmt)
        return resolved

    def remove_rv(self, rand_var: Handle) -> None:
        """Drop a handle."""
        where = self._referents.pop(rand_var, None)
        if where is not None and self._handles.get(where) is rand_var:
            del self._handles[where]

    def _new_handle(self, referent: object, func: str | None = None) -> Handle:
        """Return a new handle for a block's name, a loop's variable or a number."""
        where = (func or self._current_function, referent)
        handle: Handle
        if isinstance(referent, str):
            handle = BlockRV()
        elif isinstance(referent, Var):
            handle = LoopRV()
        else:
            handle = ExprRV("v", "int64")
        self._referents[handle] = where
        # Equal numbers of two samples are two handles, so a number cannot lead back to one.
        if not isinstance(handle, ExprRV):
            self._handles[where] = handle
        return handle

    def _resolve_handles(self, value: object) -> object:
        """Return the referents of the handles in an input: BlockRealize, For, int."""
        match value:
            case BlockRV() | LoopRV():
                return self._find_stmt(value)
            case ExprRV() if value in self._referents:
                return self._referents[value][1]
            case PrimExpr():
                sampled: dict[Var, int] = {
                    h: int(v[1])  # type: ignore[call-overload]
                    for h, v in self._referents.items()
                    if isinstance(h, ExprRV)
                }
                if any(v not in sampled for v in free_vars(value)):  # sizes that a run knows
                    numbers: dict[Var, PrimExpr] = {
                        v: const(n, v.dtype) for v, n in sampled.items()
                    }
                    return substitute(value, numbers)
                return evaluate(value, sampled)
            case list() | tuple():
                return [self._resolve_handles(v) for v in value]
        return value

    def _find_stmt(self, handle: BlockRV | LoopRV) -> BlockRealize | For:
        where = self._referents.get(handle)
        kind = "block" if isinstance(handle, BlockRV) else "loop"
        if where is None:
            raise ScheduleError(f"{kind} handle: it is not one of this schedule")
        func, referent = where
        program = self._programs[func]
        stmt: BlockRealize | For | None
        if isinstance(referent, str):
            stmt = program.blocks.get(referent)
        elif isinstance(referent, Var):
            stmt = program.loops.get(referent)
        else:
            raise ScheduleError("loop handle: it stands for no loop, but for the place of a block")
        if stmt is None:
            name = referent if isinstance(referent, str) else referent.name
            raise ScheduleError(
                f"{kind} {name!r}: the function has no such {kind} any more; an earlier step took "
                "it apart or away"
            )
        return stmt

    def _loop_handle(self, loop: LoopLike) -> LoopRV:
        """Return the handle of a loop given by handle, variable or name."""
        if isinstance(loop, LoopRV):
            return loop
        program = self._current_program
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
        handle = self._handles.get((self._current_function, loop))
        if isinstance(handle, LoopRV):
            return handle
        # A loop comes into a trace through the block it is around.
        block = program.outermost_blocks(program.loops[loop])
        if not block:
            raise ScheduleError(f"loop {loop.name!r}: there is no block in it")
        name = self._block_handle(block[0].block.name)
        self._run_query(
            "get_loops", (name,), {}, [s.loop_var for s in program.loops_above(block[0])]
        )
        return self._loop_handle(loop)

    def _block_handle(self, block: BlockLike) -> BlockRV:
        """Return the handle of a block given by handle or name."""
        if isinstance(block, BlockRV):
            return block
        if block not in self._current_program.blocks and block.endswith("_update"):
            # What TVM calls a sum whose init is a block of its own; here it keeps its name.
            block = block.removesuffix("_update")
        handle = self._handles.get((self._current_function, block))
        if isinstance(handle, BlockRV) and block in self._current_program.blocks:
            return handle
        if block not in self._current_program.blocks:
            raise ScheduleError(
                f"block {block!r}: there is none; blocks are {list(self._current_program.blocks)}"
            )
        attrs = {"name": block, "func_name": self._current_function}
        new_handle = self._run_query("get_block", (), attrs, [block])[0]
        assert isinstance(new_handle, BlockRV)
        return new_handle

    def _block_or_loop(self, block_or_loop: BlockLike | LoopLike) -> BlockRV | LoopRV:
        """Return a handle of either kind; a name is looked up among blocks first, then loops."""
        if isinstance(block_or_loop, (BlockRV, LoopRV)):
            return block_or_loop
        if isinstance(block_or_loop, str) and block_or_loop in self._current_program.blocks:
            return self._block_handle(block_or_loop)
        return self._loop_handle(block_or_loop)

    # Steps.

    def _run_query(
        self,
        kind: str,
        inputs: tuple[object, ...],
        attrs: Mapping[str, object],
        referents: Sequence[object],
        decision: object = None,
        func: str | None = None,
    ) -> list[Handle]:
        outputs = [self._new_handle(referent, func) for referent in referents]
        self._trace.append(Instruction(kind, inputs, attrs, tuple(outputs)), decision)
        return outputs

    def _run_primitive(
        self,
        kind: str,
        step: Callable[..., PrimitiveResult],
        inputs: tuple[object, ...],
        attrs: Mapping[str, object] | None = None,
        moves: bool = False,
    ) -> list[Handle]:
        """Run a primitive and record it. `moves`: it moves blocks into loops, which may be
        concurrent.
        """
        program = self._program_of_inputs(inputs)
        # A trace records names: on replay the buffers are other objects.
        notes = {k: v.name if isinstance(v, Buffer) else v for k, v in (attrs or {}).items()}
        resolved = [self._resolve_handles(v) for v in inputs]
        named = {
            k: self._resolve_handles(v) if _has_handles(v) else v for k, v in (attrs or {}).items()
        }
        try:
            result = step(program.with_trust(self._is_trusted), *resolved, **named)
            func, outputs = result if isinstance(result, tuple) else (result, ())
            if func is not program.func:
                new = ScheduleProgram(func, self._is_trusted)
                if moves and not self._is_trusted:
                    _recheck_concurrent_loops(kind, new)
            else:
                new = program
        except RefusedError as error:
            raise ScheduleError(self._error_text(error, program)) from None
        # Committed only after every check: a refused primitive leaves the schedule as it was.
        self._programs[self._current_function] = new
        return self._run_query(kind, inputs, notes, outputs)

    def _record_instruction(
        self,
        kind: str,
        inputs: tuple[object, ...],
        attrs: Mapping[str, object],
        outputs: Sequence[Handle],
        decision: object = None,
    ) -> None:
        self._trace.append(Instruction(kind, inputs, attrs, tuple(outputs)), decision)

    def _location_handle(self, location: int) -> LoopRV:
        """Return a loop handle for a compute location that is not a loop: ROOT or INLINE."""
        handle = LoopRV()
        self._referents[handle] = (self._current_function, location)
        return handle

    def _with_located_errors(self, step: Callable[[], _T]) -> _T:
        """Return a query's result; re-raise a refusal as ScheduleError with its source line."""
        try:
            return step()
        except RefusedError as error:
            raise ScheduleError(self._error_text(error, self._current_program)) from None

    def _get_loop(self, handle: LoopRV) -> For:
        stmt = self._find_stmt(handle)
        assert isinstance(stmt, For)
        return stmt

    def _get_block_realize(self, handle: BlockRV) -> BlockRealize:
        stmt = self._find_stmt(handle)
        assert isinstance(stmt, BlockRealize)
        return stmt

    def _program_of_inputs(self, inputs: tuple[object, ...]) -> ScheduleProgram:
        for handle in inputs:
            if isinstance(handle, (BlockRV, LoopRV)) and handle in self._referents:
                func = self._referents[handle][0]
                if func != self._current_function:
                    self.work_on(func)
                break
        return self._current_program

    def _error_text(self, error: RefusedError, program: ScheduleProgram) -> str:
        if error.stmt is None or not self._error_render_level:
            return str(error)
        line = source_line_of(program, error.stmt)
        return str(error) if line is None else f"{error}\n  {line}"


def _has_handles(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_has_handles(v) for v in value)
    return isinstance(value, (BlockRV, LoopRV, ExprRV))


def _recheck_concurrent_loops(kind: str, program: ScheduleProgram) -> None:
    """Check again that iterations of concurrent loops are independent; loops without blocks, such
    as those in a block's body, are unchanged.
    """
    for loop in program.loops.values():
        if loop.kind in CONCURRENT_KINDS and program.outermost_blocks(loop.body):
            lanes = loop.kind is ForKind.VECTORIZED
            together = is_bound_within_block(loop.annotations)
            require_concurrent(f"{kind}: {loop.kind.value}", program, loop, lanes, together)


def source_line_of(program: ScheduleProgram, stmt: Stmt) -> str | None:
    """Return the line of the printed function where a statement begins: `line 3: for i in
    range(4):`.
    """
    if isinstance(stmt, Block):
        above = program.parent_of(stmt)
        stmt = stmt if above is None else above
    text, numbers = print_with_lines(program.func)
    number = numbers.get(stmt)
    if number is None:
        return None
    return f"line {number}: {text.splitlines()[number - 1].strip()}"


def _schedule_programs(mod: PrimFunc | IRModule) -> dict[str, ScheduleProgram]:
    """Return the functions by name; a single PrimFunc is "main", as in TVM."""
    if isinstance(mod, PrimFunc):
        return {"main": ScheduleProgram(lower_match_buffer(mod))}
    programs = {
        g.name_hint: ScheduleProgram(lower_match_buffer(f))
        for g, f in mod.functions.items()
        if isinstance(f, PrimFunc)
    }
    if not programs:
        raise ScheduleError("Schedule: the module has no PrimFunc")
    return programs
