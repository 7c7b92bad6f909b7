"""`ekiden.lower` and `ekiden.build`: lowering and compilation of loop programs and te schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from ekiden.codegen import build as codegen_build
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.parallel import ProgressCallback
from ekiden.ir.module import IRModule
from ekiden.ir.prim import Var
from ekiden.runtime import Module
from ekiden.runtime.errors import CompileError
from ekiden.target import Target, TargetLike
from ekiden.te.schedule import Schedule
from ekiden.te.schedule import lower as lower_schedule
from ekiden.te.stmt_renaming import replace_buffers
from ekiden.te.tensor import Tensor
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform import lower as lower_program

Lowerable: TypeAlias = PrimFunc | IRModule | Schedule
BuildInput: TypeAlias = Lowerable | Mapping[TargetLike, PrimFunc | IRModule]
ScheduleArgs: TypeAlias = Sequence[Tensor | Buffer | Var] | None


def schedule_to_prim_func(
    schedule: Schedule,
    args: ScheduleArgs,
    name: str,
    binds: Mapping[Tensor, Buffer] | None = None,
) -> PrimFunc:
    """Lower a schedule over its arguments to a PrimFunc; `binds` maps tensors to given buffers.
    Raises CompileError without arguments.
    """
    if args is None:
        raise CompileError("lower: a schedule needs its arguments: lower(schedule, [A, B, C])")
    buffers = dict(binds or {})
    by_buffer = {b: t for t, b in buffers.items()}
    tensors = [by_buffer.get(a, a) if isinstance(a, Buffer) else a for a in args]
    func = lower_schedule(schedule, tensors, name)  # type: ignore[arg-type]
    new = {
        old: buffers[t]
        for t, old in zip(tensors, func.params, strict=True)
        if isinstance(old, Buffer) and isinstance(t, Tensor) and t in buffers
    }
    if not new:
        return func
    params = tuple(new.get(p, p) if isinstance(p, Buffer) else p for p in func.params)
    return func.with_fields(params=params, body=replace_buffers(func.body, new))


def lower(
    program: Lowerable,
    args: ScheduleArgs | Target = None,
    name: str = "main",
    binds: Mapping[Tensor, Buffer] | None = None,
    simple_mode: bool = False,
    target: Target | None = None,
) -> PrimFunc | IRModule:
    """Lower a program for code generation.

    Args:
        program: a schedule, a PrimFunc or a module.
        args: the arguments of a schedule.
        name: the name of a schedule's function.
        binds: buffers of some arguments.
        simple_mode: return a schedule's program before the passes, with its blocks.
        target: the target.

    Returns:
        A module for a schedule or a module, a PrimFunc for a PrimFunc. (TVM: `tvm.lower`, which
        always returns a module.)
    """
    if isinstance(args, Target):
        args, target = None, args
    if not isinstance(program, Schedule):
        return lower_program(program, target)
    func = schedule_to_prim_func(program, args, name, binds)
    return IRModule({name: func if simple_mode else lower_program(func, target)})


def build(
    program: BuildInput,
    args: ScheduleArgs | TargetLike = None,
    target: TargetLike | None = None,
    target_host: TargetLike | None = None,
    name: str | None = None,
    binds: Mapping[Tensor, Buffer] | None = None,
    *,
    cache: KernelCache | None = None,
    progress: ProgressCallback | None = None,
) -> Module:
    """Compile loop programs, or a schedule with its arguments: `build(s, [A, B, C], "llvm")`; see
    `ekiden.codegen.build.build`. The function is called by its name or as `module(a, b, c)`.
    `{target: program, ...}` compiles each for its target: the first module, which imports the
    others, has all functions.

    Raises CompileError for anything else, and for a host target that is not the target's.
    """
    if isinstance(program, Mapping):
        return _build_per_target(program, cache, progress)
    if isinstance(args, (str, Target, Mapping)):
        args, target = None, args
    if target_host is not None and target is not None:
        host, device = Target(target_host), Target(target)
        if host.kind.name != device.kind.name:
            raise CompileError(
                f"build: the host target must be that of the program, {device}, got {host}"
            )
    if isinstance(program, Schedule):
        called = name or "default_function"
        program = schedule_to_prim_func(program, args, called, binds)
    return codegen_build.build(program, target, name=name, cache=cache, progress=progress)


def _build_per_target(
    programs: Mapping[TargetLike, PrimFunc | IRModule],
    cache: KernelCache | None,
    progress: ProgressCallback | None,
) -> Module:
    """Build programs for several targets as one module. Raises CompileError for none."""
    modules = [
        codegen_build.build(program, target, cache=cache, progress=progress)
        for target, program in programs.items()
    ]
    if not modules:
        raise CompileError("build: expected programs by their targets, got none")
    for imported in modules[1:]:
        modules[0].import_module(imported)
    return modules[0]
