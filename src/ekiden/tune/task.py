"""Tuning tasks, kernels on a target with their share of a model's run time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial

from ekiden import kernels
from ekiden.arith import simplify
from ekiden.backend.external import is_external_function
from ekiden.backend.kernels.canonical_form import canonicalize
from ekiden.backend.kernels.flops import count_flops
from ekiden.backend.kernels.lower import choose_primitive, decision_names, display_name
from ekiden.backend.vm.module_kernels import primitive_functions
from ekiden.backend.vm.pipeline import optimize_module
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, Var
from ekiden.ir.prim_visitor import free_vars, substitute
from ekiden.ir.structural import structural_digest
from ekiden.kernels.attention.softmax_bounds import apply_row_bounds
from ekiden.relay.expr import Call, Function
from ekiden.relay.op.vm import InvokeAttrs
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory.manifest_alloc import flatten_tensor_types
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target, TargetLike, target_or_current
from ekiden.target.virtual_device import compilation_config
from ekiden.te.prim_func import create_prim_func
from ekiden.te.tensor import Tensor
from ekiden.tir.schedule.schedule import Schedule
from ekiden.tir.stmt import IterKind, PrimFunc
from ekiden.tune.blocks import resolve_block
from ekiden.tune.candidate import Candidate
from ekiden.tune.model_schedule import model_schedule
from ekiden.tune.program import CANDIDATE_KERNEL_NAME, DEFAULT_RULE_NAME, TaskSource
from ekiden.tune.records import Records
from ekiden.tune.sketch import TraceSpace, block_names, generate_sketches
from ekiden.tune.space import FamilySpace, Space

Sizes = Mapping[str, int]
SizesLike = Mapping[str, int | Sequence[int] | Mapping[int, float]] | Sequence[tuple[Sizes, float]]
"""Size of each symbol, several equally weighted sizes, or sizes with weights; or sizes of all
symbols per run.
"""


@dataclass(frozen=True)
class Task:
    """Tuning task, a workload on a target with its search space: a kernel, its target, and its
    share of a model's time.

    workload: the digest of what it computes, the same in every process. name: its operators. node:
    where it comes from. calls: how often a run calls it. sizes: what its symbols are, once for each
    of the runs it is tuned for; shares: how much each counts, of 1 (empty: all alike).
    """

    name: str
    workload: str
    source: TaskSource
    target: Target
    space: Space
    calls: int = 1
    node: str = ""
    sizes: tuple[Sizes, ...] = field(default=({},))
    flops: int = 0
    """Operations per call, averaged over the sizes; 0 if unknown."""
    shares: tuple[float, ...] = ()
    lowering: Callable[[Candidate], PrimFunc] | None = field(default=None, compare=False)
    """Function that lowers a candidate where only this process can; None for the source's."""

    @property
    def key(self) -> str:
        """Return the key of its records: the workload and target."""
        return record_key(self.workload, self.target)

    def program(self, records: Records) -> PrimFunc:
        """Return the loops that records select, or the default's if they have none for this task.
        Raises CompileError naming a record that does not apply.
        """
        best = records.best().get(self.key)
        if best is None:
            return self._lower_candidate(self.space.default)
        candidate = Candidate(best.rule, best.choice)
        if reason := self.space.refusal(candidate):
            raise CompileError(f"records: '{best.rule}' for {self} does not apply: {reason}")
        return self._lower_candidate(candidate)

    def sent(self, candidate: Candidate) -> tuple[TaskSource, Candidate]:
        """Return the job data that a worker needs to compile a candidate. Raises CompileError,
        ScheduleError for an invalid one.
        """
        if self.lowering is None:
            return self.source, candidate
        return TaskSource(self.lowering(candidate)), Candidate(DEFAULT_RULE_NAME)

    def _lower_candidate(self, candidate: Candidate) -> PrimFunc:
        source, sent = self.sent(candidate)
        return source.lower(sent, self.target)

    def __str__(self) -> str:
        return f"{self.name} ({self.node})" if self.node else self.name


def record_key(workload: str, target: Target) -> str:
    """Return the key of a task's records."""
    return f"{workload} {target}"


@dataclass(frozen=True)
class Extracted:
    """Tasks of a model, and the kernels that cannot be tuned, with the reasons."""

    tasks: tuple[Task, ...]
    skipped: tuple[tuple[str, str], ...]


