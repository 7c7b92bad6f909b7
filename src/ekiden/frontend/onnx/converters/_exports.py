"""Which operators of ONNX each family converts. Made by scripts/generate_exports.py."""

ROWS = {
    "cast": "BitCast Cast CastLike",
    "contrib": """
        SimplifiedLayerNormalization com.microsoft:BiasGelu com.microsoft:BiasSoftmax
        com.microsoft:BiasSplitGelu com.microsoft:CDist com.microsoft:EmbedLayerNormalization
        com.microsoft:ExpandDims com.microsoft:FastGelu com.microsoft:FusedConv
        com.microsoft:FusedGemm com.microsoft:FusedMatMul com.microsoft:FusedMatMulActivation
        com.microsoft:GatherND com.microsoft:Gelu com.microsoft:GridSample
        com.microsoft:GroupNorm com.microsoft:NhwcConv com.microsoft:NhwcFusedConv
        com.microsoft:Pad com.microsoft:QuickGelu com.microsoft:Range
        com.microsoft:RelativePositionBias com.microsoft:SimplifiedLayerNormalization
        com.microsoft:SkipGroupNorm com.microsoft:SkipLayerNormalization
        com.microsoft:SkipSimplifiedLayerNormalization com.microsoft:TransposeMatMul
        com.microsoft:Trilu
    """,
    "contrib_attention": """
        com.microsoft:Attention com.microsoft:DecoderMaskedMultiHeadAttention
        com.microsoft:GroupQueryAttention com.microsoft:MultiHeadAttention
        com.microsoft:QAttention com.microsoft:RotaryEmbedding
    """,
    "contrib_quantize": """
        com.microsoft:DequantizeLinear com.microsoft:DynamicQuantizeMatMul
        com.microsoft:GatherBlockQuantized com.microsoft:MatMulIntegerToFloat
        com.microsoft:MatMulNBits com.microsoft:NhwcMaxPool com.microsoft:QGemm
        com.microsoft:QLinearAdd com.microsoft:QLinearAveragePool com.microsoft:QLinearConcat
        com.microsoft:QLinearConv com.microsoft:QLinearGlobalAveragePool
        com.microsoft:QLinearLeakyRelu com.microsoft:QLinearMul com.microsoft:QLinearReduceMean
        com.microsoft:QLinearSigmoid com.microsoft:QLinearSoftmax com.microsoft:QLinearWhere
        com.microsoft:QuantizeLinear
    """,
    "contrib_search": """
        com.microsoft:BeamSearch com.microsoft:GreedySearch com.microsoft:Sampling
        com.microsoft:WhisperBeamSearch
    """,
    "control_flow": "If Loop Scan",
    "convolution": "Conv ConvTranspose",
    "data_movement": """
        Concat CumProd CumSum DepthToSpace Gather GatherElements OneHot Pad Slice SpaceToDepth
        Split Transpose
    """,
    "elementwise": """
        Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr
        BitwiseXor Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater
        GreaterOrEqual HardSigmoid HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean
        Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin
        Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor
    """,
    "experimental": "Affine Crop ImageScaler ParametricSoftplus ScaledTanh",
    "gather_scatter": """
        Compress GatherND MaxUnpool NonZero ReverseSequence Scatter ScatterElements ScatterND
        TensorScatter TopK Unique
    """,
    "image": "AffineGrid Col2Im DeformConv GridSample NonMaxSuppression RoiAlign",
    "linear": "Det Einsum EyeLike Gemm MatMul Trilu",
    "ml_features": """
        TfIdfVectorizer ai.onnx.ml:ArrayFeatureExtractor ai.onnx.ml:Binarizer
        ai.onnx.ml:CategoryMapper ai.onnx.ml:FeatureVectorizer ai.onnx.ml:Imputer
        ai.onnx.ml:LabelEncoder ai.onnx.ml:Normalizer ai.onnx.ml:OneHotEncoder ai.onnx.ml:Scaler
        ai.onnx.ml:ZipMap
    """,
    "ml_models": """
        ai.onnx.ml:LinearClassifier ai.onnx.ml:LinearRegressor ai.onnx.ml:SVMClassifier
        ai.onnx.ml:SVMRegressor ai.onnx.ml:TreeEnsemble ai.onnx.ml:TreeEnsembleClassifier
        ai.onnx.ml:TreeEnsembleRegressor
    """,
    "norm": """
        BatchNormalization Dropout GroupNormalization Hardmax InstanceNormalization LRN
        LayerNormalization LogSoftmax LpNormalization MeanVarianceNormalization RMSNormalization
        Softmax
    """,
    "pool": "AveragePool GlobalAveragePool GlobalLpPool GlobalMaxPool LpPool MaxPool",
    "quantize": """
        ConvInteger DequantizeLinear MatMulInteger QLinearConv QLinearMatMul QuantizeLinear
    """,
    "random": "Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike",
    "recurrent": "GRU LSTM RNN com.microsoft:DynamicQuantizeLSTM",
    "reduction": """
        ArgMax ArgMin ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean
        ReduceMin ReduceProd ReduceSum ReduceSumSquare
    """,
    "resize": "Resize Upsample",
    "sequence": """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceAt
        SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength SequenceMap
        SplitToSequence
    """,
    "shape": """
        Constant ConstantOfShape Expand Flatten Identity Range Reshape Shape Size Squeeze Tile
        Unsqueeze
    """,
    "signal": "DFT MelWeightMatrix STFT",
    "strings": "RegexFullMatch StringConcat StringNormalizer StringSplit",
    "training": """
        ai.onnx.preview.training:Adagrad ai.onnx.preview.training:Adam
        ai.onnx.preview.training:Gradient ai.onnx.preview.training:Momentum
    """,
}
"""Family -> its operators, behind their domain."""
