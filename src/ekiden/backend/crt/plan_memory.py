"""Static memory planning of a module in A-normal form for a machine without an allocator (TVM's
USMP); the result is a MicroModule.

    let %t = alloc_tensor(%s, ..); invoke(f, (%x,), (%t,)); let %y = reshape_tensor(%t); %y
    ->  step f(input 0, output 0)          %s is all of the result: it is the caller's memory

Functions that call each other in a circle are one routine (read_routine.py says what may), and
routines are made callees first, so that a caller knows the frame that each call takes: as much
memory of its own, while the call lasts. The frame of `main` is the program's memory: of several
that the caller gives, what is needed lies in the first that has room (storage_places).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ekiden.backend.crt.assign_locations import assign_locations
from ekiden.backend.crt.kernels import MicroKernels
from ekiden.backend.crt.micro_module import (
    POOL_ALIGNMENT_BYTES,
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


def plan_module(
    module: IRModule,
    kernels: MicroKernels,
    name: str,
    inputs: Sequence[MicroTensor],
    outputs: Sequence[MicroTensor],
    pools: Sequence[Pool] = (),
) -> MicroModule:
    """Plan the program of `main`, prepared by the VM pipeline without MemoryPlan.

    Args:
        module: the module.
        kernels: compiler of its kernels.
        name: the model's name.
        inputs: input tensors.
        outputs: output tensors.
        pools: memory pools; without any, the program has one memory of its own.

    Returns:
        The planned program.

    Raises:
        CompileError: for what has no bound (dynamic sizes, recursion that is no loop, lists,
            first-class functions), what needs the runtime, and pools that are too small.
    """
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
    readers = _read_routines(program, module)
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


def _read_routines(program: MicroProgram, module: IRModule) -> list[RoutineReader]:
    """Read the functions that `main` needs in groups that call each other, callees first."""
    graph = CallGraph(module)
    unused = {g.name_hint for g in graph.unreachable()}
    loops = {g.name_hint for group in graph.cycles() for g in group}
    readers: list[RoutineReader] = []
    for group in graph.components():
        names = sorted((g.name_hint for g in group), key=lambda name: name != MAIN_FUNCTION_NAME)
        if names[0] in unused or names[0] not in program.functions:
            continue
        readers.append(RoutineReader(program, names, is_loop=names[0] in loops))
        readers[-1].read()
    assert readers[-1].names[0] == MAIN_FUNCTION_NAME, "what main needs comes before it"
    return readers


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
        memories = ", ".join(f"{p.name} ({p.limit} bytes)" for p in pools)
        raise CompileError(
            f"compile: the memories {memories} are too small: a tensor of {error} bytes finds no "
            "room"
        ) from error
    rows = zip(requests, homes, strict=True)
    return {r: Location(MemorySpace.POOL, number, offset) for r, (number, offset) in rows}, used


__all__ = ["plan_module"]
