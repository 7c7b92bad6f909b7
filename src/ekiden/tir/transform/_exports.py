"""Where the names of `ekiden.tir.transform` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "assumptions": "remove_assume use_assumptions",
    "attribute_removal": "drop_attributes",
    "block_lowering": "lower_blocks",
    "buffer_compaction": "compact_buffers",
    "condition_hoisting": "hoist_conditions",
    "cross_thread_reduction": "lower_cross_thread_reduction",
    "dead_code_removal": "remove_no_op",
    "double_buffers": "inject_double_buffer",
    "flat_buffers": "flat_index flatten_buffers",
    "host_device_split": "split_host_device",
    "init_blocks": "lower_init_block",
    "integer_casts": "skip_integer_casts",
    "intrinsic_lowering": "lower_intrinsics",
    "loop_invariants": "hoist_invariants",
    "loop_partitioning": "loop_partition",
    "loop_unrolling": "unroll_loops",
    "loop_vectorization": "vectorize_loops",
    "opaque_blocks": "convert_blocks_to_opaque",
    "pipeline": """
        AlignStorage Apply BindTarget CompactBufferAllocation ConvertBlocksToOpaque
        ConvertForLoopsToSerial ConvertSSA DropAttributes Filter FlattenBuffer HoistExpression
        HoistIfThenElse InjectDoubleBuffer InjectVirtualThread LoopPartition
        LowerCrossThreadReduction LowerInitBlock LowerIntrin LowerMatchBuffer LowerOpaqueBlock
        NarrowDataType PASSES ReduceStores RemoveAssume RemoveNoOp RemoveStoreUndef Simplify
        SkipIntegerCasts SplitHostDevice StorageFlatten StorageRewrite TILED_PASSES ThreadSync
        UnifyThreadBinding UnrollLoop UseAssumptions VectorizeLoop lower prim_func_pass
    """,
    "scalars_as_tensors": "numbers_as_tensors",
    "serial_loops": "convert_loops_to_serial",
    "simplification": "simplify",
    "storage_alignment": "align_storage",
    "storage_sharing": "storage_rewrite",
    "store_reductions": "reduce_stores",
    "thread_binding": "unify_thread_binding",
    "undefined_stores": "remove_store_undef",
    "virtual_threads": "inject_virtual_threads",
    "ekiden.tir.views": "lower_match_buffer",
}
"""Module -> its names."""