def module_tasks(module: IRModule, target: Target, dims: SizesLike | None = None) -> Extracted:
    """Return the distinct tunable kernels of a Relay module, each with how often a run calls it;
    calls in a loop or branch count once. Host kernels of a program for a device are tasks for
    the host.

    `dims` are sizes of the module's symbols, one set or several with their weights. A kernel that
    has other symbols is skipped, with a note. Raises CompileError for what cannot be compiled.
    """
    config = compilation_config(target)
    optimized = optimize_module(module, target, config)
    targets = {
        n: config.by_kind.get(d.device_type_int) for n, d in enumerate(device_table(optimized))
    }
    counts = _count_calls(optimized)
    tasks: dict[str, Task] = {}
    skipped: list[tuple[str, str]] = []
    runs, shares = _parse_runs(dims or {})
    host = target.code_host
    for function, device in primitive_functions(optimized):
        if is_external_function(function):
            name, engine = function.attr("global_symbol"), function.attr("Compiler")
            skipped.append((str(name), f"it is a region of the engine '{engine}'"))
            continue
        on = targets[device] or host
        form = canonicalize(function)
        workload = structural_digest(form)
        calls = counts.get((function, device), 1)
        if existing := tasks.get(record_key(workload, on)):
            tasks[existing.key] = _with_more_calls(existing, calls)
            continue
        chosen = choose_primitive(form, on)
        if chosen.anchor is None or not any(
            not c.is_early and len(c.domain) > 1
            for c in chosen.family.search_space(chosen.anchor, on)
        ):
            skipped.append((display_name(form), f"'{chosen.family.name}' has no choices"))
            continue
        sizes = _symbol_sizes(function, form, runs)
        if isinstance(sizes, str):
            skipped.append((display_name(form), f"the size of '{sizes}' is not given"))
            continue
        space = FamilySpace(
            chosen.family.name,
            chosen.family.search_space(chosen.anchor, on),
            partial(chosen.family.choose_decision, chosen.anchor, on),
        )
        task = Task(
            display_name(form), workload, TaskSource(form), on, space, calls,
            "".join(decision_names(form)[1:]), sizes, _average_flops(form, sizes), shares,
        )  # fmt: skip
        tasks[task.key] = task
    return Extracted(tuple(tasks.values()), tuple(dict.fromkeys(skipped)))


def te_task(tensors: Sequence[Tensor], target: TargetLike | None = None, name: str = "") -> Task:
    """Return the task of a computation, given its inputs and then its result. The default is tiled
    by the processor model where its reductions can be tiled, else lowered by the kernel
    families; candidates are sketches. Raises CompileError if there is no sketch.
    """
    chosen = target_or_current(target)
    written = create_prim_func(list(tensors))
    inputs, outputs = list(tensors[:-1]), [tensors[-1]]
    called = name or tensors[-1].name
    # what kernels of families know of a row's values, candidates are written by too
    func = written
    if not chosen.kind.has_threads:
        func = create_prim_func([*inputs, *apply_row_bounds(outputs, chosen)])
    untuned = model_schedule(func, block_names(func), chosen)
    if untuned is None:
        untuned = kernels.schedule(inputs, outputs, chosen, CANDIDATE_KERNEL_NAME)
    found_sketches = generate_sketches(func, chosen)
    space = TraceSpace(
        func, tuple(s.trace for s in found_sketches), tuple(s.name for s in found_sketches)
    )
    return _make_program_task(func, untuned, space, called, chosen, structural_digest(written))


def prim_func_task(func: PrimFunc, target: TargetLike | None = None, name: str = "") -> Task:
    """Return the task of a loop program that no schedule has changed. The default is tiled by the
    processor model where its reductions can be tiled, else the program as it is; candidates are
    sketches. Raises CompileError if there is no sketch.
    """
    chosen = target_or_current(target)
    untuned = model_schedule(func, block_names(func), chosen)
    sketches = generate_sketches(func, chosen)
    space = TraceSpace(func, tuple(s.trace for s in sketches), tuple(s.name for s in sketches))
    return _make_program_task(func, untuned, space, name, chosen, structural_digest(func))


def schedule_task(
    func: PrimFunc,
    ways: Sequence[Callable[[Schedule], object]],
    target: TargetLike | None = None,
    name: str = "",
) -> Task:
    """Return the task of a loop program with the given schedule functions. Each takes a
    tir.Schedule and samples what is to be searched (`sample_perfect_tile`, `sample_categorical`,
    `sample_compute_location`). The default is the program as it is. Raises what they raise.
    """
    traces = []
    for number, build_schedule in enumerate(ways):
        schedule = Schedule(func, seed=number + 1)
        build_schedule(schedule)
        traces.append(schedule.trace)
    names = tuple(
        getattr(schedule_function, "__name__", f"way{n}")
        for n, schedule_function in enumerate(ways)
    )
    chosen = target_or_current(target)
    space = TraceSpace(func, tuple(traces), names)
    return _make_program_task(func, None, space, name, chosen, structural_digest(func))


def _make_program_task(
    func: PrimFunc, untuned: PrimFunc | None, space: TraceSpace, name: str, target: Target,
    workload: str,
) -> Task:  # fmt: skip
    if not space.traces:
        raise CompileError(f"tune: no rule has a sketch for '{name or func.name}'")
    source = TaskSource(func, untuned)
    return Task(name or func.name, workload, source, target, space, flops=program_flops(func))


