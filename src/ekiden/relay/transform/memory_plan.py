"""Static memory planning: assign the intermediate tensors of a function offsets in one arena, where
lifetimes allow sharing.

    let %s0 = memory.alloc_storage(size=64); let %t0 = memory.alloc_tensor(%s0, offset=0, ...); ...
    let %s1 = memory.alloc_storage(size=64); let %t1 = memory.alloc_tensor(%s1, offset=0, ...); ...
    ->  let %arena = memory.alloc_storage(size=128, arena=True);
        let %t0 = memory.alloc_tensor(%arena, offset=0, ...); ...

A function has one arena on each device, allocated when it begins; branches of which only one runs
have the same bytes of it. A function that calls itself, also through others, has one for each
stretch between such calls, so that none waits for a call to return. Tensors that leave the function
(its result, arguments of calls, fields of data, captured variables), that outlive a stretch, or
whose size is known only in the middle of the function have a storage of their own.

Where a kernel reads a tensor last and may replace it element by element, its result has the same
bytes. The result of one that changes elements of a tensor which came from elsewhere (a call, data,
a reference) has a storage of its own, and so do those derived from it in that way: UpdateInPlace
lets them have the memory of what they change. A kernel's working memory is a storage as well, which
lives for its call:

    let %_ = vm.invoke_tvm_op(fn ..., (%x,), (%y,));
    ->  let %t2 = memory.alloc_tensor(%arena, offset=128, shape=(100000), dtype="uint8");
        let %_ = vm.invoke_tvm_op(fn ..., (%x,), (%y,), %t2);

Before: explicit allocations (ManifestAlloc), each tensor with a storage of its own or slices of one
(ConcatenateInPlace, SliceInPlace). After: as before, but that storages of a stretch are one. Two
tensors with common bytes must never be alive at once.

Why an arena and not a pool: a pool decides at run time, and cannot say beforehand how much memory a
model takes. Why not one arena for the program: a function may be called from anywhere, so what is
alive around its call is not known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ekiden.arith import simplify
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import IntImm, PrimExpr, const
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.analysis.call_graph import CallGraph
from ekiden.relay.expr import Call, Function, Tuple, Var
from ekiden.relay.op.memory import AllocTensorAttrs, alloc_storage, alloc_tensor
from ekiden.relay.op.vm import InvokeAttrs
from ekiden.relay.transform.fusion.kernel_order import KernelOrder
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    LetChain,
    called_op_name,
    map_chains,
)
from ekiden.relay.transform.language.scope_tree import bodies, lift_body_rewrite, replace_children
from ekiden.relay.transform.memory.offset_assignment import ARENA_ALIGNMENT_BYTES, assign_offsets
from ekiden.relay.transform.memory.storage_in_place import merge_in_place
from ekiden.relay.transform.memory.storage_lifetimes import (
    LifetimeBlock,
    StorageLifetimes,
    StorageRequest,
    barrier_free_region,
)
from ekiden.runtime.lazy_dataclass import dataclass

ArenaRegion = tuple[LifetimeBlock, int, int]
"""Key of an arena: block, number of preceding barriers, and device."""
MIN_PLANNED_WORKSPACE_BYTES = 1 << 16
"""Minimum workspace that is planned; smaller ones come from the thread."""


@dataclass(frozen=True, slots=True)
class KernelMemoryInfo:
    """Memory properties of a kernel that the plan uses.

    workspace   bytes that it needs at once beside its arguments
    in_place    numbers of the inputs that may share the bytes of its output
    vectors     whether its code has any
    updates     whether the one input that may share them needs no copy then
    """

    workspace: PrimExpr
    in_place: tuple[int, ...] = ()
    is_vectorized: bool = True
    updates_input: bool = False


KernelInfoMap = Mapping[RelayExpr, KernelMemoryInfo]
"""Memory properties by primitive function."""


def _add_workspaces(
    function: Function, entry_symbols_: set[PrimVar], kernels: KernelInfoMap
) -> Function:
    """Allocate a storage for the workspace of each kernel that needs a large one."""

    def add_workspace(binding: LetBinding) -> list[LetBinding]:
        """Allocate a kernel call's workspace before the call.

        Small working memory comes from the thread's own; one whose size depends on names that are
        not known at the function's entry cannot share, and does too.
        """
        variable, value = binding
        if not (isinstance(value, Call) and called_op_name(value) == "vm.invoke_tvm_op"):
            return [binding]
        facts = kernels.get(value.args[0])
        # The arena is allocated at entry, where only these symbols have values.
        if facts is None or not entry_symbols_.issuperset(free_vars(facts.workspace)):
            return [binding]
        size = facts.workspace
        # A thread keeps a small scratch buffer, so nothing is allocated for it.
        if isinstance(size, IntImm) and size.value < MIN_PLANNED_WORKSPACE_BYTES:
            return [binding]
        assert isinstance(value.attrs, InvokeAttrs)
        storage, scratch = Var("storage"), Var("scratch")
        scratch.set_checked_type(TensorType((size,), "uint8"))
        return [
            (storage, alloc_storage(size, ARENA_ALIGNMENT_BYTES, device=value.attrs.device)),
            (scratch, alloc_tensor(storage, const(0), (size,), "uint8")),
            (variable, value.with_fields(args=(*value.args, scratch))),
        ]

    def rewrite(chain: LetChain, _: bool) -> LetChain:
        """Add workspaces to the bindings of a chain."""
        return LetChain(
            [b for binding in chain.bindings for b in add_workspace(binding)], chain.result
        )

    return lift_body_rewrite(lambda body: map_chains(body, rewrite))(function)


def known_at_entry(function: Function) -> set[PrimVar]:
    """Return the symbols that a function's parameter types determine, over which sizes at entry are
    expressed.

    Of a lifted closure, those of what it captures too.
    """
    inner = function.body
    params = function.params
    # A closure gets captured values and arguments from two parameter lists.
    if function.attr("Closure") is not None and isinstance(inner, Function):
        params = (*params, *inner.params)
    kinds: list[Type] = [p.checked_type for p in params]
    symbols: set[PrimVar] = set()
    while kinds:
        kind = kinds.pop()
        if isinstance(kind, TupleType):
            kinds.extend(kind.fields)
        elif isinstance(kind, TensorType):
            symbols.update(v for d in kind.shape for v in free_vars(d))
    return symbols


class _ArenaPlanner:
    """Arena planner of one function."""

    def __init__(
        self,
        body: RelayExpr,
        entry_symbols_: set[PrimVar],
        group: Collection[str],
        kernels: KernelInfoMap,
        concurrent: bool,
        user_params_: Collection[Var],
    ) -> None:
        self.lifetimes = StorageLifetimes(body, lambda callee: callee.name_hint in group)
        self.kernel_order = KernelOrder(self.lifetimes) if concurrent else None
        self.entry_symbols = entry_symbols_
        self.kernels = kernels
        self.user_params = user_params_
        """Parameters that the caller may still hold, copied before updates."""
        self.arena_offsets: dict[Var, tuple[Var, PrimExpr]] = {}
        """Arena and offset of each storage."""
        self.arenas: dict[tuple[LifetimeBlock, int], list[LetBinding]] = {}
        """Arenas by the binding at which their region begins, one per device."""

    def plan(self) -> RelayExpr:
        """Return the body with its storages replaced by arenas."""
        for stretch, requests in self._group_requests().items():
            # Merged requests share one storage, and each of them gets its offset.
            merged = merge_in_place(self.lifetimes, requests, self._replaceable_inputs)
            placements, total = assign_offsets(merged, self.kernel_order)
            arena = Var("arena")
            arena_call = alloc_storage(total, ARENA_ALIGNMENT_BYTES, arena=True, device=stretch[2])
            self.arenas.setdefault(stretch[:2], []).append((arena, arena_call))
            for placement in placements:
                for request in (placement.request, *placement.request.in_place_successors):
                    self.arena_offsets[request.storage] = arena, placement.offset
        return self._rewrite_blocks() if self.arenas else self.lifetimes.blocks[0].root

    def _replaceable_inputs(self, kernel: RelayExpr) -> tuple[int, ...]:
        facts = self.kernels.get(kernel)
        return () if facts is None else facts.in_place

    def _group_requests(self) -> dict[ArenaRegion, list[StorageRequest]]:
        groups: dict[ArenaRegion, list[StorageRequest]] = {}
        # Such storages outlive the arena, or are reused by reference count at run time.
        apart = self.lifetimes.escaped | self._updated_storages()
        for storage, request in self.lifetimes.requests.items():
            if storage in apart or not self.entry_symbols.issuperset(free_vars(request.size)):
                continue
            stretch = *barrier_free_region(request.block, request.index), request.device
            if _is_dead_at_region_end(request, stretch):
                groups.setdefault(stretch, []).append(request)
        return groups

    def _updated_storages(self) -> set[Var]:
        """Return the storages of in-place results that may reuse memory from outside the function.

        A kernel that changes elements of a tensor (`updates`) need not copy it where it may have
        its memory, which is known at run time (UpdateInPlace); an offset in an arena would make
        each update a copy of the whole: a loop that sets 1,000 rows of a table of 100,000 took 14.6
        s, and takes 1.5 ms. Chains of updates follow each other: an old value that is itself such a
        result counts as elsewhere.
        """
        storages: set[Var] = set()
        homes, escaped = self.lifetimes.storages_by_value, self.lifetimes.escaped
        for _, call in self.lifetimes.invocations:
            facts = self.kernels.get(call.args[0])
            if facts is None or not facts.updates_input:
                continue
            inputs, outputs = call.args[1:3]
            assert isinstance(inputs, Tuple) and isinstance(outputs, Tuple)
            old = inputs.fields[facts.in_place[0]]
            if not isinstance(old, Var) or old in self.user_params:
                continue
            # Only a tensor outside of the arena hands its memory on to the result.
            if homes.get(old, frozenset()) <= storages | escaped:
                storages |= homes.get(outputs.fields[0], frozenset())
        return storages

    def _rewrite_blocks(self) -> RelayExpr:
        new: dict[RelayExpr, RelayExpr] = {}
        # Inner blocks come later in the list, and must exist before the outer ones.
        for block in reversed(self.lifetimes.blocks):
            new[block.root] = self._rewrite_chain(block, new).wrap()
        return new[self.lifetimes.blocks[0].root]

    def _rewrite_chain(self, block: LifetimeBlock, new: Mapping[RelayExpr, RelayExpr]) -> LetChain:
        starts = [0, *(b + 1 for b in block.barriers)]
        arenas = {start: self.arenas.get((block, n), ()) for n, start in enumerate(starts)}
        bindings: list[LetBinding] = []
        for index, binding in enumerate(block.chain.bindings):
            bindings += arenas.get(index, ())
            if binding[0] not in self.arena_offsets:
                bindings.append(self._rewrite_binding(binding, new))
        return LetChain(bindings, block.chain.result)

    def _rewrite_binding(
        self, binding: LetBinding, new: Mapping[RelayExpr, RelayExpr]
    ) -> LetBinding:
        variable, value = binding
        if bodies(value):
            return variable, replace_children(value, new)
        if isinstance(value, Call) and isinstance(value.attrs, AllocTensorAttrs):
            arena_offset = (
                self.arena_offsets.get(value.args[0]) if isinstance(value.args[0], Var) else None
            )
            if arena_offset is not None:
                arena, start = arena_offset  # in normal form, by what knows all of them
                within = value.attrs.offset
                is_start = isinstance(within, IntImm) and within.value == 0
                offset = start if is_start else simplify(start + within)
                attrs = value.attrs.with_fields(offset=offset)
                return variable, value.with_fields(args=(arena,), attrs=attrs)
        return binding


def _is_dead_at_region_end(request: StorageRequest, stretch: ArenaRegion) -> bool:
    """Return whether a storage is dead at the end of its region."""
    block, count, _ = stretch
    if count == len(block.barriers):
        return request.is_dead_after(block.end)
    # The barrier may call this function again, so nothing may live into it.
    return request.is_dead_after(block.positions[block.barriers[count]] - 1)


def _plan_function(
    function: Function,
    group: Collection[str],
    kernels: KernelInfoMap,
    concurrent: bool,
    is_root: bool,
) -> Function:
    """Plan one function; `group` holds the names of its mutually recursive callees."""
    entry_symbols_ = known_at_entry(function)
    with_scratch = _add_workspaces(function, entry_symbols_, kernels)
    # Parameters of entry points belong to the user: an update of them is always a copy.
    user_params = function.params if is_root else ()
    return lift_body_rewrite(
        lambda body: _ArenaPlanner(
            body, entry_symbols_, group, kernels, concurrent, user_params
        ).plan()
    )(with_scratch)


def MemoryPlan(  # noqa: N802
    kernels: KernelInfoMap | None = None, *, concurrent: bool = False
) -> Pass:
    """Return a pass that places intermediate tensors in arenas.

    Args:
        kernels: What is known of kernels; nothing is known of those left out.
        concurrent: Whether storages share bytes only where the kernels that use the one follow
            those of
            the other by their data, so that independent kernels can run at the same time. Then no
            kernel replaces what it reads, and threads have working memory of their own.
    """
    # Kernels that run at the same time must not overwrite the inputs of each other.
    facts = {} if concurrent or kernels is None else kernels

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Plan each function of a module separately.

        A call of a function in a cycle of calls with it is a barrier, over which no storage is
        reused.
        """
        graph = CallGraph(module)
        groups = ({g.name_hint for g in group} for group in graph.cycles())
        # An arena may not be live across a recursive call: depth would multiply its size.
        cycles = {name: group for group in groups for name in group}
        functions = dict(module.functions.items())
        for name, function in functions.items():
            if isinstance(function, Function):
                group, is_root = cycles.get(name.name_hint, ()), graph.ref_count(name) == 0
                functions[name] = _plan_function(function, group, facts, concurrent, is_root)
        return module.with_functions(functions)

    return Pass("MemoryPlan", transform)
