"""Rank and length constraints of ONNX operators, which their schemas state in prose only.

    x:3+            the input x has rank 3 or more
    x:0|1           rank 0 or 1
    b:x             the rank of x
    pads#2*x-4      the list or input `pads` has that many elements, x being the rank of that input
    ends#@starts    as many elements as `starts`, a list or an input
    pads#2*@axes|x  twice the length of `axes`, or without that twice the rank of x

Inputs that are absent or of unknown shape are not checked.
"""

from __future__ import annotations

from collections.abc import Mapping

_WINDOW_RULES = "kernel_shape#{x}-2 strides#{x}-2 dilations#{x}-2 pads#2*{x}-4"
_CONV_RULES = "X:3+ W:X B:1 " + _WINDOW_RULES.format(x="X")
_POOL_RULES = "X:3+ " + _WINDOW_RULES.format(x="X")
_RECURRENT_RULES = "X:3 W:3 R:3 B:2 sequence_lens:1 initial_h:3"
_SLICE_RULES = (
    "data:1+ starts:0|1 ends:0|1 axes:0|1 steps:0|1 ends#@starts axes#@starts steps#@starts"
)
_CHANNEL_NORM_RULES = "input:2+ scale:1 B:1"
_QLINEAR_CONV_RULES = "x:3+ w:x B:1 " + _WINDOW_RULES.format(x="x")
_PAST_RULES = "past_key:4 past_value:4 past_sequence_length:0|1"
_CONTRIB_DOMAIN = "com.microsoft"
_ML_DOMAIN = "ai.onnx.ml"

