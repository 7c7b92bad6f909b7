"""Operator signatures outside of ONNX: com.microsoft's (docs/ContribOperators.md of ONNX Runtime)
and removed experimental ones. Entries have the format of ekiden.frontend.onnx.signature_table.
"""

from __future__ import annotations

_CONV_ATTRIBUTES = "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I"
_POOL_ATTRIBUTES = "auto_pad:s ceil_mode:i kernel_shape:I! pads:I strides:I"
_ACTIVATION_ARGS = "activation_alpha:f activation_beta:f activation_gamma:f"
_TRANSPOSE_FLAGS = "transA:i transB:i"
_BATCH_FLAGS = "transBatchA:i transBatchB:i"
_QLINEAR_BINARY = "A A_scale A_zero_point? B B_scale B_zero_point? C_scale C_zero_point? - C -"
_QLINEAR_UNARY = "X X_scale X_zero_point? Y_scale Y_zero_point? - Y -"
_SKIP_OUTPUTS = "output mean? inv_std_var? input_skip_bias_sum?"
_SIMPLIFIED_LAYER_NORM = "1 X scale B? - Y mean? inv_std_var? - axis:i epsilon:f stash_type:i"
_PAST_KEY_VALUE = "past_key? past_value?"
_STEP_INPUTS = "beam_width? cache_indirection?"
_SEARCH_ATTRIBUTES = (
    "decoder:g! decoder_start_token_id:i early_stopping:i encoder:g eos_token_id:i! "
    "init_decoder:g model_type:i no_repeat_ngram_size:i pad_token_id:i! vocab_size:i"
)
_BEAM_INPUTS = (
    "num_beams num_return_sequences length_penalty? repetition_penalty? vocab_mask? "
    "prefix_vocab_mask? attention_mask? decoder_input_ids? logits_processor?"
)

