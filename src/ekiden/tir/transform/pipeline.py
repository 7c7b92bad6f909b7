"""The lowering pipeline: the passes from a scheduled function to the code generators' input, in
order.

Each is a function over a PrimFunc in a file of its own, and a Pass over a module by TVM's name:
`tir.transform.Simplify()(module)`. Instruments of the PassContext observe every one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import overload

from ekiden.ir.module import IRModule
from ekiden.ir.pass_context import ADDED_PASSES_OPTION
from ekiden.ir.transform import (
    Pass,
    PassContext,
    Sequential,
    function_pass_over,
    register_pass,
    share_passes,
)
from ekiden.runtime.errors import PassError
from ekiden.target import Target
from ekiden.tir.alpha_renaming import distinct
from ekiden.tir.stmt import PrimFunc
from ekiden.tir.transform._exports import EXPORTED_NAMES
from ekiden.tir.transform.assumptions import remove_assume, use_assumptions
from ekiden.tir.transform.attribute_removal import drop_attributes
from ekiden.tir.transform.block_lowering import lower_blocks
from ekiden.tir.transform.buffer_compaction import compact_buffers
from ekiden.tir.transform.buffer_flattening import flatten_buffers
from ekiden.tir.transform.cross_thread_reduction import lower_cross_thread_reduction
from ekiden.tir.transform.dead_code_elimination import remove_no_op
from ekiden.tir.transform.double_buffering import inject_double_buffer
from ekiden.tir.transform.host_device_split import split_host_device
from ekiden.tir.transform.init_blocks import lower_init_block
from ekiden.tir.transform.intrinsic_lowering import lower_intrinsics
from ekiden.tir.transform.loop_invariant_code_motion import hoist_invariants
from ekiden.tir.transform.loop_partitioning import loop_partition
from ekiden.tir.transform.loop_unrolling import unroll_loops
from ekiden.tir.transform.loop_unswitching import hoist_conditions
from ekiden.tir.transform.loop_vectorization import vectorize_loops
from ekiden.tir.transform.lower_small_types import lower_small_types
from ekiden.tir.transform.narrow_data_type import narrow_data_type
from ekiden.tir.transform.opaque_blocks import convert_blocks_to_opaque
from ekiden.tir.transform.reduction_fusion import reduce_stores
from ekiden.tir.transform.round_trip_casts import skip_integer_casts
from ekiden.tir.transform.serial_loops import convert_loops_to_serial
from ekiden.tir.transform.simplification import simplify
from ekiden.tir.transform.storage_alignment import align_storage
from ekiden.tir.transform.storage_reuse import storage_rewrite
from ekiden.tir.transform.thread_allreduce import lower_thread_allreduce
from ekiden.tir.transform.thread_binding import unify_thread_binding
from ekiden.tir.transform.thread_exchange import refuse_thread_exchange
from ekiden.tir.transform.thread_sync import is_thread_loop, thread_sync
from ekiden.tir.transform.undefined_stores import remove_store_undef
from ekiden.tir.transform.virtual_thread_injection import inject_virtual_threads
from ekiden.tir.views import lower_match_buffer
from ekiden.tir.visitor import pre_order_stmts

_function_pass = prim_func_pass = function_pass_over(PrimFunc)
"""Decorator of passes over loop programs: (function, module, context) -> function."""


def _pass_factory(name: str, function: Callable[[PrimFunc], PrimFunc]) -> Callable[[], Pass]:
    """Return the factory of a function's pass, by TVM's name."""

    def run_on_function(func: PrimFunc, module: IRModule, context: PassContext) -> PrimFunc:
        return function(func)

    pass_: Pass = _function_pass(run_on_function, opt_level=0, name=f"tir.{name}")
    return _registered_factory(pass_)


def _registered_factory(pass_: Pass) -> Callable[[], Pass]:
    """Return a factory of a pass and register it by the pass's name."""

    def make_pass() -> Pass:
        """Return the pass that the table below describes."""
        return pass_

    register_pass(pass_.name, make_pass)
    return make_pass


def _module_factory(name: str, change: Callable[[IRModule], IRModule]) -> Callable[[], Pass]:
    """Return the factory of a module function's pass, by TVM's name."""
    return _registered_factory(Pass(f"tir.{name}", lambda module, context: change(module)))


def Apply(ftransform: Callable[[PrimFunc], PrimFunc]) -> Pass:  # noqa: N802 - TVM's name
    """Return a pass that applies a function to each loop program."""

    def run_ftransform(func: PrimFunc, module: IRModule, context: PassContext) -> PrimFunc:
        """Apply the function to the program alone."""
        return ftransform(func)

    pass_: Pass = _function_pass(run_ftransform, opt_level=0, name="tir.Apply")
    return pass_