SHAPE_LIMITS: Mapping[tuple[str, str], str] = {
    # windows
    ("", "Conv"): _CONV_RULES,
    ("", "ConvTranspose"): f"{_CONV_RULES} output_padding#X-2",
    ("", "ConvInteger"): "x:3+ w:x " + _WINDOW_RULES.format(x="x"),
    ("", "QLinearConv"): _QLINEAR_CONV_RULES,
    ("", "DeformConv"): "X:3+ W:X offset:X B:1 mask:X " + _WINDOW_RULES.format(x="X"),
    ("", "MaxPool"): _POOL_RULES,
    ("", "AveragePool"): _POOL_RULES,
    ("", "LpPool"): _POOL_RULES,
    ("", "GlobalAveragePool"): "X:2+",
    ("", "GlobalMaxPool"): "X:2+",
    ("", "GlobalLpPool"): "X:2+",
    ("", "MaxUnpool"): "X:3+ I:X output_shape:1 output_shape#X "
    "kernel_shape#X-2 strides#X-2 pads#2*X-4",
    ("", "MaxRoiPool"): "X:4 rois:2 pooled_shape#2",
    ("", "RoiAlign"): "X:4 rois:2 batch_indices:1",
    ("", "Col2Im"): "input:3 image_shape:1 block_shape:1 strides#@image_shape "
    "dilations#@image_shape pads#2*@image_shape block_shape#@image_shape",
    ("", "DepthToSpace"): "input:4",
    ("", "SpaceToDepth"): "input:4",
    ("", "GridSample"): "X:3+ grid:X",
    ("", "AffineGrid"): "theta:3 size:1",
    ("", "Resize"): "X:1+ scales:1 sizes:1 roi:1",
    ("", "Upsample"): "X:1+ scales:1 scales#X",
    ("", "NonMaxSuppression"): "boxes:3 scores:3 max_output_boxes_per_class:0|1 "
    "iou_threshold:0|1 score_threshold:0|1 max_output_boxes_per_class#1 iou_threshold#1 "
    "score_threshold#1",
    ("", "Crop"): "input:4 border#4 scale#2",
    ("", "ImageScaler"): "input:4",
    # normalisation
    ("", "BatchNormalization"): "X:1+ scale:1 B:1 mean:1 var:1 input_mean:1 input_var:1",
    ("", "InstanceNormalization"): _CHANNEL_NORM_RULES,
    ("", "GroupNormalization"): "X:2+ scale:1 bias:1",
    ("", "LayerNormalization"): "X:1+",
    ("", "RMSNormalization"): "X:1+",
    ("", "LRN"): "X:2+",
    ("", "LpNormalization"): "input:1+",
    # recurrence and products
    ("", "RNN"): _RECURRENT_RULES,
    ("", "GRU"): _RECURRENT_RULES,
    ("", "LSTM"): f"{_RECURRENT_RULES} initial_c:3 P:2",
    ("", "Gemm"): "A:2 B:2 C:0|1|2",
    ("", "MatMul"): "A:1+ B:1+",
    ("", "MatMulInteger"): "A:1+ B:1+",
    ("", "QLinearMatMul"): "a:1+ b:1+",
    ("", "Det"): "X:2+",
    ("", "Attention"): "Q:3|4 K:Q V:Q past_key:4 past_value:4",
    ("", "RotaryEmbedding"): "X:3|4",
    # reductions
    **{
        ("", f"Reduce{name}"): "axes:1"
        for name in "L1 L2 LogSum LogSumExp Max Mean Min Prod Sum SumSquare".split()
    },
    # movement
    ("", "Transpose"): "perm#data",
    ("", "Pad"): "pads:1|2 axes:1 pads#2*@axes|data",
    ("", "Slice"): _SLICE_RULES,
    ("", "Split"): "input:1+ split:1",
    ("", "Concat"): "inputs:1+",
    ("", "Tile"): "repeats:1 repeats#input",
    ("", "Reshape"): "shape:1",
    ("", "Expand"): "shape:1",
    ("", "Squeeze"): "axes:0|1",
    ("", "Unsqueeze"): "axes:0|1",
    ("", "ConstantOfShape"): "input:1",
    ("", "Gather"): "data:1+",
    ("", "GatherElements"): "data:1+ indices:data",
    ("", "GatherND"): "data:1+ indices:1+",
    ("", "Scatter"): "data:1+ indices:data updates:data",
    ("", "ScatterElements"): "data:1+ indices:data updates:data",
    ("", "ScatterND"): "data:1+ indices:1+",
    ("", "TensorScatter"): "past_cache:1+ update:past_cache write_indices:1",
    ("", "Compress"): "input:1+ condition:1",
    ("", "ReverseSequence"): "input:2+ sequence_lens:1",
    ("", "Trilu"): "input:2+ k:0|1",
    ("", "EyeLike"): "input:2",
    ("", "OneHot"): "depth:0|1 depth#1 values:1 values#2",
    ("", "TopK"): "X:1+ K:0|1 K#1",
    ("", "CumSum"): "x:1+ axis:0|1 axis#1",
    ("", "CumProd"): "x:1+ axis:0|1 axis#1",
    ("", "Range"): "start#1 limit#1 delta#1",
    # signals, random numbers, losses
    ("", "DFT"): "input:2+ dft_length#1 axis#1",
    ("", "STFT"): "signal:2|3 frame_step#1 window:1 frame_length#1",
    ("", "BlackmanWindow"): "size#1",
    ("", "HammingWindow"): "size#1",
    ("", "HannWindow"): "size#1",
    ("", "MelWeightMatrix"): "num_mel_bins#1 dft_length#1 sample_rate#1 lower_edge_hertz#1 "
    "upper_edge_hertz#1",
    ("", "Multinomial"): "input:2",
    ("", "NegativeLogLikelihoodLoss"): "input:2+ weight:1",
    ("", "SoftmaxCrossEntropyLoss"): "scores:2+ weights:1",
    ("", "SplitToSequence"): "input:1+ split:0|1",
    ("", "TfIdfVectorizer"): "X:1|2",
    ("", "SequenceAt"): "position#1",
    ("", "SequenceInsert"): "position#1",
    ("", "SequenceErase"): "position#1",
    # com.microsoft
    (_CONTRIB_DOMAIN, "Attention"): "input:3 weights:2 bias:1 mask_index:1|2|3|4 past:5 "
    "attention_bias:4 past_sequence_length:0|1",
    (_CONTRIB_DOMAIN, "QAttention"): "input:3 weight:2 bias:1 mask_index:1|2|3|4 past:5",
    (_CONTRIB_DOMAIN, "MultiHeadAttention"): "query:3|5 key:3|4|5 value:3|4 bias:1 "
    f"key_padding_mask:1|2|3 attention_bias:4 {_PAST_RULES} cache_indirection:3",
    (_CONTRIB_DOMAIN, "DecoderMaskedMultiHeadAttention"): "query:3 key:3|4 value:3|4 mask_index:2 "
    f"attention_bias:4 {_PAST_RULES} beam_width#1 cache_indirection:3 bias:1",
    (_CONTRIB_DOMAIN, "GroupQueryAttention"): "query:3 key:3 value:3 past_key:4 past_value:4 "
    "cos_cache:2 sin_cache:2 attention_bias:4 head_sink:1 total_sequence_length#1",
    (_CONTRIB_DOMAIN, "RotaryEmbedding"): "input:3|4 position_ids:0|1|2 cos_cache:2 sin_cache:2",
    (_CONTRIB_DOMAIN, "EmbedLayerNormalization"): "input_ids:2 segment_ids:2 word_embedding:2 "
    "position_embedding:2 segment_embedding:2 gamma:1 beta:1 mask:2 position_ids:2",
    (_CONTRIB_DOMAIN, "SkipLayerNormalization"): "input:2|3 skip:2|3 gamma:1 beta:1 bias:1",
    (_CONTRIB_DOMAIN, "SkipSimplifiedLayerNormalization"): "input:2|3 skip:2|3 gamma:1 bias:1",
    (_CONTRIB_DOMAIN, "GroupNorm"): "X:4 gamma:1 beta:1",
    (_CONTRIB_DOMAIN, "SkipGroupNorm"): "X:4 gamma:1 beta:1 skip:2|4 bias:1",
    (_CONTRIB_DOMAIN, "NhwcConv"): _CONV_RULES,
    (_CONTRIB_DOMAIN, "NhwcFusedConv"): f"{_CONV_RULES} Z:X",
    (_CONTRIB_DOMAIN, "FusedConv"): f"{_CONV_RULES} Z:X",
    (_CONTRIB_DOMAIN, "NhwcMaxPool"): "x:4 " + _WINDOW_RULES.format(x="x"),
    (_CONTRIB_DOMAIN, "QLinearConv"): _QLINEAR_CONV_RULES,
    (_CONTRIB_DOMAIN, "QLinearAveragePool"): _POOL_RULES,
    (_CONTRIB_DOMAIN, "QLinearGlobalAveragePool"): "X:3+",
    (_CONTRIB_DOMAIN, "FusedGemm"): "A:2 B:2 C:0|1|2",
    (_CONTRIB_DOMAIN, "QGemm"): "A:2 B:2 C:0|1|2",
    (_CONTRIB_DOMAIN, "FusedMatMul"): "A:1+ B:1+",
    (_CONTRIB_DOMAIN, "TransposeMatMul"): "A:1+ B:1+",
    (_CONTRIB_DOMAIN, "MatMulIntegerToFloat"): "A:1+ B:1+",
    (_CONTRIB_DOMAIN, "DynamicQuantizeMatMul"): "A:1+ B:1+",
    (_CONTRIB_DOMAIN, "MatMulNBits"): "A:1+ g_idx:1 bias:1",
    (_CONTRIB_DOMAIN, "DynamicQuantizeLSTM"): "X:3 W:3 R:3 B:2 sequence_lens:1 initial_h:3 "
    "initial_c:3 P:2",
    (_CONTRIB_DOMAIN, "GatherND"): "data:1+ indices:1+",
    (_CONTRIB_DOMAIN, "GridSample"): "X:4 Grid:4",
    (_CONTRIB_DOMAIN, "Pad"): "pads:1|2 pads#2*data",
    (_CONTRIB_DOMAIN, "Trilu"): "X:2+ k:0|1",
    (_CONTRIB_DOMAIN, "CDist"): "A:2 B:2",
    (_CONTRIB_DOMAIN, "ExpandDims"): "axis#1",
    (_CONTRIB_DOMAIN, "RelativePositionBias"): "bias_table:2 query_length#1 key_length#1",
    (_CONTRIB_DOMAIN, "BiasSplitGelu"): "X:3 bias:1",
    # classical machine learning
    (_ML_DOMAIN, "ArrayFeatureExtractor"): "X:1+",
    (_ML_DOMAIN, "FeatureVectorizer"): "X:1|2",
    (_ML_DOMAIN, "Normalizer"): "X:1|2",
    (_ML_DOMAIN, "LinearClassifier"): "X:1|2",
    (_ML_DOMAIN, "LinearRegressor"): "X:1|2",
    (_ML_DOMAIN, "SVMClassifier"): "X:1|2",
    (_ML_DOMAIN, "SVMRegressor"): "X:1|2",
    (_ML_DOMAIN, "TreeEnsemble"): "X:1|2",
    (_ML_DOMAIN, "TreeEnsembleClassifier"): "X:1|2",
    (_ML_DOMAIN, "TreeEnsembleRegressor"): "X:1|2",
    (_ML_DOMAIN, "ZipMap"): "X:1|2",
}
"""(domain, operator) -> its rules, separated by blanks."""
