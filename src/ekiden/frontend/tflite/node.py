"""Operator context of converters, and the entries of the converter table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias

from ekiden.frontend.common import node as common
from ekiden.frontend.common.float_functions import FUSED_ACTIVATIONS
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.sequence_value import NonTensorValue
from ekiden.frontend.common.value import Value
from ekiden.frontend.tflite.load import NUMERIC_DTYPES, TENSOR_DTYPES, TfliteOperator, TfliteTensor
from ekiden.ir.op import Array
from ekiden.relay.expr import Expr
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.topi.dimensions import Dim, known_int

if TYPE_CHECKING:
    from ekiden.frontend.tflite.graph import SubgraphImporter


class QuantizedPolicy(Enum):
    """Policy of a converter for quantized tensors."""

    REFUSED = "refused"
    MOVES_ELEMENTS = "moved"
    """It moves or chooses elements: the stored numbers stand, all with one scale and zero point."""
    CONVERTER_HANDLED = "own"
    """The converter looks itself."""


class Resource(NonTensorValue):
    """Reference to a variable by name (resource handle)."""

    __slots__ = ("name",)
    description = "a variable"

    def __init__(self, name: str) -> None:
        self.name = name
        self.array = self.symbols = self.expr = self.hint = None


class TfliteNode(common.AttributeNode):
    """TensorFlow Lite operator in the form that converters receive. graph: its importer; ins, outs:
    its tensors as the model declares them.
    """

    def __init__(
        self,
        operation: TfliteOperator,
        name: str,
        inputs: Sequence[Value | None],
        graph: SubgraphImporter,
        ins: Sequence[TfliteTensor | None],
        outs: Sequence[TfliteTensor],
    ) -> None:
        super().__init__(name, inputs, graph.shared.scope, [t.name for t in outs])
        self.graph = graph
        self.stated: dict[str, int] = {}
        """Fields of a custom operator, whose table has none."""
        self.operation, self.ins, self.outs = operation, ins, outs

    def read_option(self, name: str, default: int = 0) -> Any:  # noqa: ANN401 - a field of the schema
        """Return a field of the operator's option table; the default without a table."""
        if name in self.stated:
            return self.stated[name]
        options = self.operation.options
        return default if options is None else getattr(options, name)()

    def bool_attribute(self, name: str) -> bool:
        """Return a bool option by TensorFlow's attribute name."""
        return bool(self.read_option(_schema_field(name)))

    def int_attribute(self, name: str, default: int = 0) -> int:
        """Return an integer option by TensorFlow's attribute name."""
        return int(self.read_option(_schema_field(name), default))

    def dtype_attribute(self, name: str, default: str = "float32") -> str:
        """Return a dtype option by TensorFlow's attribute name."""
        has_table = bool(self.stated) or self.operation.options is not None
        return TENSOR_DTYPES[self.read_option(_schema_field(name))] if has_table else default

    def input_label(self, index: int) -> str:
        """Return " of <tensor>" for messages."""
        return f" of {self.ins[index]}"

    def constant_array(self, index: int, what: str) -> Array:
        """Return an input that must be constant; `what` names it in the error."""
        return super().constant_array(index, _DISPLAY_NAMES.get(what, what))

    def dims(self, index: int, what: str, count: int | None = None) -> tuple[Dim, ...]:
        """Return an integer input as numbers and dimensions; `what` names it in the error."""
        return super().dims(index, _DISPLAY_NAMES.get(what, what), count)

    def static_extents(self, index: int, axes: Sequence[int]) -> tuple[int | None, ...]:
        """Return extents of an input, None for symbolic ones."""
        shape = self.shape(index)
        return tuple(known_int(shape[a]) for a in axes)

    @property
    def activation_name(self) -> str:
        """Return the name of the operator's fused activation in FUSED_ACTIVATIONS."""
        kind = self.read_option("FusedActivationFunction")
        if kind not in range(len(_ACTIVATION_NAMES)):
            self.reject(f"the fused activation {kind} is not supported")
        return _ACTIVATION_NAMES[kind]

    @property
    def activation_function(self) -> Callable[[Expr], Expr]:
        """Return the function of the operator's fused activation."""
        return FUSED_ACTIVATIONS[self.activation_name]

    def apply_activation(self, expr: Expr) -> Expr:
        """Apply the operator's fused activation."""
        return self.activation_function(expr)


def _schema_field(name: str) -> str:
    """Return the schema's field of a TensorFlow attribute: "keep_dims" is "KeepDims"."""
    return "".join(word.title() for word in name.split("_"))


_DISPLAY_NAMES = {
    "perm": "permutation", "size_splits": "sizes", "block_shape": "block", "dimension": "axis",
    "dims": "shape", "output_shape": "shape", "segments": "num_segments",
}  # fmt: skip
"""TensorFlow's names of inputs -> what messages call them here."""
_ACTIVATION_NAMES = ("linear", "relu", "relu_n1_to_1", "relu6", "tanh")
"""ActivationFunctionType of the schema; SIGN_BIT has no kernel."""

Converter: TypeAlias = Callable[[TfliteNode], Result]
Evaluator: TypeAlias = Callable[[TfliteNode, Sequence[Array]], Array | None]
"""The elements of the output from those of the inputs, numbers or expressions of dimensions (see
ekiden.frontend.common.constant_folding); None to leave it to the converter."""


@dataclass(frozen=True, slots=True)
class TfliteRow:
    """Converter table entry: an operator, its converters and the tensors that they accept."""

    code: str
    convert: Converter
    quantized_policy: QuantizedPolicy = QuantizedPolicy.REFUSED
    moved_inputs: tuple[int, ...] = (0,)
    """The inputs whose elements are moved, of those that are MOVED; () for all."""
    integer_converter: Converter | None = None
    """Of quantised tensors, where its kernel computes on their numbers."""
    supports_int16: bool = False
    """Whether `integer_converter` takes int16 too, whose kernels round by rules of their own."""
    hybrid_converter: Converter | None = None
    """Of data of float32 and weights of int8, the second input, which its kernel multiplies as
    integers (hybrid_quantization.py)."""
    rule: Evaluator | None = None
    extra_tensor_kinds: tuple[str, ...] = ()
    """What it takes beside tensors of numbers: "complex64", "resource", "sparse", "variable"."""

    def accepts(self, tensor: TfliteTensor) -> bool:
        """Return whether the entry accepts a tensor's dtype, sparsity and variability."""
        kinds = {"sparse": tensor.is_sparse, "variable": tensor.is_variable}
        if any(held and kind not in self.extra_tensor_kinds for kind, held in kinds.items()):
            return False
        return tensor.dtype in NUMERIC_DTYPES or tensor.dtype in self.extra_tensor_kinds