def Filter(fcond: Callable[[PrimFunc], bool]) -> Pass:  # noqa: N802
    """Return a pass that keeps the loop programs that satisfy a condition, and all other
    functions.
    """

    def keep_matching(module: IRModule, context: PassContext) -> IRModule:
        """Return the module without the loop programs that fail the condition."""
        functions = {
            name: f
            for name, f in module.functions.items()
            if not isinstance(f, PrimFunc) or fcond(f)
        }
        return module.with_functions(functions)

    return Pass("tir.Filter", keep_matching)


def BindTarget(target: Target) -> Pass:  # noqa: N802
    """Return a pass that sets the attribute "target" of loop programs that have none."""
    return Apply(lambda f: f if f.attr("target") is not None else f.with_attr("target", target))


_COMPACT_FACTORY = _pass_factory("CompactBufferAllocation", compact_buffers)


def CompactBufferAllocation(is_strict: bool = True) -> Pass:  # noqa: N802
    """Return the pass that shrinks intermediates to what one iteration of the loops around their
    accesses needs.

    Raises ValueError for `is_strict=False`, by which TVM's may grow.
    """
    if not is_strict:
        raise ValueError("CompactBufferAllocation: a buffer never grows; is_strict is True")
    return _COMPACT_FACTORY()


def StorageFlatten(cache_line_size: int = 64, create_bound_attribute: bool = False) -> Pass:  # noqa: N802
    """Return `FlattenBuffer`, by TVM's name for programs of tensor expressions. The arguments are
    hints to TVM's pass; `te` here lowers to buffers like all programs.
    """
    del cache_line_size, create_bound_attribute
    return FlattenBuffer()


_NARROW_FACTORY = _pass_factory("NarrowDataType", narrow_data_type)


def NarrowDataType(target_bits: int) -> Pass:  # noqa: N802
    """Return the pass that computes 64-bit indices whose values fit in 32 bits.

    Raises ValueError for other widths.
    """
    if target_bits != 32:
        raise ValueError(f"NarrowDataType: indices become 32 bits wide, not {target_bits}")
    return _NARROW_FACTORY()


_SYNC_FACTORY = _pass_factory("ThreadSync", thread_sync)


def ThreadSync(storage_scope: str = "shared") -> Pass:  # noqa: N802
    """Return the pass that inserts barriers where a thread reads what another thread of the block
    wrote.

    Raises ValueError for memory other than a block's shared memory.
    """
    if storage_scope != "shared":
        raise ValueError(f"ThreadSync: 'shared' expected, got {storage_scope!r}")
    return _SYNC_FACTORY()


# fmt: off
LowerMatchBuffer        = _pass_factory("LowerMatchBuffer",        lower_match_buffer)
LowerOpaqueBlock        = _pass_factory("LowerOpaqueBlock",        lower_blocks)
"""Pass that replaces blocks by their statements, with iterators replaced by their bindings."""
LowerCrossThreadReduction = _pass_factory("LowerCrossThreadReduction", lower_cross_thread_reduction)
"""Pass that lowers reductions bound to threads: per-thread partial results, then a combination."""
LowerThreadAllreduce    = _pass_factory("LowerThreadAllreduce",    lower_thread_allreduce)
"""Pass that lowers T.tvm_thread_allreduce, by which a script combines values of threads."""
_RefuseThreadExchange   = _pass_factory("RefuseThreadExchange",    refuse_thread_exchange)
AlignStorage            = _pass_factory("AlignStorage",            align_storage)
"""Pass that pads strides of intermediates as `Schedule.storage_align` requested."""
LoopPartition           = _pass_factory("LoopPartition",           loop_partition)
"""Pass that partitions loops where a condition changes, so that full tiles need no test."""
InjectVirtualThread     = _pass_factory("InjectVirtualThread",     inject_virtual_threads)
"""Pass that interleaves virtual threads."""
InjectDoubleBuffer      = _pass_factory("InjectDoubleBuffer",      inject_double_buffer)
"""Pass that fills a buffer for the next iteration while the current one reads it."""
HoistIfThenElse         = _pass_factory("HoistIfThenElse",         hoist_conditions)
"""Pass that unswitches loops on loop-invariant conditions."""
ReduceStores            = _pass_factory("ReduceStores",            reduce_stores)
"""Pass that reduces a stored buffer to its maximum while its elements are in registers."""
UnrollLoop              = _pass_factory("UnrollLoop",              unroll_loops)
"""Pass that unrolls marked loops, and short serial ones as its options request."""
FlattenBuffer           = _pass_factory("FlattenBuffer",           flatten_buffers)
"""Pass that flattens buffer accesses to one element offset."""
LowerSmallTypes         = _pass_factory("LowerSmallTypes",         lower_small_types)
"""Pass that lowers 8-bit and sub-byte arithmetic to bytes."""
SkipIntegerCasts        = _pass_factory("SkipIntegerCasts",        skip_integer_casts)
"""Pass that keeps floats rounded and clipped to an unsigned integer's range as floats."""
VectorizeLoop           = _pass_factory("VectorizeLoop",           vectorize_loops)
"""Pass that turns vectorised loops into vectors with a masked tail."""
StorageRewrite          = _pass_factory("StorageRewrite",          storage_rewrite)
"""Pass that shares memory between buffers with disjoint live ranges."""
LowerIntrin             = _pass_factory("LowerIntrin",             lower_intrinsics)
"""Pass that lowers intrinsics without code generator support."""
HoistExpression         = _pass_factory("HoistExpression",         hoist_invariants)
"""Pass that moves loop-invariant expressions out of loops."""
RemoveNoOp              = _pass_factory("RemoveNoOp",              remove_no_op)
"""Pass that removes dead code."""
Simplify                = _pass_factory("Simplify",                simplify)
"""Pass that simplifies every expression under the ranges of enclosing loops."""

