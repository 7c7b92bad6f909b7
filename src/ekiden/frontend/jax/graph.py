"""Importer of a StableHLO program, which converts operations in order by the converter table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
from jaxlib.mlir import ir

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.constant_folding import (
    MAX_FOLDED_ELEMENTS,
    Rule,
    evaluate_rule,
    fold_results,
    propagate_elements,
)
from ekiden.frontend.common.graph_walk import GraphWalk
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.jax.dtype import (
    decode_complex_constant,
    decode_constant,
    find_narrow_dtype,
    is_complex,
    is_token,
    part_dtype_of,
)
from ekiden.frontend.jax.node import (
    ComplexPair,
    ImportedValues,
    StablehloNode,
    StablehloRow,
    describe_operation,
    user_source_line,
)
from ekiden.frontend.jax.registry import CONVERTER_TABLE, lookup_converter
from ekiden.frontend.jax.stablehlo_parser import decompose_operation, defined_functions
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

BoundValue: TypeAlias = Value | ComplexValue | tuple["BoundValue", ...] | None
"""What a value stands for: None where the operation that makes it has been reported."""
REGION_OPERATIONS = ("func.call", "stablehlo.while", "stablehlo.if", "stablehlo.case")
_PART_SUFFIXES = ("real", "imag")
TERMINATORS = ("stablehlo.return", "func.return")


class StablehloImporter:
    """Importer of one StableHLO program: values by SSA name, and the functions that it calls. One
    dictionary holds all values: each is defined once (SSA), and a region sees the values around
    it.
    """

    def __init__(self, walk: GraphWalk, module: ir.Module) -> None:
        self.walk, self.scope = walk, walk.scope
        self.env: dict[ir.Value, BoundValue] = {}
        self._functions: Mapping[str, ir.Block] = {
            function.attributes["sym_name"].value: function.regions[0].blocks[0]
            for function in defined_functions(module)
        }
        self._decomposed: list[ir.Module] = []
        """Modules that operations were taken apart in; their values are keys of `env`."""
        self._count = self._seeds = 0
        self._place = ""
        """The line of the user's program that is being imported."""

    def function_body(self, name: str) -> ir.Block:
        """Return the body block of a function; raise Unsupported without one."""
        if name not in self._functions:
            raise Unsupported(f"there is no function {name!r}")
        return self._functions[name]

    def next_seed(self) -> int:
        """Return a new seed for an operation that draws random numbers; each call returns
        another.
        """
        self._seeds += 1
        return self._seeds

    def real_value(self, value: ir.Value) -> Value | None:
        """Return the binding of an SSA value if it is a real tensor; else None."""
        bound_value = self.env.get(value)
        return bound_value if isinstance(bound_value, Value) else None

    @staticmethod
    def lookup_converter(name: str) -> StablehloRow | None:
        """Look up the converter entry of an operation, composite or custom call; None if there is
        none.
        """
        return CONVERTER_TABLE.get(name)

    def import_real_block(self, block: ir.Block, inputs: Sequence[Value]) -> list[Value]:
        """Import a block for these inputs; return its results, which must be real. Raises
        Unsupported as `results` does.
        """
        results = self.import_block(block, inputs)
        real = [v for v in results if isinstance(v, Value)]
        if len(real) < len(results):
            raise Unsupported("complex numbers are not supported here")
        return real

    def import_block(self, block: ir.Block, inputs: Sequence[BoundValue]) -> ImportedValues:
        """Import a block for these inputs; return its results. Raises Unsupported where one of its
        operations has been reported.
        """
        self.env.update(zip(block.arguments, inputs, strict=True))
        for op_view in block.operations:
            operation = op_view.operation
            if operation.name in TERMINATORS:
                block_results = [self.env[o] for o in operation.operands]
                if any(v is None for v in block_results):
                    raise Unsupported("")
                return block_results  # type: ignore[return-value]  # none of them is None
            self._import_operation(operation)
        raise Unsupported("a block without an end")

    def _import_operation(self, operation: ir.Operation) -> None:
        inputs = [self.env[o] for o in operation.operands]
        # None marks results whose operation failed, so that its users are skipped without further
        # reports.
        self.env.update(dict.fromkeys(operation.results))
        if any(v is None for v in inputs):
            return  # made by an operation that has already been reported
        names = self._output_names(operation)
        self.scope.used.update(filter(None, names))
        labels = {f"input {i}": v for i, v in enumerate(inputs) if isinstance(v, Value)}
        around = self._place
        self._place = user_source_line(str(operation.location)) or around
        with self.walk.convert_node(describe_operation(operation, around), labels):
            if operation.name not in REGION_OPERATIONS:  # what is inside them is reported there
                for value in (*operation.operands, *operation.results):
                    _check_type(value.type)
            held = self._import_tuple(operation, inputs)
            if held is None:
                held = self._bind_results(self._convert_operation(operation, inputs, names), names)
            self.env.update(zip(operation.results, held, strict=True))
        self._place = around

    @staticmethod
    def _import_tuple(
        operation: ir.Operation, inputs: Sequence[BoundValue]
    ) -> Sequence[BoundValue] | None:
        """Convert an operation that makes or reads a tuple; return None for any other."""
        if operation.name == "stablehlo.tuple":
            return [tuple(inputs)]
        if operation.name == "stablehlo.get_tuple_element":
            elements = inputs[0]
            assert isinstance(elements, tuple), "its operand is a tuple"
            return [elements[operation.attributes["index"].value]]
        return None

    def _bind_results(
        self, result: Result | ImportedValues | ComplexPair, names: Sequence[str]
    ) -> list[Value | ComplexValue | None]:
        """Bind a converter's results to output names; a (real, imaginary) pair becomes a complex
        value.
        """
        if isinstance(result, tuple):
            real, imaginary = (
                self._bind_part(p, names) for p in zip(result, _PART_SUFFIXES, strict=True)
            )
            return [None if real is None or imaginary is None else ComplexValue(real, imaginary)]
        outputs = list(result) if isinstance(result, Sequence) else [result]
        pairs = {i: v for i, v in enumerate(outputs) if isinstance(v, ComplexValue)}
        plain = [None if isinstance(v, ComplexValue) else v for v in outputs]
        real_names = ["" if i in pairs else name for i, name in enumerate(names)]
        single = plain[0] if not isinstance(result, Sequence) else None
        named_values = self.walk.bind_outputs(plain if single is None else single, real_names)
        return [pairs.get(i, named_values.get(name)) for i, name in enumerate(names)]

    def _bind_part(self, component: tuple[Expr, str], names: Sequence[str]) -> Value | None:
        expr, suffix = component
        part_names = [name and f"{name}.{suffix}" for name in names]
        self.scope.used.update(filter(None, part_names))
        return self.walk.bind_outputs(expr, part_names).get(part_names[0])

    def _output_names(self, operation: ir.Operation) -> list[str]:
        """Return a name for each used output; "" for others."""
        self._count += 1
        base = f"{operation.name.rpartition('.')[2]}_{self._count}"
        return [
            f"{base}.{i}" if any(True for _ in r.uses) else ""
            for i, r in enumerate(operation.results)
        ]

    def _convert_operation(
        self,
        operation: ir.Operation,
        inputs: Sequence[BoundValue],
        names: Sequence[str],
    ) -> Result | ImportedValues | ComplexPair:
        if operation.name == "stablehlo.constant":
            if _has_complex(operation):
                return list[Value | ComplexValue](
                    [ComplexValue(*map(constant_value, decode_complex_constant(operation)))]
                )
            return self._import_constant(decode_constant(operation.attributes["value"]))
        decomposed_results = self._decompose(operation, inputs)
        if decomposed_results is not None:
            return decomposed_results
        row = lookup_converter(operation.name)
        node = StablehloNode(operation, inputs, self.scope, names, self, str(self.scope.span))
        if _has_complex(operation):
            if row.make_complex_rule is None:
                raise Unsupported("complex numbers are not supported here")
            return row.make_complex_rule(row.convert)(node)
        if row.rule is None:
            return self._cast_to_declared(node, self._convert_and_fold(node, row))
        return self._evaluate_or_convert(node, row, row.rule(node))

    def _decompose(
        self, operation: ir.Operation, inputs: Sequence[BoundValue]
    ) -> ImportedValues | None:
        """Convert an operation without a converter by its decomposition into simpler ones; return
        None where there is none.
        """
        row = CONVERTER_TABLE.get(operation.name)
        is_known = row is not None and (
            not _has_complex(operation) or row.make_complex_rule is not None
        )
        if is_known or not operation.name.startswith(("chlo.", "stablehlo.")):
            return None
        if operation.name.startswith("stablehlo.") and operation.name not in _DECOMPOSED_OPERATIONS:
            return None
        module = decompose_operation(operation)
        if module is None:
            return None
        # The module owns the operations that `env` has as keys: it must outlive the import.
        self._decomposed.append(module)
        (function,) = defined_functions(module)
        return self.import_block(function.regions[0].blocks[0], inputs)

    def _convert_and_fold(self, node: StablehloNode, row: StablehloRow) -> Result:
        """Convert an operation, and fold the result where all inputs are small constants."""
        result = row.convert(node)
        return fold_results(self.scope, node.inputs, result)  # type: ignore[arg-type]  # none is complex

    def _evaluate_or_convert(self, node: StablehloNode, row: StablehloRow, rule: Rule) -> Result:
        dtype = node.out_dtype()
        known_result = evaluate_rule(node.inputs, rule, dtype, row.is_view)
        if known_result is not None:
            return self._cast_to_declared(node, known_result)
        result = self._cast_to_declared(node, self._convert_and_fold(node, row))
        if isinstance(result, Expr):
            result = self.scope.bind_named(result)
        if not isinstance(result, Value):
            return result
        return propagate_elements(self.scope, node.inputs, rule, result)

    def _cast_to_declared(self, node: StablehloNode, result: Result) -> Result:
        """Cast outputs to their declared dtypes, and round them to narrow ones."""
        if node.operation.name in _UNROUNDED_OPERATIONS:
            return result
        count = len(node.operation.results)
        if count == 1 and isinstance(result, (Expr, Value)):
            return self._round_to_declared(node, 0, result)
        if isinstance(result, Sequence) and any(
            find_narrow_dtype(r.type) for r in node.operation.results
        ):
            return [
                output if output is None else self._round_to_declared(node, index, output)
                for index, output in enumerate(result)
            ]
        return result

    def _round_to_declared(
        self, node: StablehloNode, index: int, result: Expr | Value
    ) -> Expr | Value:
        if is_token(node.operation.results[index].type):
            return result
        dtype, narrow = node.out_dtype(index), find_narrow_dtype(node.operation.results[index].type)
        if isinstance(result, Value):
            if narrow is None or result.symbols is not None:
                return result
            if result.array is not None:
                return constant_value(narrow.round_array(result.array))
            result = self.scope.expr(result)
        kind = self.scope.type_of(result)
        if isinstance(kind, TensorType) and kind.dtype != dtype:
            result = op.cast(result, dtype)
        if narrow is None:
            return result
        return narrow.round_to_dtype(result, lambda expr: self.scope.expr(node.bind_shared(expr)))

    def _import_constant(self, array: Array) -> Result:
        # A splat stays a broadcast of one number instead of memory in the artifact.
        if array.size > MAX_FOLDED_ELEMENTS and not any(array.strides):
            return op.broadcast_to(const(array.flat[0]), array.shape)
        return constant_value(np.ascontiguousarray(array).reshape(array.shape))


def _check_type(kind: ir.Type) -> None:
    """Raise Unsupported for types that the importer does not support."""
    if isinstance(kind, ir.TupleType):
        for index in range(kind.num_types):
            _check_type(kind.get_type(index))
    elif not is_token(kind):
        part_dtype_of(kind)


_DECOMPOSED_OPERATIONS = tuple(
    f"stablehlo.{name}"
    for name in (
        "sqrt", "log_plus_one",  # of complex numbers, without loss of digits
        "broadcast", "dot", "create_token", "einsum", "unary_einsum", "torch_index_select",
    )
)  # fmt: skip
"""Operations that jaxlib's passes take apart where they have no row: the second line is of those
that StableHLO has had."""
_UNROUNDED_OPERATIONS = (
    *REGION_OPERATIONS,
    "stablehlo.composite",
    "stablehlo.reshape",
    "stablehlo.transpose",
)
"""Operations whose results are what they were computed as: never to be rounded again."""


def _has_complex(operation: ir.Operation) -> bool:
    return any(is_complex(v.type) for v in (*operation.operands, *operation.results))
