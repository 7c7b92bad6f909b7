"""TensorFlow's frozen graphs and SavedModels whose attributes, constants and bytes are changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
from case_kinds import Kind, Loader, case_folder
from model_kinds import loader
from mutation import extreme, mutate_bytes

from ekiden.frontend.common.options import ImportOptions

IMAGE = (1, 6, 6, 2)


def _rows() -> list[Callable[[Any], Any]]:
    """Return functions of one operator, by its image."""
    import tensorflow as tf  # an extra

    raw, ones = tf.raw_ops, np.ones((3, 3, 2, 2), np.float32)

    def ints(*values: int) -> Any:  # noqa: ANN401
        return tf.constant(values, tf.int32)

    return [
        lambda x: raw.Conv2D(input=x, filter=ones, strides=[1, 2, 2, 1], padding="EXPLICIT",
                             explicit_paddings=[0, 0, 1, 1, 1, 1, 0, 0], dilations=[1, 1, 1, 1]),
        lambda x: raw.DepthwiseConv2dNative(input=x, filter=ones, strides=[1, 1, 1, 1],
                                            padding="SAME"),
        lambda x: raw.Conv2DBackpropInput(input_sizes=ints(1, 12, 12, 2), filter=ones,
                                          out_backprop=x, strides=[1, 2, 2, 1], padding="SAME"),
        lambda x: raw.MaxPool(input=x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="VALID"),
        lambda x: raw.AvgPool(value=x, ksize=[1, 3, 3, 1], strides=[1, 1, 1, 1], padding="SAME"),
        lambda x: raw.Pad(input=x, paddings=np.ones((4, 2), np.int32)),
        lambda x: raw.MirrorPad(input=x, paddings=np.ones((4, 2), np.int32), mode="REFLECT"),
        lambda x: raw.StridedSlice(input=x, begin=ints(0, 1, 1, 0), end=ints(1, 5, 5, 2),
                                   strides=ints(1, 2, 2, 1), begin_mask=1, end_mask=2),
        lambda x: raw.Slice(input=x, begin=ints(0, 1, 1, 0), size=ints(1, 3, 3, 2)),
        lambda x: raw.Reshape(tensor=x, shape=ints(1, -1, 2)),
        lambda x: raw.Tile(input=x, multiples=ints(1, 2, 2, 1)),
        lambda x: raw.Transpose(x=x, perm=ints(0, 2, 1, 3)),
        lambda x: raw.ResizeBilinear(images=x, size=ints(12, 12)),
        lambda x: raw.ResizeNearestNeighbor(images=x, size=ints(3, 3)),
        lambda x: raw.SpaceToBatchND(input=x, block_shape=ints(2, 2),
                                     paddings=np.zeros((2, 2), np.int32)),
        lambda x: raw.SpaceToDepth(input=x, block_size=2),
        lambda x: raw.GatherV2(params=x, indices=ints(0, 5, 2), axis=ints(1)[0]),
        lambda x: raw.GatherNd(params=x, indices=np.array([[0, 1], [0, 5]], np.int32)),
        lambda x: raw.ScatterNd(indices=np.array([[1], [3]], np.int32),
                                updates=np.ones((2, 3), np.float32), shape=ints(4, 3)),
        lambda x: raw.OneHot(indices=ints(0, 2), depth=ints(4)[0], on_value=np.float32(1),
                             off_value=np.float32(0), axis=-1),
        lambda x: raw.ExpandDims(input=x, axis=ints(1)[0]),
        lambda x: raw.Squeeze(input=x, axis=[0]),
        lambda x: raw.ConcatV2(values=[x, x], axis=ints(3)[0]),
        lambda x: raw.Pack(values=[x, x], axis=1),
        lambda x: raw.SplitV(value=x, size_splits=ints(2, 4), axis=ints(1)[0], num_split=2)[0],
        lambda x: raw.Sum(input=x, axis=ints(1, 2), keep_dims=True),
        lambda x: raw.ArgMax(input=x, dimension=ints(1)[0]),
        lambda x: raw.Cumsum(x=x, axis=ints(1)[0]),
        lambda x: raw.TopKV2(input=x, k=ints(1)[0])[0],
        lambda x: raw.Fill(dims=ints(2, 3), value=np.float32(1)),
        lambda x: raw.Range(start=ints(0)[0], limit=ints(9)[0], delta=ints(2)[0]),
        lambda x: raw.LinSpace(start=np.float32(0), stop=np.float32(1), num=ints(5)[0]),
        lambda x: raw.BroadcastTo(input=x, shape=ints(2, 6, 6, 2)),
        lambda x: raw.MatrixBandPart(input=x, num_lower=np.int64(1), num_upper=np.int64(0)),
        lambda x: raw.Roll(input=x, shift=ints(1), axis=ints(2)),
        lambda x: raw.ReverseV2(tensor=x, axis=ints(1)),
        lambda x: raw.LRN(input=x, depth_radius=2),
        lambda x: raw.DepthToSpace(input=raw.SpaceToDepth(input=x, block_size=2), block_size=2),
        lambda x: raw.ExtractImagePatches(images=x, ksizes=[1, 2, 2, 1], strides=[1, 2, 2, 1],
                                          rates=[1, 1, 1, 1], padding="VALID"),
    ]  # fmt: skip


def _graphs() -> list[Any]:
    """Return a GraphDef of each function."""
    import tensorflow as tf  # an extra

    definitions = []
    for function in _rows():
        with tf.Graph().as_default() as graph:
            x = tf.compat.v1.placeholder(tf.float32, IMAGE, "x")
            tf.identity(function(x), "y")
        definitions.append(graph.as_graph_def())
    return definitions


def _mutate_nodes(nodes: Any, rng: Random) -> None:  # noqa: ANN401
    """Change one or two numbers of a repeated field of NodeDefs to extreme ones."""
    # The order of a protobuf map differs between processes.
    values = [node.attr[name] for node in nodes for name in sorted(node.attr)]
    setters = [setter for value in values for setter in _setters(value)]
    for change in rng.sample(setters, min(len(setters), rng.choice((1, 1, 2)))):
        change(extreme(rng), rng)


def _setters(value: Any) -> Iterator[Callable[[int, Random], None]]:  # noqa: ANN401
    """Give what changes each number of an AttrValue."""
    match value.WhichOneof("value"):
        case "i":
            yield lambda number, rng: setattr(value, "i", number)
        case "list" if value.list.i:
            for at in range(len(value.list.i)):
                yield lambda number, rng, at=at: value.list.i.__setitem__(at, number)
        case "shape":
            for dim in value.shape.dim:
                yield lambda number, rng, dim=dim: setattr(dim, "size", number)
        case "tensor":
            yield lambda number, rng: _change_tensor(value.tensor, number, rng)


def _change_tensor(tensor: Any, number: int, rng: Random) -> None:  # noqa: ANN401
    """Change a number of a TensorProto, or an extent of it."""
    from tensorflow.python.framework import tensor_util

    array = tensor_util.MakeNdarray(tensor).copy()
    if array.dtype.kind != "i" or rng.random() < 0.1:
        if tensor.tensor_shape.dim:
            rng.choice(tensor.tensor_shape.dim).size = number
        return
    if array.size:
        bits = 8 * array.itemsize
        array.flat[rng.randrange(array.size)] = (number + (1 << (bits - 1))) % (1 << bits) - (
            1 << (bits - 1)
        )
        tensor.CopyFrom(tensor_util.make_tensor_proto(array))


def _frozen() -> tuple[Any, Loader]:
    from ekiden.frontend.tensorflow.entry import import_model  # needs an extra

    corpus = _graphs()

    def make(rng: Random) -> bytes:
        graph = type(corpus[0])()
        graph.CopyFrom(rng.choice(corpus))
        _mutate_nodes(graph.node, rng)
        data = bytes(graph.SerializeToString())
        return mutate_bytes(data, rng) if rng.random() < 0.1 else data

    return make, loader(import_model)


def _saved() -> tuple[Any, Loader]:
    import tensorflow as tf  # an extra
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    from ekiden.frontend.tensorflow.entry import import_model

    class Small(tf.Module):  # type: ignore[misc]  # it has no types
        """A weight, a window and a slice."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = tf.Variable(np.ones((3, 3, 2, 2), np.float32))

        @tf.function(input_signature=[tf.TensorSpec(IMAGE, tf.float32, name="x")])
        def __call__(self, x: Any) -> Any:  # noqa: ANN401
            return tf.reshape(tf.nn.conv2d(x, self.weight, 2, "SAME")[:, 1:], (1, -1, 2))

    folder = case_folder()
    tf.saved_model.save(Small(), str(folder))
    path = folder / "saved_model.pb"
    seed = SavedModel.FromString(path.read_bytes())
    whole = bytes(seed.SerializeToString())

    def make(rng: Random) -> bytes:
        if rng.random() < 0.4:
            return mutate_bytes(whole, rng)
        changed = SavedModel()
        changed.CopyFrom(seed)
        functions = changed.meta_graphs[0].graph_def.library.function
        _mutate_nodes(rng.choice(functions).node_def, rng)
        return bytes(changed.SerializeToString())

    def load(case: bytes) -> None:
        path.write_bytes(case)
        import_model(str(folder), ImportOptions())

    return make, load


KINDS = (
    Kind("graphdef", "attributes and constants of frozen graphs of TensorFlow", _frozen,
         ("tensorflow",)),
    Kind("savedmodel", "SavedModels of TensorFlow", _saved, ("tensorflow",)),
)  # fmt: skip