def program_flops(func: PrimFunc) -> int:
    """Return the operation count: two per iteration of a reduction, one per iteration of any other
    block; 0 if a size is unknown.
    """
    schedule = Schedule(func)
    total, waiting = 0, list(schedule.get_output_blocks())
    visited: set[str] = set()
    while waiting:
        block = waiting.pop()
        block_node = resolve_block(schedule, block)
        if block_node.name in visited:
            continue
        visited.add(block_node.name)
        waiting.extend(schedule.get_producers(block))
        operations = 2 if any(v.kind is IterKind.REDUCE for v in block_node.iter_vars) else 1
        for var in block_node.iter_vars:
            operations *= var.extent.value if isinstance(var.extent, IntImm) else 0
        total += operations
    return total


def _with_more_calls(task: Task, calls: int) -> Task:
    return replace(task, calls=task.calls + calls)


def _count_calls(module: IRModule) -> dict[tuple[RelayExpr, int], int]:
    """Return the number of calls of each kernel on each device."""
    counts: dict[tuple[RelayExpr, int], int] = {}
    for function in module.functions.values():
        if not isinstance(function, Function):
            continue
        for call in evaluation_order(function.body):
            if isinstance(call, Call) and isinstance(call.attrs, InvokeAttrs):
                called = call.args[0], call.attrs.device
                counts[called] = counts.get(called, 0) + 1
    return counts


def _parse_runs(dims: SizesLike) -> tuple[list[Sizes], tuple[float, ...]]:
    """Return the sizes of each run, and their weights (empty if all are equal). Symbols with
    several values are zipped.
    """
    if not isinstance(dims, Mapping):
        return [sizes for sizes, _ in dims], _normalize_weights([share for _, share in dims])
    lists = {n: [v] if isinstance(v, int) else list(v) for n, v in dims.items()}
    lengths = {len(values) for values in lists.values()} - {1}
    counted = [list(v.values()) for v in dims.values() if isinstance(v, Mapping)]
    if len(lengths) > 1 or 0 in lengths or any(values != counted[0] for values in counted):
        raise CompileError(
            f"tune: sizes of as many runs expected for each symbol, got {dict(dims)}"
        )
    count = max(lengths, default=1)
    runs: list[Sizes] = [{n: v[i % len(v)] for n, v in lists.items()} for i in range(count)]
    return runs, _normalize_weights(counted[0]) if counted else ()


def _normalize_weights(counts: Sequence[float]) -> tuple[float, ...]:
    """Normalize weights to a sum of 1; empty if all are equal. Raises CompileError unless they are
    positive.
    """
    total = math.fsum(counts)
    if not counts or not all(0 < count < math.inf for count in counts):
        raise CompileError(f"tune: shares above 0 expected of sizes, got {list(counts)}")
    return () if len(set(counts)) == 1 else tuple(count / total for count in counts)


def _symbol_sizes(function: Function, form: Function, runs: list[Sizes]) -> tuple[Sizes, ...] | str:
    """Return the sizes of a canonical form's symbols in each run, or the name of an
    unknown symbol.
    """
    by_run: list[Sizes] = []
    pairs = [
        (new.name, old)
        for a, b in zip(_function_dims(form), _function_dims(function), strict=True)
        for new, old in [(a, b)]
        if isinstance(new, Var)
    ]
    for run in runs:
        values: dict[str, int] = {}
        for name, expr in pairs:
            free = free_vars(expr)  # type: ignore[arg-type]
            missing = [v.name for v in free if v.name not in run]
            if missing:
                return missing[0]
            value = _evaluate_size(expr, run)
            values[name] = value
        by_run.append(values)
    return tuple(by_run)


def _evaluate_size(expr: object, run: Sizes) -> int:
    free = free_vars(expr)  # type: ignore[arg-type]
    value = simplify(substitute(expr, {v: IntImm(run[v.name]) for v in free}))  # type: ignore[arg-type]
    assert isinstance(value, IntImm), value
    return value.value


def _function_dims(function: Function) -> list[object]:
    """Return the dimensions of a function's parameters and result."""
    kinds = [*(p.checked_type for p in function.params), function.body.checked_type]
    return [
        d for kind in kinds for tensor_type in flatten_tensor_types(kind) for d in tensor_type.shape
    ]


def _average_flops(form: Function, sizes: tuple[Sizes, ...]) -> int:
    """Return the average operation count over runs; 0 if a symbol is unknown."""
    counted = count_flops(form)
    names = {v.name for v in free_vars(counted)}
    if any(not names.issubset(run_sizes) for run_sizes in sizes):
        return 0
    return sum(_evaluate_size(counted, run_sizes) for run_sizes in sizes) // len(sizes)
