"""Static memory planning of a module in A-normal form for a machine without an allocator (TVM's
USMP); the result is a MicroModule.

    let %t = alloc_tensor(%s, ..); invoke(f, (%x,), (%t,)); let %y = reshape_tensor(%t); %y
    ->  step f(input 0, output 0)          %s is all of the result: it is the caller's memory

Functions that call each other in a circle are one routine (read_routine.py says what may), and
routines are made callees first, so that a caller knows the frame that each call takes: as much
memory of its own, while the call lasts. The frame of `main` is the program's memory: of several
that the caller gives, what is needed lies in the first that has room (storage_places). Other entry
points are routines like any: their frame is at the start of the same memory, as one runs at a time.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ekiden.backend.crt.assign_locations import assign_locations
from ekiden.backend.crt.kernels import MicroKernels
from ekiden.backend.crt.micro_module import (
    POOL_ALIGNMENT_BYTES,
    EntryPoint,
    Location,
    MemorySpace,
    MicroModule,
    MicroTensor,
    Pool,
    Routine,
)
from ekiden.backend.crt.program import CRT_ERROR_PREFIX, MicroProgram
from ekiden.backend.crt.read_routine import RoutineReader
from ekiden.backend.crt.value_layout import TypeLayouts
from ekiden.codegen.c.helium import used_functions
from ekiden.ir.expr import GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import USMP_ALGORITHM_OPTION, USMP_ENABLE_OPTION, PassContext
from ekiden.ir.prim import IntImm
from ekiden.ir.type import TensorType
from ekiden.relay.adjoint_type import STANDARD_TYPE_DATA
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Function
from ekiden.relay.transform.language.lambda_lift import flatten_closure
from ekiden.relay.transform.memory.offset_assignment import assign_memory_pools
from ekiden.relay.transform.memory.storage_lifetimes import StorageRequest
from ekiden.runtime.errors import CompileError

TVM_PLANNER_NAMES = ("", "greedy_by_size", "greedy_by_conflicts", "hill_climb")
"""Names of TVM's memory planners, all of which select ours."""
MAIN_FUNCTION_NAME = "main"
EntryInterface = tuple[Sequence[MicroTensor], Sequence[MicroTensor]]
"""Inputs and outputs of an entry point."""


def plan_module(
    module: IRModule,
    kernels: MicroKernels,
    name: str,
    inputs: Sequence[MicroTensor],
    outputs: Sequence[MicroTensor],
    pools: Sequence[Pool] = (),
    entries: Mapping[str, EntryInterface] | None = None,
) -> MicroModule:
    """Plan the program of `main` and of the entry points beside it, prepared by the VM pipeline
    without MemoryPlan.

    Args:
        module: the module.
        kernels: compiler of its kernels.
        name: the model's name.
        inputs: input tensors.
        outputs: output tensors.
        pools: memory pools; without any, the program has one memory of its own.
        entries: inputs and outputs of each further entry point, by name.

    Returns:
        The planned program.

    Raises:
        CompileError: for what has no bound (dynamic sizes, recursion that is no loop, lists,
            first-class functions), what needs the runtime, an entry point that calls `main`, and
            pools that are too small.
    """
    entries = entries or {}
    _check_options()
    functions = _relay_functions(module)
    _check_types(functions[MAIN_FUNCTION_NAME], [t.name for t in inputs])
    definitions = {**STANDARD_TYPE_DATA, **module.type_definitions}
    closures = frozenset(
        g.name_hint
        for g, f in module.functions.items()
        if isinstance(f, Function) and f.attr("Closure")
    )
    program = MicroProgram(kernels, TypeLayouts(definitions), functions, closures)
    readers = _read_routines(program, module, entries)
    used = list(pools or (Pool("workspace"),))
    frames: dict[str, int] = {}
    routines: list[Routine] = []
    for reader in readers[:-1]:
        routines.append(assign_locations(reader, frames, _assign_frame))
        frames[routines[-1].name] = routines[-1].frame_bytes

    def assign_main_pools(
        requests: Sequence[StorageRequest],
    ) -> tuple[dict[StorageRequest, Location], int]:
        """Assign the storages of `main` to the caller's pools, and record how much of each pool is
        used.
        """
        locations, sizes = _assign_pools(requests, used)
        used[:] = [replace(p, used=n) for p, n in zip(used, sizes, strict=True)]
        return locations, sum(sizes)

    routines.append(assign_locations(readers[-1], frames, assign_main_pools))
    entry_points = [
        _place_entry(entry, interface, program, frames, used)
        for entry, interface in entries.items()
    ]
    helpers = (*kernels.helpers.externs.values(), *kernels.helpers.texts.values())
    texts = (*helpers, *(kernel.text for kernel in kernels.kernel_by_key.values()))
    return MicroModule(
        name=name,
        target=kernels.target,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        constants=tuple(data for _, data in program.constants.values()),
        kernels=tuple(kernels.kernel_by_key.values()),
        routines=tuple(routines),
        pools=tuple(used),
        entry_points=tuple(entry_points),
        helpers=(*used_functions(texts), *helpers),
        has_own_memory=not pools,
    )


