"""File formats and objects that no frontend accepts, each with advice for the user."""

from __future__ import annotations

from ekiden.frontend.packages import Package
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class RejectedKind:
    """File format or object that no frontend accepts, with advice for the user.

    `magic_bytes`, `marker_files`, `archive_members` and `class_names` are as those of a frontend;
    `converter` is the package that the advice needs.
    """

    description: str
    suffixes: tuple[str, ...]
    advice: str
    magic_bytes: tuple[tuple[int, bytes], ...] = ()
    marker_files: tuple[str, ...] = ()
    archive_members: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    converter: Package | None = None


def _onnx_converter(*package: str) -> Package:
    """Return the package that converts models to ONNX: module, oldest version, function."""
    module, oldest, function = package
    return Package(module, (module,), oldest, required_function=function)


_CONVERT_ADVICE = "convert it to ONNX by"
_ORIGINAL_MODEL_ADVICE = "give ekiden.compile the model that it was made of"

REJECTED_KINDS = (
    RejectedKind(
        "a pointer of Git LFS",
        (),
        "fetch the file itself: git lfs pull",
        magic_bytes=((0, b"version https://git-lfs"),),
    ),
    RejectedKind(
        "a web page",
        (".html",),
        "the download gave no model: look at what it says",
        magic_bytes=((0, b"<!DOCTYPE"), (0, b"<!doctype"), (0, b"<html")),
    ),
    RejectedKind(
        "a file of TorchScript",
        (),
        "give ekiden.compile the module, loaded by torch.jit.load, with example_inputs",
        archive_members=("constants.pkl",),
    ),
    RejectedKind(
        "what torch.save wrote",
        (),
        "give ekiden.compile the module, loaded by torch.load, with example_inputs",
        magic_bytes=((0, b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."),),
        archive_members=("data.pkl",),
    ),
    RejectedKind(
        "a file of PyTorch that Python has to load",
        (".pt", ".pth", ".ckpt"),
        "give ekiden.compile the module, loaded by torch.load or torch.jit.load, with "
        "example_inputs",
    ),
    RejectedKind(
        "a checkpoint of transformers",
        (),
        "give ekiden.compile the module that from_pretrained "
        "makes of it, with example_inputs, or run it by `ekiden generate`",
        marker_files=(
            "model.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "pytorch_model.bin.index.json",
        ),
    ),
    RejectedKind(
        "weights alone",
        (".safetensors", ".npz", ".msgpack", ".pdiparams", ".params", ".weights.h5"),
        "load them into the model in its framework, and give ekiden.compile that model",
        magic_bytes=((5, b'\0\0\0{"'),),
        marker_files=("checkpoint", "_CHECKPOINT_METADATA", "_METADATA"),
        class_names=("builtins.dict",),
    ),
    RejectedKind(
        "in ONNX Runtime's own format",
        (".ort",),
        "give ekiden.compile the .onnx file that it was made of",
        magic_bytes=((4, b"ORTM"),),
        class_names=("onnxruntime.InferenceSession",),
    ),
    RejectedKind(
        "pickled",
        (".pkl", ".pickle", ".joblib"),
        "load it; ekiden.compile takes what is a model of a framework",
        magic_bytes=tuple((0, bytes((0x80, protocol))) for protocol in range(2, 6)),
    ),
    RejectedKind(
        "an expression of Relay",
        (),
        "make a function of it: relay.Function(parameters, it)",
        class_names=("ekiden.ExprWithOp",),
    ),
    RejectedKind(
        "a part of an ONNX model",
        (),
        "make a model of it by onnx.helper.make_model",
        class_names=("onnx.GraphProto", "onnx.FunctionProto"),
    ),
    RejectedKind(
        "a model of LightGBM",
        (),
        _CONVERT_ADVICE,
        class_names=("lightgbm.LGBMModel", "lightgbm.Booster"),
        converter=_onnx_converter("onnxmltools", "1.12", "convert_lightgbm"),
    ),
    RejectedKind(
        "a model of XGBoost",
        (".ubj",),
        _CONVERT_ADVICE,
        class_names=("xgboost.XGBModel", "xgboost.Booster"),
        converter=_onnx_converter("onnxmltools", "1.12", "convert_xgboost"),
    ),
    RejectedKind(
        "a model of CatBoost",
        (".cbm",),
        "save it by save_model(path, format='onnx')",
        class_names=("catboost.CatBoost",),
    ),
    RejectedKind(
        "an estimator of scikit-learn",
        (),
        _CONVERT_ADVICE,
        class_names=("sklearn.BaseEstimator",),
        converter=_onnx_converter("skl2onnx", "1.17", "to_onnx"),
    ),
    RejectedKind(
        "a module of Flax",
        (),
        "give ekiden.compile a function that calls it, as "
        "lambda x: module.apply(variables, x), with example_inputs",
        class_names=("flax.Module",),
    ),
    RejectedKind(
        "lowered already",
        (),
        "give ekiden.compile the function, or jax.export.export of it",
        class_names=("jax.Lowered", "jax.Compiled"),
    ),
    RejectedKind(
        "a function of TensorFlow for inputs of many types",
        (),
        "give ekiden.compile f.get_concrete_function(tf.TensorSpec(...))",
        class_names=("tensorflow.Function",),
    ),
    RejectedKind(
        "a layer of Keras",
        (),
        "make a model of it: keras.Sequential([keras.Input(...), it])",
        class_names=("keras.Layer",),
    ),
    RejectedKind(
        "a module of TensorFlow",
        (),
        "give ekiden.compile one of its functions, by "
        "get_concrete_function, or the folder that tf.saved_model.save wrote",
        class_names=("tensorflow.Module",),
    ),
    RejectedKind(
        "a graph of TensorFlow",
        (),
        "give ekiden.compile its GraphDef, frozen: as_graph_def()",
        class_names=("tensorflow.Graph",),
    ),
    RejectedKind(
        "a model of Keras 2",
        (),
        "export it, and give ekiden.compile the folder: model.export(path)",
        class_names=("tf_keras.Model",),
    ),
    RejectedKind(
        "a model of Keras 2",
        (".h5", ".hdf5"),
        "give ekiden.compile the model, loaded by keras.models.load_model",
        magic_bytes=((0, b"\x89HDF\r\n"),),
    ),
    RejectedKind(
        "a checkpoint of a language model",
        (".gguf",),
        "run it by `ekiden generate`",
        magic_bytes=((0, b"GGUF"),),
    ),
    RejectedKind(
        "a model of CoreML",
        (".mlmodel", ".mlpackage"),
        _CONVERT_ADVICE,
        class_names=("coremltools.MLModel",),
        converter=_onnx_converter("onnxmltools", "1.12", "convert_coreml"),
    ),
    RejectedKind(
        "compiled already",
        (".eki", ".so", ".dll", ".dylib"),
        "load it by ekiden.load, or look into it by `ekiden inspect`",
        magic_bytes=((0, b"\x7fELF"),),
    ),
    RejectedKind(
        "a model of OpenVINO",
        (".xml",),
        _ORIGINAL_MODEL_ADVICE,
        class_names=("openvino.Model", "openvino.CompiledModel"),
    ),
    RejectedKind(
        "made for another engine",
        (".engine", ".plan", ".trt", ".pte", ".mnn"),
        _ORIGINAL_MODEL_ADVICE,
    ),
    RejectedKind("a model of Caffe", (".caffemodel", ".prototxt"), "convert it to ONNX"),
    RejectedKind(
        "compressed",
        (".gz", ".tgz", ".xz", ".bz2", ".zst", ".zip", ".tar"),
        "unpack it, and give ekiden.compile the model that is in it",
        magic_bytes=((0, b"\x1f\x8b\x08"), (0, b"\xfd7zXZ"), (0, b"BZh"), (0, b"\x28\xb5\x2f\xfd")),
    ),
    RejectedKind(
        "a model of PaddlePaddle",
        (".pdmodel",),
        _CONVERT_ADVICE,
        class_names=("paddle.Layer",),
        converter=_onnx_converter("paddle2onnx", "1.2", "export"),
    ),
)