RemoveAssume            = _pass_factory("RemoveAssume",            remove_assume)
"""Pass that removes assumptions without using them."""
RemoveStoreUndef        = _pass_factory("RemoveStoreUndef",        remove_store_undef)
"""Pass that removes stores of undefined values."""
UseAssumptions          = _pass_factory("UseAssumptions",          use_assumptions)
"""Pass that simplifies by `T.assume` and then removes the assumptions."""

LowerInitBlock          = _pass_factory("LowerInitBlock",          lower_init_block)
ConvertBlocksToOpaque   = _pass_factory("ConvertBlocksToOpaque",   convert_blocks_to_opaque)
UnifyThreadBinding      = _pass_factory("UnifyThreadBinding",      unify_thread_binding)
ConvertForLoopsToSerial = _pass_factory("ConvertForLoopsToSerial", convert_loops_to_serial)
ConvertSSA              = _pass_factory("ConvertSSA",              distinct)

DropAttributes          = _pass_factory("DropAttributes",          drop_attributes)
"""Pass that removes AttrStmts, which no later pass reads."""

SplitHostDevice         = _module_factory("SplitHostDevice",  split_host_device)
"""Pass that splits functions into device kernels and the host code that launches them."""

PASSES: list[Pass] = [
    LowerMatchBuffer(),     # first: no other pass knows buffers without memory of their own
    LowerOpaqueBlock(),
    DropAttributes(),
    CompactBufferAllocation(),
    AlignStorage(),         # once buffers have their shapes
    LoopPartition(),        # while what a split left over is still marked, and loops are loops
    UseAssumptions(),       # they may say that nothing is left over
    InjectVirtualThread(),
    InjectDoubleBuffer(),   # after buffers are inside the loops whose steps they serve
    HoistIfThenElse(),
    FlattenBuffer(),        # simplifies everything on the way
    LowerSmallTypes(),      # indices are flat; loops may still be serialised
    SkipIntegerCasts(),     # while zero points that hoisting names are seen to be whole
    VectorizeLoop(),        # and this what it makes
    ReduceStores(),         # stores are vectors now, and not yet copied by unrolling
    UnrollLoop(),           # after what is done once for all copies; constants fold into indices
    StorageRewrite(),       # indices are flat: memory of one shape serves any other
    LowerIntrin(),
    HoistExpression(),      # last: simplifying would undo its grouping
    RemoveNoOp(),           # but for names that nothing uses in the end
]
THREAD_REDUCTION_PASSES: list[Pass] = [
    LowerCrossThreadReduction(),  # while blocks tell what is reduced
    LowerThreadAllreduce(),       # before attributes, which name the reducers, are dropped
]
PASSES_BEFORE_HOST_DEVICE_SPLIT: list[Pass] = [
    LowerMatchBuffer(),
    *THREAD_REDUCTION_PASSES,
    LowerOpaqueBlock(),
    DropAttributes(),
    CompactBufferAllocation(),
    AlignStorage(),
    UseAssumptions(),
    InjectVirtualThread(),
    InjectDoubleBuffer(),
]
"""Passes for programs bound to threads, up to SplitHostDevice."""
PASSES_AFTER_HOST_DEVICE_SPLIT: list[Pass] = [
    ThreadSync(),           # while loops are loops, and memory of a block is what it was
    HoistIfThenElse(),
    FlattenBuffer(),
    LowerSmallTypes(),
    VectorizeLoop(),
    UnrollLoop(),
    LowerIntrin(),
    RemoveNoOp(),
]
"""Passes for the host and device parts after SplitHostDevice. Compilers of devices hoist and reuse
memory themselves.
"""
TILED_PASSES: list[Pass] = [
    LowerMatchBuffer(),     # first: no other pass knows buffers without memory of their own
    RemoveAssume(),
    FlattenBuffer(),
    LowerSmallTypes(),
    SkipIntegerCasts(),
    ReduceStores(),
    LowerIntrin(),
]
"""Passes of functions with the attribute "tir.tiled": register tiles are written unrolled and in
vectors,
with their addresses grouped; hoisting would only raise the number of live values (2 % slower, twice
the compile time).
"""
PASSES_OF_PARTLY_TILED_PROGRAMS: list[Pass] = [
    LowerMatchBuffer(),     # first: no other pass knows buffers without memory of their own
    LowerOpaqueBlock(),
    DropAttributes(),
    UseAssumptions(),
    FlattenBuffer(),
    LowerSmallTypes(),
    SkipIntegerCasts(),
    VectorizeLoop(),
    ReduceStores(),
    UnrollLoop(),
    LowerIntrin(),
]
"""Passes for tiled functions with further blocks (tir.has_blocks), whose loops may be vectorised
or unrolled.
"""
# fmt: on