def _check_options() -> None:
    option = PassContext.current().option
    if option(USMP_ALGORITHM_OPTION) not in TVM_PLANNER_NAMES:
        names = ", ".join(filter(None, TVM_PLANNER_NAMES))
        raise CompileError(
            f"compile: {USMP_ALGORITHM_OPTION!r}: one of {names} expected, "
            f"got {option(USMP_ALGORITHM_OPTION)!r}"
        )
    if not option(USMP_ENABLE_OPTION):
        never = "memory is always planned as a whole"
        raise CompileError(f"compile: runtime 'crt': {never}, got {USMP_ENABLE_OPTION!r}: False")


def _check_types(function: Function, names: Sequence[str]) -> None:
    for param, name in zip(function.params, names, strict=True):
        kind = param.checked_type
        if not isinstance(kind, TensorType):
            raise CompileError(f"{CRT_ERROR_PREFIX}: input '{name}' is {kind}, a tensor expected")
        if not all(isinstance(d, IntImm) for d in kind.shape):
            raise CompileError(
                f"{CRT_ERROR_PREFIX}: input '{name}' has no static shape: {kind}; give one "
                "(--shape NAME=1,3,224,224)"
            )


def _relay_functions(module: IRModule) -> Mapping[str, Function]:
    """Return the Relay functions of a module by name; captured variables are leading parameters."""
    return {
        g.name_hint: flatten_closure(f)
        for g, f in module.functions.items()
        if isinstance(f, Function)
    }


def _read_routines(
    program: MicroProgram, module: IRModule, entries: Collection[str]
) -> list[RoutineReader]:
    """Read the functions that `main` and the entry points need in groups that call each other,
    callees first and `main` last.
    """
    graph = CallGraph(module)
    _check_callers_of_main(graph)
    unused = {g.name_hint for g in graph.unreachable((MAIN_FUNCTION_NAME, *entries))}
    loops = {g.name_hint for group in graph.cycles() for g in group}
    readers: list[RoutineReader] = []
    for group in sorted(graph.components(), key=_contains_main):
        names = sorted((g.name_hint for g in group), key=lambda name: name != MAIN_FUNCTION_NAME)
        if names[0] in unused or names[0] not in program.functions:
            continue
        readers.append(RoutineReader(program, names, is_loop=names[0] in loops))
        readers[-1].read()
    assert readers[-1].names[0] == MAIN_FUNCTION_NAME, "what main needs comes before it"
    return readers


def _contains_main(group: Sequence[GlobalVar]) -> bool:
    return any(g.name_hint == MAIN_FUNCTION_NAME for g in group)


def _check_callers_of_main(graph: CallGraph) -> None:
    """Raise CompileError where an entry point calls `main`, whose memory is not a frame."""
    (group,) = (g for g in graph.components() if _contains_main(g))
    for caller in graph.callers(MAIN_FUNCTION_NAME):
        if caller not in group:
            raise CompileError(
                f"{CRT_ERROR_PREFIX}: '{caller.name_hint}' calls 'main', which only C may call; "
                "let both call a third function"
            )


def _place_entry(
    name: str,
    interface: EntryInterface,
    program: MicroProgram,
    frames: Mapping[str, int],
    pools: list[Pool],
) -> EntryPoint:
    """Return an entry point, whose frame is in the first of the pools that has room; record in
    `pools` how much of it is used.
    """
    signature = program.signatures[name]
    if signature.routine not in frames:
        raise CompileError(
            f"{CRT_ERROR_PREFIX}: entry point '{name}' and 'main' call each other; let both call a "
            "third function"
        )
    nbytes = frames[signature.routine]
    fits = (n for n, pool in enumerate(pools) if pool.limit is None or nbytes <= pool.limit)
    number = next(fits, None)
    if number is None:
        raise _pools_too_small(pools, f"the frame of '{name}', {nbytes} bytes,")
    pools[number] = replace(pools[number], used=max(pools[number].used, nbytes))
    inputs, outputs = map(tuple, interface)
    return EntryPoint(
        name, inputs, outputs, signature.routine, signature.entry, signature.first_input, number
    )


def _assign_frame(requests: Sequence[StorageRequest]) -> tuple[dict[StorageRequest, Location], int]:
    locations, (size,) = _assign_pools(requests, [Pool("frame")])
    return locations, size


def _assign_pools(
    requests: Sequence[StorageRequest], pools: Sequence[Pool]
) -> tuple[dict[StorageRequest, Location], list[int]]:
    """Assign each request an offset in the first pool that has room, and return the bytes used of
    each pool. Raises CompileError where there is no room.
    """
    try:
        homes, used = assign_memory_pools(requests, [p.limit for p in pools], POOL_ALIGNMENT_BYTES)
    except ValueError as error:
        raise _pools_too_small(pools, f"a tensor of {error} bytes") from error
    rows = zip(requests, homes, strict=True)
    return {r: Location(MemorySpace.POOL, number, offset) for r, (number, offset) in rows}, used


def _pools_too_small(pools: Sequence[Pool], what: str) -> CompileError:
    memories = ", ".join(f"{p.name} ({p.limit} bytes)" for p in pools)
    return CompileError(f"compile: the memories {memories} are too small: {what} finds no room")


__all__ = ["EntryInterface", "plan_module"]
