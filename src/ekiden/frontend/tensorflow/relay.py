"""`relay.frontend.from_tensorflow` and `from_keras`, with TVM's signatures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import takewhile

import tensorflow as tf

from ekiden.frontend.common.options import check_convert_config
from ekiden.frontend.registry import describe_model, frontend_by_name
from ekiden.frontend.tensorflow.importer import import_tensorflow
from ekiden.frontend.tensorflow.load import Proto
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Function, Tuple, TupleGetItem, Var
from ekiden.relay.op.transform import transpose
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.visitor import bind
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
    model: object, shape: Mapping[str, Sequence[Dim]] | None = None, layout: str = "NCHW"
) -> tuple[IRModule, dict[str, Tensor]]:
    """Import a Keras 3 model of the TensorFlow backend as a Relay module; the parameters are empty.

    Args:
        model: The Keras model. Inputs without a name of their own are input_1, input_2, ...
        shape: Shapes of inputs by name, in `layout`, which replace the declared ones.
        layout: "NHWC" (or "NDHWC") for the model's own layout; with "NCHW", TVM's default, inputs
            and outputs of rank 4 have their channels after the batch, and with "NCDHW" those of
            rank 5.

    Returns:
        The module, and an empty dictionary.

    Raises:
        CompileError: Another layout, or not a Keras model.
    """
    if layout not in _KERAS_LAYOUT_RANKS:
        layouts = ", ".join(_KERAS_LAYOUT_RANKS)
        raise CompileError(f"from_keras: layout one of {layouts} expected, got {layout!r}")
    frontend_by_name("tensorflow").check_model(model, "from_keras")
    rank = _KERAS_LAYOUT_RANKS[layout]
    shapes = {
        name: [dims[0], *dims[2:], dims[1]] if len(dims) == rank else dims
        for name, dims in (shape or {}).items()
    }
    module = import_tensorflow(model, shapes or None).to_module()
    return _move_channels(module, rank) if rank else module, {}


_KERAS_LAYOUT_RANKS: Mapping[str, int] = {"NHWC": 0, "NDHWC": 0, "NCHW": 4, "NCDHW": 5}
"""Layout -> rank of the tensors whose channels move behind the batch; 0 for none."""


def _move_channels(module: IRModule, rank: int) -> IRModule:
    """Return a module whose main takes and returns tensors of a rank with the channels after the
    batch instead of last.
    """
    module = InferType()(module)
    main = module["main"]
    assert isinstance(main, Function)
    last, first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
    params: list[Var] = []
    values: dict[Var, RelayExpr] = {}
    for param in main.params:
        kind = param.checked_type
        if isinstance(kind, TensorType) and len(kind.shape) == rank:
            params.append(
                Var(param.name_hint, TensorType(tuple(kind.shape[n] for n in first), kind.dtype))
            )
            values[param] = transpose(params[-1], last)
        else:
            params.append(param)

    def to_first(value: RelayExpr, kind: Type | None) -> RelayExpr:
        is_moved = isinstance(kind, TensorType) and len(kind.shape) == rank
        return transpose(value, first) if is_moved else value

    body, result = bind(main.body, values), main.ret_type
    if isinstance(result, TupleType):
        fields = enumerate(result.fields)
        body = Tuple(tuple(to_first(TupleGetItem(body, n), field) for n, field in fields))
    else:
        body = to_first(body, result)
    function = Function(tuple(params), body, None, main.type_params, main.attrs, span=main.span)
    return InferType()(
        module.with_functions({**module.functions, module.get_global_var("main"): function})
    )


__all__ = ["from_keras", "from_tensorflow"]
