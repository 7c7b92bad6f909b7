"""`relay.frontend.from_tensorflow` and `from_keras`, with TVM's signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import tensorflow as tf

from ekiden.frontend.common.options import check_convert_config
from ekiden.frontend.registry import describe_model, frontend_by_name
from ekiden.frontend.tensorflow.importer import import_tensorflow
from ekiden.frontend.tensorflow.load import Proto
from ekiden.ir.module import IRModule
from ekiden.runtime import Tensor
from ekiden.runtime.errors import CompileError

Dim = int | str
_CONVERT_CONFIG_KEYS = ("use_dense", "use_nt_batch_matmul")
"""What TVM's `convert_config` says."""


def from_tensorflow(
    graph: Proto,
    layout: str = "NHWC",
    shape: Mapping[str, Sequence[Dim]] | None = None,
    outputs: Sequence[str] | None = None,
    convert_config: Mapping[str, object] | None = None,
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import a frozen GraphDef as a Relay module; the parameters are empty, as weights are
    constants.

    Args:
        graph: The frozen GraphDef.
        layout: Must be the graph's, "NHWC" or None: `relay.transform.ConvertLayout` gives others.
        shape: Shapes of inputs by name, which replace the declared ones.
        outputs: Nodes or tensors; by default the last node, or all variables of a loop that ends
            the graph, as in TVM.
        convert_config: TVM's choices between forms of a product, which are one kernel here: the
            names are checked, and change nothing.

    Returns:
        The module, and an empty dictionary.

    Raises:
        CompileError: Another layout, an unknown entry of convert_config, or not a GraphDef.
    """
    if layout not in ("NHWC", None):
        text = "the graph's layouts stay; relay.transform.ConvertLayout gives others"
        raise CompileError(f"from_tensorflow: layout {layout!r}: {text}")
    check_convert_config("from_tensorflow", convert_config, _CONVERT_CONFIG_KEYS)
    if not isinstance(graph, tf.compat.v1.GraphDef):
        raise CompileError(
            f"from_tensorflow: a frozen GraphDef expected, got {describe_model(graph)}"
        )
    return import_tensorflow(
        graph, shape, outputs=outputs or _default_outputs(graph)
    ).to_module(), {}


def _default_outputs(graph: Proto) -> list[str]:
    """Return the default outputs, either the last node or all variables of a loop that ends the
    graph.
    """
    nodes = [node for node in graph.node if node.op != "NoOp"]
    ends = list(takewhile(lambda node: node.op == "Exit", reversed(nodes)))
    return [node.name for node in reversed(ends or nodes[-1:])]


def from_keras(
    model: object, shape: Mapping[str, Sequence[Dim]] | None = None, layout: str = "NHWC"
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import a Keras 3 model of the TensorFlow backend as a Relay module; the parameters are empty.

    TVM's default layout is "NCHW", to which it transposes Keras's "NHWC"; here layouts stay.

    Args:
        model: The Keras model.
        shape: Shapes of inputs by name, which replace the declared ones.
        layout: Must be "NHWC".

    Returns:
        The module, and an empty dictionary.

    Raises:
        CompileError: Another layout, or not a Keras model.
    """
    if layout != "NHWC":
        text = "the model's layouts stay; relay.transform.ConvertLayout gives others"
        raise CompileError(f"from_keras: layout {layout!r}: {text}")
    frontend_by_name("tensorflow").check_model(model, "from_keras")
    return import_tensorflow(model, shape).to_module(), {}


__all__ = ["from_keras", "from_tensorflow"]