@overload
def lower(program: PrimFunc, target: Target | None = None) -> PrimFunc: ...


@overload
def lower(program: IRModule, target: Target | None = None) -> IRModule: ...


def lower(program: PrimFunc | IRModule, target: Target | None = None) -> PrimFunc | IRModule:
    """Lower a function, or each loop program of a module, to the form that code generators accept.

    Runs PASSES (or TILED_PASSES) in order, under the current PassContext, with the passes that its
    option "tir.add_lower_pass" adds. A reduction over threads becomes code of synchronising
    threads, except for a CPU `target`, where threads are iterations of a loop. TVM: `tvm.lower`.
    """
    has_threads = target is None or target.kind.has_threads
    with target or nullcontext():
        if isinstance(program, PrimFunc):
            return _lower_function(program, has_threads)
        lowered = {
            name: _lower_function(f, has_threads) if isinstance(f, PrimFunc) else f
            for name, f in program.functions.items()
        }
    return program.with_functions(lowered)


def _lower_function(func: PrimFunc, has_threads: bool) -> PrimFunc:
    attrs = func.attrs or {}
    passes = TILED_PASSES if attrs.get("tir.tiled") else PASSES
    if attrs.get("tir.tiled") and attrs.get("tir.has_blocks"):
        passes = PASSES_OF_PARTLY_TILED_PROGRAMS
    elif passes is PASSES and has_threads:
        # Behind the lowering of views, which it does not know, and while there still are blocks.
        passes = [PASSES[0], *THREAD_REDUCTION_PASSES, *PASSES[1:]]
    elif passes is PASSES and any(map(is_thread_loop, pre_order_stmts(func.body))):
        # While loops and buffers have their axes, and indices no iterators of blocks.
        passes = [*PASSES[:2], _RefuseThreadExchange(), *PASSES[2:]]
    module = Sequential(_insert_context_passes(passes), name="tir.lower")(
        IRModule({func.name: func})
    )
    lowered = module[func.name]
    if not isinstance(lowered, PrimFunc):
        raise PassError(f"lower '{func.name}': an added pass made a {type(lowered).__name__} of it")
    return lowered


PHASE_START_PASSES = ("", "tir.FlattenBuffer", "tir.UnrollLoop")
"""Pass after which the user passes of each phase are inserted; those of other phases come last."""


def _insert_context_passes(passes: Sequence[Pass]) -> list[Pass]:
    """Return the passes with those that the PassContext adds, each at its phase."""
    added = PassContext.current().option(ADDED_PASSES_OPTION)
    assert isinstance(added, list)
    pipeline = list(passes)
    for addition in added:
        name = (
            PHASE_START_PASSES[addition.phase] if addition.phase < len(PHASE_START_PASSES) else None
        )
        positions = [n + 1 for n, member in enumerate(pipeline) if member.name == name]
        position = 0 if name == "" else (positions or [len(pipeline)])[0]
        while position < len(pipeline) and any(pipeline[position] is a.run for a in added):
            position += 1  # those of one phase run in the order in which they are given
        pipeline.insert(position, addition.run)
    return pipeline


share_passes(
    "tir.transform", {name: globals()[name] for name in EXPORTED_NAMES.get("pipeline", "").split()}
)
