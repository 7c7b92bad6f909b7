"""Where the names of `ekiden.relay.op` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "": """
        annotation contrib dyn:dynamic image linalg memory ml nn op random sequence text vision
        vm
    """,
    "ekiden.ir.op": "get",
    "ekiden.relay.expr": "const",
    "annotation": "device_copy",
    "broadcast": """
        add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater
        greater_equal left_shift less less_equal logical_and logical_or logical_xor maximum
        minimum mod multiply not_equal power right_shift subtract trunc_divide trunc_mod where
        widening_multiply
    """,
    "create": "arange extents full ndarray_size ones ones_like shape_of zeros zeros_like",
    "debugging": "debug",
    "elementwise": """
        abs acos acosh asin asinh atan atanh bitwise_not cast ceil clip copy cos cosh erf exp
        fast_erf fast_exp fast_tanh floor isfinite isinf isnan log log10 log2 logical_not
        negative reinterpret round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
    """,
    "gradient": "register_gradient",
    "index": "gather gather_nd one_hot take",
    "join": "concatenate split stack",
    "op": """
        register_alter_op_layout register_convert_op_layout
        register_fake_quantization_to_integer register_infer_correct_layout
        register_mixed_precision_conversion register_optional_fake_quantization_to_integer
        register_reference
    """,
    "reduce": "all any argmax argmin max mean min prod sum",
    "reshaping": "expand_dims reshape squeeze",
    "scan": "cummax cummin cumprod cumsum",
    "scatter_ops": """
        adv_index reverse_sequence scatter_elements scatter_nd sequence_mask sparse_to_dense
        strided_set
    """,
    "shape_func": "register_shape_func",
    "shape_like": "cast_like reshape_like reverse_reshape segment_sum sliding_window",
    "slice": "strided_slice",
    "sorting": "argsort argwhere argwhere_padded row_ranks searchsorted sort topk unique",
    "sparse": "sparse_fill_empty_rows sparse_reshape",
    "strategy": """
        OpImplementation OpSpecialization OpStrategy SpecializedCondition register_compute
        register_schedule register_strategy
    """,
    "tensor_math": """
        broadcast_to_like collapse_sum_like collapse_sum_to det dft einsum fixed_point_multiply
        fixed_point_multiply_per_axis full_like invert_permutation logsumexp matrix_set_diag
        mean_std mean_variance meshgrid slice_like std stft trilu unravel_index variance
    """,
    "transform": "broadcast_to layout_transform repeat reverse tile transpose",
}
"""Module -> its names."""

OPERATORS_BY_MODULE = {
    "ekiden.relay.op.annotation": """
        annotation.cast_hint annotation.checkpoint annotation.compiler_begin
        annotation.compiler_end annotation.stop_fusion device_copy on_device
        relay.op.annotation.simulated_quantize
    """,
    "ekiden.relay.op.broadcast": """
        add bitwise_and bitwise_or bitwise_xor divide equal floor_divide floor_mod greater
        greater_equal left_shift less less_equal logical_and logical_or logical_xor maximum
        minimum mod multiply not_equal power right_shift subtract trunc_divide trunc_mod where
        widening_multiply
    """,
    "ekiden.relay.op.create": "arange full ndarray_size ones ones_like shape_of zeros zeros_like",
    "ekiden.relay.op.debugging": "debug",
    "ekiden.relay.op.dynamic_create": "dyn.arange dyn.extents dyn.full dyn.ones dyn.zeros",
    "ekiden.relay.op.dynamic_pad": "dyn.nn.pad",
    "ekiden.relay.op.dynamic_repeat": "dyn.broadcast_to dyn.tile",
    "ekiden.relay.op.dynamic_reshape": "dyn.expand_dims dyn.reshape dyn.squeeze",
    "ekiden.relay.op.dynamic_select": "dyn.one_hot dyn.topk",
    "ekiden.relay.op.dynamic_slice": "dyn.strided_slice",
    "ekiden.relay.op.elementwise": """
        abs acos acosh asin asinh atan atanh bitwise_not cast ceil clip copy cos cosh erf exp
        fast_erf fast_exp fast_tanh floor isfinite isinf isnan log log10 log2 logical_not
        negative reinterpret round rsqrt sigmoid sign sin sinh sqrt tan tanh trunc
    """,
    "ekiden.relay.op.image": """
        dyn.image.resize2d image.resize2d image.resize2d_scaled nn.upsampling
    """,
    "ekiden.relay.op.image_sampling": """
        image.affine_grid image.crop_and_resize image.dilation2d image.grid_sample
        image.resize1d image.resize3d
    """,
    "ekiden.relay.op.index": "gather gather_nd one_hot take",
    "ekiden.relay.op.join": "concatenate split stack",
    "ekiden.relay.op.linalg": """
        linalg.checked linalg.cholesky linalg.eigh linalg.geqrf linalg.householder_product
        linalg.lu_factor linalg.matrix_exp linalg.solve_triangular linalg.svd
    """,
    "ekiden.relay.op.memory": "memory.alloc_storage memory.alloc_tensor memory.kill memory.own",
    "ekiden.relay.op.ml": "ml.couple ml.tree_leaves",
    "ekiden.relay.op.nn.activation": """
        nn.bias_add nn.dropout nn.fast_softmax nn.leaky_relu nn.log_softmax nn.prelu nn.relu
        nn.softmax
    """,
    "ekiden.relay.op.nn.backward": """
        nn.avg_pool2d_grad nn.conv2d_backward_weight nn.max_pool2d_grad
    """,
    "ekiden.relay.op.nn.bitserial": "nn.bitpack",
    "ekiden.relay.op.nn.block_quantized": """
        nn.contrib_dense_blocks_pack nn.contrib_take_blocks_pack nn.dense_blocks nn.take_blocks
    """,
    "ekiden.relay.op.nn.conv": "nn.conv1d nn.conv2d nn.conv2d_transpose",
    "ekiden.relay.op.nn.conv_variants": """
        nn.conv1d_transpose nn.conv3d nn.conv3d_transpose nn.correlation nn.deformable_conv2d
        nn.modulated_deformable_conv2d
    """,
    "ekiden.relay.op.nn.dot_product_attention": "nn.attention",
    "ekiden.relay.op.nn.int4_dense": "nn.contrib_dense_nibbles nn.contrib_dense_nibbles_pack",
    "ekiden.relay.op.nn.matrix_products": """
        nn.batch_matmul nn.contrib_dense_pack nn.contrib_pack_weight nn.dense nn.matmul
    """,
    "ekiden.relay.op.nn.norm": """
        nn.batch_norm nn.group_norm nn.instance_norm nn.layer_norm nn.lrn nn.rms_norm
    """,
    "ekiden.relay.op.nn.padding": "nn.pad",
    "ekiden.relay.op.nn.paged_attention": """
        nn.contrib_paged_attention nn.contrib_paged_attention_with_sinks nn.contrib_write_pages
    """,
    "ekiden.relay.op.nn.pool": """
        nn.adaptive_avg_pool2d nn.avg_pool1d nn.avg_pool2d nn.avg_pool3d nn.global_avg_pool2d
        nn.global_max_pool2d nn.max_pool1d nn.max_pool2d nn.max_pool3d
    """,
    "ekiden.relay.op.nn.recurrent_layers": "nn.contrib_pack_recurrent nn.recurrent",
    "ekiden.relay.op.nn.space_to_batch": """
        nn.adaptive_avg_pool1d nn.adaptive_avg_pool3d nn.adaptive_max_pool1d
        nn.adaptive_max_pool2d nn.adaptive_max_pool3d nn.batch_to_space_nd nn.cross_entropy
        nn.cross_entropy_with_logits nn.depth_to_space nn.dilate nn.fifo_buffer nn.l2_normalize
        nn.mirror_pad nn.nll_loss nn.space_to_batch_nd nn.space_to_depth nn.upsampling3d
    """,
    "ekiden.relay.op.nn.sparse": """
        nn.sparse_add nn.sparse_conv2d nn.sparse_dense nn.sparse_transpose
    """,
    "ekiden.relay.op.nn.volume_resize": "dyn.image.resize3d",
    "ekiden.relay.op.nn.winograd": """
        nn.contrib_conv2d_winograd_weight_transform
        nn.contrib_conv2d_winograd_without_weight_transform
    """,
    "ekiden.relay.op.prim_func_call": "call_lowered",
    "ekiden.relay.op.random": """
        random.contrib_constrain random.contrib_draw random.multinomial random.normal
        random.threefry_generate random.threefry_split random.uniform
    """,
    "ekiden.relay.op.reduce": "all any argmax argmin max mean min prod sum",
    "ekiden.relay.op.reshaping": "expand_dims nn.batch_flatten reshape squeeze",
    "ekiden.relay.op.scan": "cummax cummin cumprod cumsum",
    "ekiden.relay.op.scatter_ops": """
        adv_index dyn.sparse_to_dense reverse_sequence scatter_elements scatter_nd sequence_mask
        sparse_to_dense strided_set
    """,
    "ekiden.relay.op.sequence": """
        sequence.at sequence.concat sequence.erase sequence.insert sequence.length
        sequence.split sequence.stack
    """,
    "ekiden.relay.op.shape_like": "cast_like contrib_reverse_reshape reshape_like sliding_window",
    "ekiden.relay.op.slice": "strided_slice",
    "ekiden.relay.op.sorting": """
        argsort argwhere argwhere_padded row_ranks searchsorted sort topk unique
    """,
    "ekiden.relay.op.tensor_math": """
        broadcast_to_like collapse_sum_like collapse_sum_to det dft einsum fixed_point_multiply
        fixed_point_multiply_per_axis full_like invert_permutation matrix_set_diag meshgrid
        slice_like stft trilu unravel_index variance
    """,
    "ekiden.relay.op.text": """
        text.change_case text.concat text.count_parts text.find text.match text.number_parts
        text.split text.whole_number text.written
    """,
    "ekiden.relay.op.transform": "broadcast_to layout_transform repeat reverse tile transpose",
    "ekiden.relay.op.vision": """
        vision.all_class_non_max_suppression vision.get_valid_counts vision.multibox_prior
        vision.multibox_transform_loc vision.non_max_suppression vision.proposal
        vision.roi_align vision.roi_pool vision.yolo_reorg
    """,
    "ekiden.relay.op.vm": """
        vm.bind_dims vm.forget_shape vm.invoke_tvm_op vm.match_shape vm.part vm.prefix
        vm.reshape_tensor vm.shape_of
    """,
    "ekiden.relay.qnn.concat_pool_softmax": "qnn.avg_pool2d qnn.concatenate qnn.softmax",
    "ekiden.relay.qnn.elementwise": """
        qnn.abs qnn.add qnn.erf qnn.exp qnn.hardswish qnn.leaky_relu qnn.log qnn.mul qnn.rsqrt
        qnn.sigmoid qnn.sqrt qnn.subtract qnn.tanh
    """,
    "ekiden.relay.qnn.product": "qnn.batch_matmul qnn.conv2d qnn.conv2d_transpose qnn.dense",
    "ekiden.relay.qnn.scale_conversion": "qnn.dequantize qnn.quantize qnn.requantize",
    "ekiden.relay.qnn.simulated": "qnn.simulated_dequantize qnn.simulated_quantize",
}
"""Module -> the operators that it declares."""
