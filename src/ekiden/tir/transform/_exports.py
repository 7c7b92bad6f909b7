"""Where the names of `ekiden.tir.transform` stand. Made by scripts/generate_exports.py."""

EXPORTS = {
    "align_storage": """
        align_storage
    """,
    "compact_buffers": """
        compact_buffers
    """,
    "convert_blocks_to_opaque": """
        convert_blocks_to_opaque
    """,
    "convert_loops_to_serial": """
        convert_loops_to_serial
    """,
    "drop_attributes": """
        drop_attributes
    """,
    "flatten_buffers": """
        flat_index flatten_buffers
    """,
    "hoist_conditions": """
        hoist_conditions
    """,
    "hoist_invariants": """
        hoist_invariants
    """,
    "inject_double_buffer": """
        inject_double_buffer
    """,
    "inject_virtual_threads": """
        inject_virtual_threads
    """,
    "loop_partition": """
        loop_partition
    """,
    "lower_blocks": """
        lower_blocks
    """,
    "lower_cross_thread_reduction": """
        lower_cross_thread_reduction
    """,
    "lower_init_block": """
        lower_init_block
    """,
    "lower_intrinsics": """
        lower_intrinsics
    """,
    "pipeline": """
        AlignStorage Apply BindTarget CompactBufferAllocation ConvertBlocksToOpaque
        ConvertForLoopsToSerial ConvertSSA DropAttributes Filter FlattenBuffer HoistExpression
        HoistIfThenElse InjectDoubleBuffer InjectVirtualThread LoopPartition
        LowerCrossThreadReduction LowerInitBlock LowerIntrin LowerMatchBuffer LowerOpaqueBlock
        NarrowDataType PASSES RemoveAssume RemoveNoOp RemoveStoreUndef Simplify SkipIntegerCasts
        SplitHostDevice StorageFlatten StorageRewrite TILED_PASSES ThreadSync UnifyThreadBinding
        UnrollLoop UseAssumptions VectorizeLoop lower prim_func_pass
    """,
    "remove_assume": """
        remove_assume use_assumptions
    """,
    "remove_no_op": """
        remove_no_op
    """,
    "remove_store_undef": """
        remove_store_undef
    """,
    "scalars_as_tensors": """
        numbers_as_tensors
    """,
    "simplify": """
        simplify
    """,
    "skip_integer_casts": """
        skip_integer_casts
    """,
    "split_host_device": """
        split_host_device
    """,
    "storage_rewrite": """
        storage_rewrite
    """,
    "unify_thread_binding": """
        unify_thread_binding
    """,
    "unroll_loops": """
        unroll_loops
    """,
    "vectorize_loops": """
        vectorize_loops
    """,
    "ekiden.tir.views": """
        lower_match_buffer
    """,
}
"""Module -> its names."""
