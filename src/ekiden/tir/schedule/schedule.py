"""Schedule: transforms a PrimFunc of blocks by semantics-preserving primitives and records them in
a trace.
"""

from __future__ import annotations

from ekiden.runtime import Object
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.printer import astext
from ekiden.tir.schedule.block_primitives import BlockPrimitives
from ekiden.tir.schedule.core import BlockLike
from ekiden.tir.schedule.loop_primitives import LoopPrimitives, loop_handles
from ekiden.tir.schedule.program import (
    ScheduleProgram,
    block_reads,
    block_writes,
    iter_outermost_blocks,
)
from ekiden.tir.schedule.trace import QUERY_KINDS, BlockRV, LoopRV
from ekiden.tir.stmt import BlockRealize


@Object.register
class Schedule(LoopPrimitives, BlockPrimitives):
    """A function being scheduled.

        sch = tir.Schedule(te.create_prim_func([a, b, c]))
        block = sch.get_block("c")
        i, j, k = sch.get_loops(block)
        i0, i1 = sch.split(i, [None, 6])
        sch.reorder(i0, j, k, i1)

    Blocks and loops are handles; a block may also be given by its name, a loop by its variable or
    an unambiguous name. Each primitive proves that it preserves the semantics or raises
    ScheduleError with the reason and the line, leaving the schedule unchanged. `func` and `mod` are
    the current form, `trace` the primitives so far.
    """

    # Questions.

    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """Return the block of a name. Raises ScheduleError listing the names there are."""
        if func_name is not None and func_name != self._current_function:
            self.work_on(func_name)
        self._handles.pop((self._current_function, name), None)
        return self._block_handle(name)

    def get_loops(self, block: BlockLike) -> list[LoopRV]:
        """Return the loops around a block, outermost first, up to the enclosing block."""
        handle = self._block_handle(block)
        realize = self._get_block_realize(handle)
        program = self._program_of_inputs((handle,))
        loop_vars = [s.loop_var for s in program.loops_above(realize)]
        return loop_handles(self._run_query("get_loops", (handle,), {}, loop_vars))

    def get_child_blocks(self, block_or_loop: BlockLike | LoopRV) -> list[BlockRV]:
        """Return the blocks directly inside a loop or a block, in order."""
        handle = self._block_or_loop(block_or_loop)
        program = self._program_of_inputs((handle,))
        stmt = self._find_stmt(handle)
        inside = stmt.block.body if isinstance(stmt, BlockRealize) else stmt.body
        return self._query_blocks(
            "get_child_blocks", handle, list(iter_outermost_blocks(inside)), program
        )

    def get_producers(self, block: BlockLike) -> list[BlockRV]:
        """Return the blocks that write what a block reads, in order."""
        handle = self._block_handle(block)
        realize, program = self._get_block_realize(handle), self._program_of_inputs((handle,))
        inputs = set(block_reads(realize.block))
        producers = [
            b
            for b in program.outermost_blocks(program.scope_of(realize))
            if b is not realize and not inputs.isdisjoint(block_writes(b.block))
        ]
        return self._query_blocks("get_producers", handle, producers, program)

    def get_consumers(self, block: BlockLike) -> list[BlockRV]:
        """Return the blocks that read what a block writes, in order."""
        handle = self._block_handle(block)
        realize, program = self._get_block_realize(handle), self._program_of_inputs((handle,))
        outputs = set(block_writes(realize.block))
        consumers = [
            b
            for b in program.outermost_blocks(program.scope_of(realize))
            if b is not realize and not outputs.isdisjoint(block_reads(b.block))
        ]
        return self._query_blocks("get_consumers", handle, consumers, program)

    def get_output_blocks(self, scope_block: BlockLike | None = None) -> list[BlockRV]:
        """Return the blocks, in a block or the function, that write arguments of the function."""
        program = self._current_program
        inputs: tuple[object, ...] = ()
        root = program.func.body
        if scope_block is not None:
            handle = self._block_handle(scope_block)
            inputs = (handle,)
            root = self._get_block_realize(handle).block.body
        output_blocks = [
            b
            for b in iter_outermost_blocks(root)
            if any(program.is_param(x) for x in block_writes(b.block))
        ]
        return self._query_blocks("get_output_blocks", inputs, output_blocks, program)

    def _query_blocks(
        self, kind: str, inputs: object, realizes: list[BlockRealize], program: ScheduleProgram
    ) -> list[BlockRV]:
        del program
        input_handles = inputs if isinstance(inputs, tuple) else (inputs,)
        handles = self._run_query(kind, input_handles, {}, [b.block.name for b in realizes])
        return [h for h in handles if isinstance(h, BlockRV)]

    # The schedule itself.

    def copy(self) -> Schedule:
        """Return an independent schedule in the same state; handles are valid in both."""
        copied = Schedule(
            self.mod if self._module is not None else self.func,
            seed=self._random.randint(1, 2**31 - 1),
            error_render_level=self._enable_check,
            proofs=self.proofs,
        )
        copied._programs = dict(self._programs)
        copied._current_function = self._current_function
        copied._referents = dict(self._referents)
        copied._handles = dict(self._handles)
        copied._trace = self._trace.copy()
        return copied

    def show(self) -> None:
        """Print the program and the trace."""
        for program in self._programs.values():
            print(astext(program.func))
        print(self._trace)


Schedule.kinds = (
    frozenset(
        name
        for base in (LoopPrimitives, BlockPrimitives)
        for name in vars(base)
        if not name.startswith("_")
    )
    | QUERY_KINDS
    | {"work_on"}
)

__all__ = ["Schedule", "ScheduleError"]
