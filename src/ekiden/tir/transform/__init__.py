"""Lowering passes: from a scheduled PrimFunc to the form that code generators accept.

That form has no blocks, no vectorised or unrolled loops; every access has one flat index (a Ramp or
a vector of offsets for vector accesses); operands agree in dtype; indices of register buffers are
constants.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach
from ekiden.tir.transform._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.tir.transform.assumptions import remove_assume, use_assumptions
    from ekiden.tir.transform.attribute_removal import drop_attributes
    from ekiden.tir.transform.block_lowering import lower_blocks
    from ekiden.tir.transform.buffer_compaction import compact_buffers
    from ekiden.tir.transform.condition_hoisting import hoist_conditions
    from ekiden.tir.transform.cross_thread_reduction import lower_cross_thread_reduction
    from ekiden.tir.transform.dead_code_removal import remove_no_op
    from ekiden.tir.transform.double_buffers import inject_double_buffer
    from ekiden.tir.transform.flat_buffers import flat_index, flatten_buffers
    from ekiden.tir.transform.host_device_split import split_host_device
    from ekiden.tir.transform.init_blocks import lower_init_block
    from ekiden.tir.transform.integer_casts import skip_integer_casts
    from ekiden.tir.transform.intrinsic_lowering import lower_intrinsics
    from ekiden.tir.transform.loop_invariants import hoist_invariants
    from ekiden.tir.transform.loop_partitioning import loop_partition
    from ekiden.tir.transform.loop_unrolling import unroll_loops
    from ekiden.tir.transform.loop_vectorization import vectorize_loops
    from ekiden.tir.transform.opaque_blocks import convert_blocks_to_opaque
    from ekiden.tir.transform.pipeline import (
        PASSES,
        TILED_PASSES,
        AlignStorage,
        Apply,
        BindTarget,
        CompactBufferAllocation,
        ConvertBlocksToOpaque,
        ConvertForLoopsToSerial,
        ConvertSSA,
        DropAttributes,
        Filter,
        FlattenBuffer,
        HoistExpression,
        HoistIfThenElse,
        InjectDoubleBuffer,
        InjectVirtualThread,
        LoopPartition,
        LowerCrossThreadReduction,
        LowerInitBlock,
        LowerIntrin,
        LowerMatchBuffer,
        LowerOpaqueBlock,
        NarrowDataType,
        ReduceStores,
        RemoveAssume,
        RemoveNoOp,
        RemoveStoreUndef,
        Simplify,
        SkipIntegerCasts,
        SplitHostDevice,
        StorageFlatten,
        StorageRewrite,
        ThreadSync,
        UnifyThreadBinding,
        UnrollLoop,
        UseAssumptions,
        VectorizeLoop,
        lower,
        prim_func_pass,
    )
    from ekiden.tir.transform.scalars_as_tensors import numbers_as_tensors
    from ekiden.tir.transform.serial_loops import convert_loops_to_serial
    from ekiden.tir.transform.simplification import simplify
    from ekiden.tir.transform.storage_alignment import align_storage
    from ekiden.tir.transform.storage_sharing import storage_rewrite
    from ekiden.tir.transform.store_reductions import reduce_stores
    from ekiden.tir.transform.thread_binding import unify_thread_binding
    from ekiden.tir.transform.undefined_stores import remove_store_undef
    from ekiden.tir.transform.virtual_threads import inject_virtual_threads
    from ekiden.tir.views import lower_match_buffer

__all__ = [
    "PASSES",
    "TILED_PASSES",
    "AlignStorage",
    "Apply",
    "BindTarget",
    "CompactBufferAllocation",
    "ConvertBlocksToOpaque",
    "ConvertForLoopsToSerial",
    "ConvertSSA",
    "DropAttributes",
    "Filter",
    "FlattenBuffer",
    "HoistExpression",
    "HoistIfThenElse",
    "InjectDoubleBuffer",
    "InjectVirtualThread",
    "LoopPartition",
    "LowerCrossThreadReduction",
    "LowerInitBlock",
    "LowerIntrin",
    "LowerMatchBuffer",
    "LowerOpaqueBlock",
    "NarrowDataType",
    "ReduceStores",
    "RemoveAssume",
    "RemoveNoOp",
    "RemoveStoreUndef",
    "Simplify",
    "SkipIntegerCasts",
    "SplitHostDevice",
    "StorageFlatten",
    "StorageRewrite",
    "ThreadSync",
    "UnifyThreadBinding",
    "UnrollLoop",
    "UseAssumptions",
    "VectorizeLoop",
    "align_storage",
    "compact_buffers",
    "convert_blocks_to_opaque",
    "convert_loops_to_serial",
    "drop_attributes",
    "flat_index",
    "flatten_buffers",
    "hoist_conditions",
    "hoist_invariants",
    "inject_double_buffer",
    "inject_virtual_threads",
    "loop_partition",
    "lower",
    "lower_blocks",
    "lower_cross_thread_reduction",
    "lower_init_block",
    "lower_intrinsics",
    "lower_match_buffer",
    "numbers_as_tensors",
    "prim_func_pass",
    "reduce_stores",
    "remove_assume",
    "remove_no_op",
    "remove_store_undef",
    "simplify",
    "skip_integer_casts",
    "split_host_device",
    "storage_rewrite",
    "unify_thread_binding",
    "unroll_loops",
    "use_assumptions",
    "vectorize_loops",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
