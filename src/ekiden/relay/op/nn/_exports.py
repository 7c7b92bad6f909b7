"""Where the names of `ekiden.relay.op.nn` stand. Made by scripts/generate_exports.py."""

EXPORTED_NAMES = {
    "ekiden.relay.op.image": "upsampling",
    "activation": """
        bias_add dropout dropout_raw fast_softmax leaky_relu log_softmax prelu relu softmax
    """,
    "backward": "avg_pool2d_grad conv2d_backward_weight max_pool2d_grad",
    "bitserial": "bitpack bitserial_conv2d bitserial_dense",
    "block_quantized": """
        contrib_dense_blocks_pack contrib_take_blocks_pack dense_blocks take_blocks
    """,
    "conv": "contrib_conv2d_nchwc contrib_depthwise_conv2d_nchwc conv1d conv2d conv2d_transpose",
    "conv_variants": "conv1d_transpose conv3d conv3d_transpose correlation deformable_conv2d",
    "dot_product_attention": "attention",
    "int4_dense": "contrib_dense_nibbles contrib_dense_nibbles_pack",
    "matrix_products": "batch_matmul contrib_dense_pack contrib_pack_weight dense matmul",
    "norm": "batch_norm group_norm instance_norm layer_norm lrn rms_norm",
    "padding": "pad",
    "paged_attention": """
        contrib_paged_attention contrib_paged_attention_with_sinks contrib_write_pages
    """,
    "pool": """
        adaptive_avg_pool2d avg_pool1d avg_pool2d avg_pool3d global_avg_pool1d global_avg_pool2d
        global_avg_pool3d global_max_pool1d global_max_pool2d global_max_pool3d max_pool1d
        max_pool2d max_pool3d
    """,
    "recurrent_layers": "contrib_pack_recurrent gru lstm packed_recurrent recurrent rnn",
    "space_to_batch": """
        adaptive_avg_pool1d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d batch_to_space_nd cross_entropy cross_entropy_with_logits
        depth_to_space dilate fifo_buffer l2_normalize mirror_pad nll_loss space_to_batch_nd
        space_to_depth
    """,
    "sparse": "sparse_add sparse_conv2d sparse_dense sparse_transpose",
    "volume_resize": "upsampling3d",
    "winograd": """
        contrib_conv2d_winograd_weight_transform
        contrib_conv2d_winograd_without_weight_transform
    """,
    "ekiden.relay.op.reshaping": "batch_flatten",
}
"""Module -> its names."""
