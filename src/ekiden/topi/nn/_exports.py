"""Where the names of `ekiden.topi.nn` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "activation": "bias_add leaky_relu prelu relu",
    "bit_planes": "bitpack",
    "block_quantized": "dense_blocks dense_blocks_pack take_blocks take_blocks_pack",
    "conv_layouts": """
        conv1d conv1d_ncw conv1d_nwc conv1d_transpose_ncw conv2d conv2d_hwcn conv2d_nchw
        conv2d_nhwc conv2d_transpose_nchw conv3d_ncdhw conv3d_ndhwc conv3d_transpose_ncdhw
        depthwise_conv2d_nchw depthwise_conv2d_nhwc group_conv1d_ncw group_conv1d_nwc
        group_conv1d_transpose_ncw group_conv2d_nchw group_conv2d_nhwc
        group_conv2d_transpose_nchw group_conv3d_transpose_ncdhw
    """,
    "convolution": "conv",
    "deformable": "correlation_nchw deformable_conv2d_nchw deformable_conv2d_nhwc",
    "dot_product_attention": "attention",
    "int4_dense": "dense_nibbles dense_nibbles_pack",
    "loss": "cross_entropy cross_entropy_with_logits nll_loss",
    "lstm_cell": "lstm",
    "matrix_products": "batch_matmul dense dense_pack matmul pack_weight",
    "norm": """
        batch_norm group_norm instance_norm l2_normalize layer_norm lrn rms_norm
        scale_shift_nchw scale_shift_nhwc
    """,
    "padding": "mirror_pad pad",
    "paged_kv_cache": "paged_attention write_pages",
    "pool": """
        adaptive_pool adaptive_pool1d adaptive_pool3d global_pool pool1d pool2d pool3d pool_grad
    """,
    "recurrent_layers": "pack_recurrent recurrent",
    "softmax_stages": "fast_softmax log_softmax softmax",
    "space_depth_transforms": """
        batch_to_space_nd depth_to_space dilate fifo_buffer flatten space_to_batch_nd
        space_to_depth
    """,
    "transposed_convolution": "conv_transpose",
    "upsample": "upsampling upsampling3d",
    "winograd": "winograd_conv2d winograd_weight",
}
"""Module -> its names."""