# fmt: off
SIGNATURES: dict[str, dict[str, str]] = {
    "": {
        "Affine": "1 X - Y - alpha:f beta:f",
        "Crop": "1 input - output - border:I scale:I",
        "ImageScaler": "1 input - output - bias:F scale:f",
        "ParametricSoftplus": "1 X - Y - alpha:f! beta:f!",
        "ScaledTanh": "1 input - output - alpha:f! beta:f!",
        "SimplifiedLayerNormalization": _SIMPLIFIED_LAYER_NORM,
    },
    "com.microsoft": {
        "Attention": "1 input weights bias? mask_index? past? attention_bias? "
            "past_sequence_length? - output present? - do_rotary:i mask_filter_value:f "
            "num_heads:i! past_present_share_buffer:i qkv_hidden_sizes:I rotary_embedding_dim:i "
            "scale:f unidirectional:i",
        "BeamSearch": f"1 input_ids max_length min_length? {_BEAM_INPUTS} - sequences "
            f"sequences_scores? scores? - {_SEARCH_ATTRIBUTES}",
        "BiasGelu": "1 A B - C -",
        "BiasSoftmax": "1 data bias - output - axis:i is_inner_broadcast:i!",
        "BiasSplitGelu": "1 X bias - Y -",
        "CDist": "1 A B - C - metric:s",
        "DecoderMaskedMultiHeadAttention": "1 query key? value? mask_index? attention_bias? "
            f"{_PAST_KEY_VALUE} past_sequence_length? {_STEP_INPUTS} bias? - output "
            "present_key? present_value? qk? - mask_filter_value:f num_heads:i! output_qk:i "
            "past_present_share_buffer:i scale:f",
        "DequantizeLinear": "1 x x_scale x_zero_point? - y - axis:i",
        "DynamicQuantizeLSTM": "1 X W R B? sequence_lens? initial_h? initial_c? P? W_scale "
            "W_zero_point R_scale R_zero_point - Y? Y_h? Y_c? - activation_alpha:F "
            "activation_beta:F activations:S clip:f direction:s hidden_size:i input_forget:i",
        "DynamicQuantizeMatMul": "1 A B b_scale b_zero_point? bias? - Y -",
        "EmbedLayerNormalization": "1 input_ids segment_ids? word_embedding position_embedding "
            "segment_embedding? gamma beta mask? position_ids? - output mask_index? "
            "embedding_sum? - epsilon:f mask_index_type:i",
        "ExpandDims": "1 X axis - Y -",
        "FastGelu": "1 X bias? - Y -",
        "FusedConv": f"1 X W B? Z? - Y - activation:s activation_params:F {_CONV_ATTRIBUTES}",
        "FusedGemm": f"1 A B C? - Y - activation:s {_ACTIVATION_ARGS} alpha:f beta:f "
            f"{_TRANSPOSE_FLAGS}",
        "FusedMatMul": f"1 A B - Y - alpha:f {_TRANSPOSE_FLAGS} {_BATCH_FLAGS}",
        "FusedMatMulActivation": f"1 A B - Y - activation:s! {_ACTIVATION_ARGS} "
            f"activation_axis:i alpha:f {_TRANSPOSE_FLAGS} {_BATCH_FLAGS}",
        "GatherBlockQuantized": "1 data indices scales zero_points? - output - bits:i "
            "block_size:i gather_axis:i quantize_axis:i",
        "GatherND": "1 data indices - output -",
        "Gelu": "1 X - Y -",
        "GridSample": "1 X Grid - Y - align_corners:i mode:s padding_mode:s",
        "GroupNorm": "1 X gamma beta - Y - activation:i! channels_last:i epsilon:f groups:i!",
        "GroupQueryAttention": f"1 query key? value? {_PAST_KEY_VALUE} seqlens_k "
            "total_sequence_length cos_cache? sin_cache? position_ids? attention_bias? head_sink? "
            "k_scale? v_scale? q_norm_weight? k_norm_weight? query_seqlens? - output present_key? "
            "present_value? output_qk? - causal:i do_rotary:i k_norm_epsilon:f k_quant_type:s "
            "kv_cache_bit_width:i kv_num_heads:i! local_window_size:i num_heads:i! "
            "q_norm_epsilon:f qk_norm_epsilon:f qk_output:i rotary_interleaved:i scale:f "
            "sliding_window_cache:i smooth_softmax:i softcap:f v_quant_type:s",
        "GreedySearch": "1 input_ids max_length min_length? repetition_penalty? vocab_mask? "
            f"prefix_vocab_mask? attention_mask? - sequences - {_SEARCH_ATTRIBUTES}",
        "MatMulIntegerToFloat": "1 A B a_scale b_scale a_zero_point? b_zero_point? bias? - Y -",
        "MatMulNBits": "1 A B scales zero_points? g_idx? bias? - Y - K:i! N:i! accuracy_level:i "
            "bits:i block_size:i! weight_prepacked:i",
        "MultiHeadAttention": "1 query key? value? bias? key_padding_mask? attention_bias? "
            f"{_PAST_KEY_VALUE} past_sequence_length? cache_indirection? - output present_key? "
            "present_value? qk? - mask_filter_value:f num_heads:i! scale:f unidirectional:i",
        "NhwcConv": f"1 X W B? - Y - {_CONV_ATTRIBUTES}",
        "NhwcFusedConv": f"1 X W B? Z? - Y - activation:s activation_params:F {_CONV_ATTRIBUTES}",
        "NhwcMaxPool": f"1 x - y - dilations:I {_POOL_ATTRIBUTES}",
        "Pad": "1 data pads value? - output - mode:s",
        "QAttention": "1 input weight bias input_scale weight_scale mask_index? "
            "input_zero_point? weight_zero_point? past? - output present? - do_rotary:i "
            "mask_filter_value:f num_heads:i! past_present_share_buffer:i scale:f "
            "unidirectional:i",
        "QGemm": "1 A a_scale a_zero_point B b_scale b_zero_point C? y_scale? y_zero_point? - Y "
            f"- alpha:f {_TRANSPOSE_FLAGS}",
        "QLinearAdd": f"1 {_QLINEAR_BINARY}",
        "QLinearAveragePool": "1 X x_scale x_zero_point? y_scale y_zero_point? - Y - "
            f"channels_last:i count_include_pad:i {_POOL_ATTRIBUTES}",
        "QLinearConcat": "1 Y_scale Y_zero_point inputs*1 - Y - axis:i!",
        "QLinearConv": "1 x x_scale x_zero_point w w_scale w_zero_point y_scale y_zero_point B? "
            f"- y - channels_last:i {_CONV_ATTRIBUTES}",
        "QLinearGlobalAveragePool": "1 X x_scale x_zero_point y_scale y_zero_point - Y - "
            "channels_last:i",
        "QLinearLeakyRelu": f"1 {_QLINEAR_UNARY} alpha:f",
        "QLinearMul": f"1 {_QLINEAR_BINARY}",
        "QLinearReduceMean": "1 data data_scale data_zero_point? reduced_scale "
            "reduced_zero_point? - reduced - axes:I! keepdims:i!",
        "QLinearSigmoid": f"1 {_QLINEAR_UNARY}",
        "QLinearSoftmax": "1 X X_scale x_zero_point? y_scale y_zero_point - Y - axis:i opset:i!",
        "QLinearWhere": "1 condition X x_scale x_zero_point Y y_scale y_zero_point z_scale "
            "z_zero_point - Z -",
        "QuantizeLinear": "1 x y_scale y_zero_point? - y - axis:i",
        "QuickGelu": "1 X - Y - alpha:f",
        "Range": "1 start limit delta? - Y -",
        "RelativePositionBias": "1 bias_table query_length key_length - output - "
            "is_bidirectional:i max_distance:i!",
        "RotaryEmbedding": "1 input position_ids cos_cache sin_cache - output - interleaved:i "
            "is_packed_batching:i num_heads:i rotary_embedding_dim:i scale:f",
        "Sampling": "1 input_ids max_length min_length? repetition_penalty? vocab_mask? "
            "prefix_vocab_mask? attention_mask? presence_mask? seed? - sequences "
            f"filtered_logits? - custom:i filter_value:f min_tokens_to_keep:i {_SEARCH_ATTRIBUTES} "
            "presence_penalty:f temperature:f top_p:f",
        "SimplifiedLayerNormalization": _SIMPLIFIED_LAYER_NORM,
        "SkipGroupNorm": "1 X gamma beta skip bias? - Y S? - activation:i! channels_last:i "
            "epsilon:f groups:i!",
        "SkipLayerNormalization": f"1 input skip gamma beta? bias? - {_SKIP_OUTPUTS} - epsilon:f",
        "SkipSimplifiedLayerNormalization": f"1 input skip gamma bias? - {_SKIP_OUTPUTS} - "
            "epsilon:f",
        "TransposeMatMul": f"1 A B - Y - alpha:f {_TRANSPOSE_FLAGS} {_BATCH_FLAGS}",
        "Trilu": "1 X k? - Y - upper:i",
        "WhisperBeamSearch": f"1 input_ids max_length min_length? {_BEAM_INPUTS} "
            "cross_qk_layer_head? extra_decoding_ids? temperature? - sequences "
            "sequences_scores? scores? cross_qk? "
            f"non_speech_probs? - {_SEARCH_ATTRIBUTES} beginning_timestamp_token_id:i "
            "decoder_output_cross_qk:i no_speech_token_id:i no_timestamps_token_id:i "
            "start_of_lm_token_id:i transcribe_token_id:i translate_token_id:i",
    },
}
# fmt: on
