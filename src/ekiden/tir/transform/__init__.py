"""Lowering passes: from a scheduled PrimFunc to the form that code generators accept.

That form has no blocks, no vectorised or unrolled loops; every access has one flat index (a Ramp or
a vector of offsets for vector accesses); operands agree in dtype; indices of register buffers are
constants.
"""

from typing import TYPE_CHECKING

from ekiden._lazy import attach, exported_names
from ekiden.tir.transform._exports import EXPORTED_NAMES

if TYPE_CHECKING:
    from ekiden.tir.transform.assumptions import remove_assume as remove_assume
    from ekiden.tir.transform.assumptions import use_assumptions as use_assumptions
    from ekiden.tir.transform.attribute_removal import drop_attributes as drop_attributes
    from ekiden.tir.transform.block_lowering import lower_blocks as lower_blocks
    from ekiden.tir.transform.buffer_compaction import compact_buffers as compact_buffers
    from ekiden.tir.transform.buffer_flattening import flat_index as flat_index
    from ekiden.tir.transform.buffer_flattening import flatten_buffers as flatten_buffers
    from ekiden.tir.transform.cross_thread_reduction import (
        lower_cross_thread_reduction as lower_cross_thread_reduction,
    )
    from ekiden.tir.transform.dead_code_elimination import remove_no_op as remove_no_op
    from ekiden.tir.transform.double_buffering import inject_double_buffer as inject_double_buffer
    from ekiden.tir.transform.host_device_split import split_host_device as split_host_device
    from ekiden.tir.transform.init_blocks import lower_init_block as lower_init_block
    from ekiden.tir.transform.intrinsic_lowering import lower_intrinsics as lower_intrinsics
    from ekiden.tir.transform.loop_invariant_code_motion import hoist_invariants as hoist_invariants
    from ekiden.tir.transform.loop_partitioning import loop_partition as loop_partition
    from ekiden.tir.transform.loop_unrolling import unroll_loops as unroll_loops
    from ekiden.tir.transform.loop_unswitching import hoist_conditions as hoist_conditions
    from ekiden.tir.transform.loop_vectorization import vectorize_loops as vectorize_loops
    from ekiden.tir.transform.opaque_blocks import (
        convert_blocks_to_opaque as convert_blocks_to_opaque,
    )
    from ekiden.tir.transform.pipeline import PASSES as PASSES
    from ekiden.tir.transform.pipeline import TILED_PASSES as TILED_PASSES
    from ekiden.tir.transform.pipeline import AlignStorage as AlignStorage
    from ekiden.tir.transform.pipeline import Apply as Apply
    from ekiden.tir.transform.pipeline import BindTarget as BindTarget
    from ekiden.tir.transform.pipeline import CompactBufferAllocation as CompactBufferAllocation
    from ekiden.tir.transform.pipeline import ConvertBlocksToOpaque as ConvertBlocksToOpaque
    from ekiden.tir.transform.pipeline import ConvertForLoopsToSerial as ConvertForLoopsToSerial
    from ekiden.tir.transform.pipeline import ConvertSSA as ConvertSSA
    from ekiden.tir.transform.pipeline import DropAttributes as DropAttributes
    from ekiden.tir.transform.pipeline import Filter as Filter
    from ekiden.tir.transform.pipeline import FlattenBuffer as FlattenBuffer
    from ekiden.tir.transform.pipeline import HoistExpression as HoistExpression
    from ekiden.tir.transform.pipeline import HoistIfThenElse as HoistIfThenElse
    from ekiden.tir.transform.pipeline import InjectDoubleBuffer as InjectDoubleBuffer
    from ekiden.tir.transform.pipeline import InjectVirtualThread as InjectVirtualThread
    from ekiden.tir.transform.pipeline import LoopPartition as LoopPartition
    from ekiden.tir.transform.pipeline import LowerCrossThreadReduction as LowerCrossThreadReduction
    from ekiden.tir.transform.pipeline import LowerInitBlock as LowerInitBlock
    from ekiden.tir.transform.pipeline import LowerIntrin as LowerIntrin
    from ekiden.tir.transform.pipeline import LowerMatchBuffer as LowerMatchBuffer
    from ekiden.tir.transform.pipeline import LowerOpaqueBlock as LowerOpaqueBlock
    from ekiden.tir.transform.pipeline import LowerThreadAllreduce as LowerThreadAllreduce
    from ekiden.tir.transform.pipeline import NarrowDataType as NarrowDataType
    from ekiden.tir.transform.pipeline import ReduceStores as ReduceStores
    from ekiden.tir.transform.pipeline import RemoveAssume as RemoveAssume
    from ekiden.tir.transform.pipeline import RemoveNoOp as RemoveNoOp
    from ekiden.tir.transform.pipeline import RemoveStoreUndef as RemoveStoreUndef
    from ekiden.tir.transform.pipeline import Simplify as Simplify
    from ekiden.tir.transform.pipeline import SkipIntegerCasts as SkipIntegerCasts
    from ekiden.tir.transform.pipeline import SplitHostDevice as SplitHostDevice
    from ekiden.tir.transform.pipeline import StorageFlatten as StorageFlatten
    from ekiden.tir.transform.pipeline import StorageRewrite as StorageRewrite
    from ekiden.tir.transform.pipeline import ThreadSync as ThreadSync
    from ekiden.tir.transform.pipeline import UnifyThreadBinding as UnifyThreadBinding
    from ekiden.tir.transform.pipeline import UnrollLoop as UnrollLoop
    from ekiden.tir.transform.pipeline import UseAssumptions as UseAssumptions
    from ekiden.tir.transform.pipeline import VectorizeLoop as VectorizeLoop
    from ekiden.tir.transform.pipeline import lower as lower
    from ekiden.tir.transform.pipeline import prim_func_pass as prim_func_pass
    from ekiden.tir.transform.reduction_fusion import reduce_stores as reduce_stores
    from ekiden.tir.transform.round_trip_casts import skip_integer_casts as skip_integer_casts
    from ekiden.tir.transform.scalars_as_tensors import numbers_as_tensors as numbers_as_tensors
    from ekiden.tir.transform.serial_loops import convert_loops_to_serial as convert_loops_to_serial
    from ekiden.tir.transform.simplification import simplify as simplify
    from ekiden.tir.transform.storage_alignment import align_storage as align_storage
    from ekiden.tir.transform.storage_reuse import storage_rewrite as storage_rewrite
    from ekiden.tir.transform.thread_allreduce import (
        lower_thread_allreduce as lower_thread_allreduce,
    )
    from ekiden.tir.transform.thread_binding import unify_thread_binding as unify_thread_binding
    from ekiden.tir.transform.undefined_stores import remove_store_undef as remove_store_undef
    from ekiden.tir.transform.virtual_thread_injection import (
        inject_virtual_threads as inject_virtual_threads,
    )
    from ekiden.tir.views import lower_match_buffer as lower_match_buffer

__all__ = exported_names(EXPORTED_NAMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = attach(__name__, EXPORTED_NAMES, registers=True)
