"""Schedule: transforms a PrimFunc of blocks by primitives that keep its meaning, and remembers
them.
"""

from __future__ import annotations

from ekiden.runtime import Object
from ekiden.runtime.errors import ScheduleError
from ekiden.tir.printer import astext
from ekiden.tir.schedule.block_steps import BlockSteps
from ekiden.tir.schedule.core import BlockLike
from ekiden.tir.schedule.loop_steps import LoopSteps, loop_handles
from ekiden.tir.schedule.program import Program, outer_blocks, read, written
from ekiden.tir.schedule.trace import QUERIES, BlockRV, LoopRV
from ekiden.tir.stmt import BlockRealize


@Object.register
class Schedule(LoopSteps, BlockSteps):
    """A function being scheduled.

        sch = tir.Schedule(te.create_prim_func([a, b, c]))
        block = sch.get_block("c")
        i, j, k = sch.get_loops(block)
        i0, i1 = sch.split(i, [None, 6])
        sch.reorder(i0, j, k, i1)
    Blocks and loops are handles; a block may also be given by its name, a loop by its variable or a
    name that is its alone. Each step checks that it keeps the meaning and raises ScheduleError
    saying why not and where, leaving the schedule as it was. `func` and `mod` are the current form,
    `trace` the steps so far.
    """

    # Questions.

    def get_block(self, name: str, func_name: str | None = None) -> BlockRV:
        """The block of a name. Raises ScheduleError listing the names there are."""
        if func_name is not None and func_name != self._working:
            self.work_on(func_name)
        self._handles.pop((self._working, name), None)
        return self._block(name)

    def get_loops(self, block: BlockLike) -> list[LoopRV]:
        """The loops around a block, outermost first, up to the block it is in."""
        handle = self._block(block)
        realize = self._get_block_realize(handle)
        program = self._program_of((handle,))
        found = [s.loop_var for s in program.loops_above(realize)]
        return loop_handles(self._query("get_loops", (handle,), {}, found))

    def get_child_blocks(self, block_or_loop: BlockLike | LoopRV) -> list[BlockRV]:
        """The blocks directly inside a loop or a block, in order."""
        handle = self._place_of(block_or_loop)
        program = self._program_of((handle,))
        place = self._place(handle)
        inside = place.block.body if isinstance(place, BlockRealize) else place.body
        return self._blocks("get_child_blocks", handle, list(outer_blocks(inside)), program)

    def get_producers(self, block: BlockLike) -> list[BlockRV]:
        """The blocks that write what a block reads, in order."""
        handle = self._block(block)
        realize, program = self._get_block_realize(handle), self._program_of((handle,))
        wanted = set(read(realize.block))
        found = [
            b
            for b in program.leaves(program.scope(realize))
            if b is not realize and not wanted.isdisjoint(written(b.block))
        ]
        return self._blocks("get_producers", handle, found, program)

    def get_consumers(self, block: BlockLike) -> list[BlockRV]:
        """The blocks that read what a block writes, in order."""
        handle = self._block(block)
        realize, program = self._get_block_realize(handle), self._program_of((handle,))
        wanted = set(written(realize.block))
        found = [
            b
            for b in program.leaves(program.scope(realize))
            if b is not realize and not wanted.isdisjoint(read(b.block))
        ]
        return self._blocks("get_consumers", handle, found, program)

    def get_output_blocks(self, scope_block: BlockLike | None = None) -> list[BlockRV]:
        """The blocks, in a block or the function, that write arguments of the function."""
        program = self._program
        inputs: tuple[object, ...] = ()
        root = program.func.body
        if scope_block is not None:
            handle = self._block(scope_block)
            inputs = (handle,)
            root = self._get_block_realize(handle).block.body
        found = [
            b for b in outer_blocks(root) if any(program.is_param(x) for x in written(b.block))
        ]
        return self._blocks("get_output_blocks", inputs, found, program)

    def _blocks(
        self, kind: str, inputs: object, found: list[BlockRealize], program: Program
    ) -> list[BlockRV]:
        del program
        given = inputs if isinstance(inputs, tuple) else (inputs,)
        made = self._query(kind, given, {}, [b.block.name for b in found])
        return [h for h in made if isinstance(h, BlockRV)]

    # The schedule itself.

    def copy(self) -> Schedule:
        """A schedule of the same state that goes its own way; handles are valid in both."""
        other = Schedule(
            self.mod if self._module is not None else self.func,
            seed=self._random.randint(1, 2**31 - 1),
            error_render_level=self._level,
        )
        other._programs = dict(self._programs)
        other._working = self._working
        other._values = dict(self._values)
        other._handles = dict(self._handles)
        other._trace = self._trace.copy()
        return other

    def show(self) -> None:
        """Print the program and the trace."""
        for program in self._programs.values():
            print(astext(program.func))
        print(self._trace)


Schedule.kinds = (
    frozenset(
        name for base in (LoopSteps, BlockSteps) for name in vars(base) if not name.startswith("_")
    )
    | QUERIES
    | {"work_on"}
)

__all__ = ["Schedule", "ScheduleError"]
