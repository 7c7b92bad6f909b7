"""Import of a jax.export program or of plain StableHLO: inputs, operations, outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import numpy as np
from jax import export
from jaxlib.mlir import ir

from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.dim_facts import DimFacts, import_to_fixpoint
from ekiden.frontend.common.graph_walk import GraphWalk
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.main_builder import MainBuilder
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value, sanitize_name
from ekiden.frontend.jax.dtype import (
    check_supported_dtype,
    find_narrow_dtype,
    is_complex,
    relay_dtype,
    static_extents,
    storage_dtype,
)
from ekiden.frontend.jax.graph import StablehloImporter
from ekiden.frontend.jax.node import ImportedValues
from ekiden.frontend.jax.stablehlo_parser import (
    defined_functions,
    find_entry,
    make_context,
    parse_module,
)
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True)
class ProgramInput:
    """Leaf of a program's arguments."""

    name: str
    dims: tuple[object, ...]
    """Its extents: numbers, symbols of JAX, None for any."""
    dtype: str
    is_read: bool
    """Whether the program has an argument for it: jax.export drops those that it does not read."""


@dataclass(frozen=True)
class ProgramSignature:
    """Signature of a program: its entry function, inputs, outputs and platforms."""

    entry_function: str
    """The function that it begins with."""
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[str, ...]
    platforms: tuple[str, ...] = ("cpu",)
    """Those it is for; where there are several, its first argument says which one it runs on."""


def import_program(
    program: export.Exported, label: str, arguments: Sequence[str] = ()
) -> ImportResult:
    """Import a jax.export program as a module whose `main` computes it.

    Its inputs are the leaves of the function's arguments, named as jax.tree_util.keystr does, also
    those that it does not read. Symbolic dimensions keep their names.

    Args:
        program: the exported program.
        label: its name in messages.
        arguments: the names of the positional arguments, where they are known.

    Raises:
        UnsupportedError: listing every operation that cannot be imported.
    """
    with make_context() as within:
        module = parse_module(bytes(program.mlir_module_serialized), label, within)
        return _import_module(module, _exported_signature(program, module, label, arguments), label)


def import_stablehlo(data: str | bytes, label: str, function: str = "") -> ImportResult:
    """Import a function of StableHLO text or bytecode as a module whose `main` computes it.

    Args:
        data: the program.
        label: its name in messages.
        function: the function's name; "" for the program's entry function.

    Raises:
        ImportModelError: for what is no StableHLO.
        UnsupportedError: as `import_program`.
    """
    with make_context() as within:
        module = parse_module(data, label, within)
        entry = find_entry(module, function, label)
        return _import_module(module, _module_signature(module, entry, label), label)


def _import_module(module: ir.Module, signature: ProgramSignature, label: str) -> ImportResult:
    def attempt(facts: DimFacts) -> ImportResult:
        return _ProgramImport(signature, module, label, facts).run()

    try:
        return import_to_fixpoint(attempt)
    except Unsupported as error:
        raise UnsupportedError(f"import {label}: {error}", error.inputs) from error


class _ProgramImport:
    """Import attempt of one program, under the dimension facts known so far."""

    def __init__(
        self, signature: ProgramSignature, module: ir.Module, label: str, facts: DimFacts
    ) -> None:
        self.signature = signature
        self.scope = Scope(facts, set())
        self.walk = GraphWalk(label, self.scope, "example_inputs=(...)")
        self.main = MainBuilder(self.scope)
        self.graph = StablehloImporter(self.walk, module)

    def run(self) -> ImportResult:
        """Import inputs, operations and outputs; raise the collected problems if there are some."""
        block = self.graph.function_body(self.signature.entry_function)
        inputs = self._platform_index()
        arguments = iter(list(block.arguments)[len(inputs) :])
        for leaf in self.signature.inputs:
            input_value = self.main.add_tensor_input(leaf.name, self._input_type(leaf))
            if leaf.is_read:
                inputs.append(self._cast_to_storage_dtype(input_value, next(arguments)))
        reported: Unsupported | None = None
        results: ImportedValues = []
        try:
            results = self.graph.import_block(block, inputs)
        except Unsupported as error:
            reported = error
        self.walk.raise_collected_problems()
        if reported is not None:
            raise reported
        outputs = self._collect_real_outputs(block, results)
        if not outputs:
            raise ImportModelError(f"import {self.walk.label}: it returns no tensor")
        functions: dict[GlobalVar | str, BaseFunc] = {"main": self.main.build_main(outputs)}
        return ImportResult(
            IRModule(functions, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=self.signature.outputs,
            constraints=tuple(self.scope.constraints.values()),
        )

    def _cast_to_storage_dtype(self, value: Value, argument: ir.Value) -> Value:
        """Cast an input to the dtype that the program computes in."""
        dtype = relay_dtype(argument.type)
        if value.type.dtype == dtype:
            return value
        return self.scope.bind_named(op.cast(self.scope.expr(value), dtype))

    def _cast_to_declared(self, value: Value, kind: ir.Type) -> Value:
        """Cast an output to the dtype that the program declares."""
        narrow = find_narrow_dtype(kind)
        if narrow is None or not narrow.storage_dtype:
            return value
        return self.scope.bind_named(op.cast(self.scope.expr(value), narrow.storage_dtype))

    def _platform_index(self) -> list[Value]:
        """Return the platform index, the first argument of a program for several platforms."""
        platforms = self.signature.platforms
        if len(platforms) == 1:
            return []
        if "cpu" not in platforms:
            text = f"it is exported for {', '.join(platforms)}: export it for 'cpu'"
            raise UnsupportedError(f"import {self.walk.label}: {text}")
        return [constant_value(np.array(platforms.index("cpu"), np.int32))]

    def _collect_real_outputs(self, block: ir.Block, results: ImportedValues) -> list[Value]:
        """Return the outputs. Raises UnsupportedError for complex ones and those without data."""
        *_, end = block.operations
        kinds = [value.type for value in end.operation.operands]
        for name, kind, result in zip(self.signature.outputs, kinds, results, strict=True):
            try:
                _ = is_complex(kind) or storage_dtype(kind)
            except Unsupported as error:
                text = f"import {self.walk.label}: output {name!r}: {error}"
                raise UnsupportedError(text) from error
            if isinstance(result, ComplexValue):
                raise UnsupportedError(
                    f"import {self.walk.label}: output {name!r} is of complex numbers, of which "
                    "there are no tensors: give their parts, jnp.real and jnp.imag"
                )
        pairs = zip(results, kinds, strict=True)
        return [
            self._cast_to_declared(output, kind)
            for output, kind in pairs
            if isinstance(output, Value)
        ]

    def _input_type(self, leaf: ProgramInput) -> TensorType:
        """Return the type of an input.

        A dimension that is one symbol has its name; for one computed from symbols the program
        solves for them.
        """
        dims: list[PrimExpr] = []
        for axis, dim in enumerate(leaf.dims):
            if isinstance(dim, int):
                dims.append(const(dim, "int64"))
            elif str(dim).isidentifier() and dim is not None:
                dims.append(self.scope.dim_symbol(str(dim)))
            else:
                dims.append(self.scope.dim_symbol(f"{sanitize_name(leaf.name)}_dim{axis}"))
        return TensorType(tuple(dims), leaf.dtype)


# The signature of a program of jax.export.


def _exported_signature(
    program: export.Exported, module: ir.Module, label: str, arguments: Sequence[str]
) -> ProgramSignature:
    function = next(
        f for f in defined_functions(module) if f.attributes["sym_name"].value == "main"
    )
    block = function.regions[0].blocks[0]
    # A program for several platforms takes the platform's index as its first argument.
    count = 0 if len(program.platforms) == 1 else 1
    # jax.export drops arguments that the program does not read; they remain inputs of the model.
    read = dict(zip(program.module_kept_var_idx, list(block.arguments)[count:], strict=True))
    inputs = []
    for index, name in enumerate(_input_names(program, read, arguments)):
        aval = program.in_avals[index]
        try:
            dims, dtype = _storage_type(aval)
        except Unsupported as error:
            raise UnsupportedError(f"import {label}: input {name!r}: {error}") from error
        inputs.append(ProgramInput(name, dims, dtype, index in read))
    outputs = tuple(_output_names(program))
    return ProgramSignature("main", tuple(inputs), outputs, tuple(program.platforms))


def _storage_type(aval: jax.core.ShapedArray) -> tuple[tuple[object, ...], str]:
    """Return the extents and dtype in which an array is stored; a random key is stored as its
    words.

    Raises Unsupported for unsupported dtypes.
    """
    if not jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return tuple(aval.shape), check_supported_dtype(str(aval.dtype))
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), aval.dtype))
    return (*aval.shape, *words.shape), check_supported_dtype(str(words.dtype))


def _input_names(
    program: export.Exported, read: dict[int, ir.Value], arguments: Sequence[str]
) -> list[str]:
    """Return the inputs' names, such as `x` or `params['w']`: leaves of the function's arguments,
    or positions.
    """
    tree = jax.tree_util.tree_unflatten(program.in_tree, [0] * program.in_tree.num_leaves)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    heads = {f"arg{i}": name for i, name in enumerate(arguments)}
    leaves = [_split_path(path) for path in paths]
    for index, argument in read.items():
        head, leaf_path = leaves[index]
        stated = _argument_name(argument)
        if stated.endswith(leaf_path) and head.startswith("arg"):
            heads.setdefault(head, stated.removesuffix(leaf_path))
    return [heads.get(head, head) + leaf_suffix for head, leaf_suffix in leaves]


def _argument_name(argument: ir.Value) -> str:
    """Return the name of an argument, or of the parameter of the function that it is passed to."""
    name = _location_name(argument)
    if name:
        return name
    for use in argument.uses:
        if use.owner.name == "func.call":
            return _callee_argument_name(use.owner, use.operand_number)
    return ""


def _location_name(argument: ir.Value) -> str:
    """Return the name in an argument's MLIR location; "" without one."""
    match = _LOCATION_NAME_PATTERN.fullmatch(str(argument.location))
    return match[1].replace("\\22", '"') if match else ""


_LOCATION_NAME_PATTERN = re.compile(r'loc\("([^"]+)"\)')


def _callee_argument_name(call: ir.Operation, index: int) -> str:
    module = call.parent.operation.parent if call.parent is not None else None
    name = call.attributes["callee"].value
    for candidate in module.regions[0].blocks[0].operations if module is not None else ():
        if (
            candidate.operation.name == "func.func"
            and candidate.attributes["sym_name"].value == name
        ):
            return _location_name(candidate.regions[0].blocks[0].arguments[index])
    return ""


def _split_path(path: Sequence[object]) -> tuple[str, str]:
    """Split a pytree path of (args, kwargs) into the argument, `arg0`, and the path within it,
    `['w']`.
    """
    side, first, *inner_path = path
    key = getattr(first, "idx", getattr(first, "key", 0))
    head = f"arg{key}" if getattr(side, "idx", 0) == 0 else str(key)
    return head, jax.tree_util.keystr(tuple(inner_path))


def _output_names(program: export.Exported) -> list[str]:
    count = program.out_tree.num_leaves
    tree = jax.tree_util.tree_unflatten(program.out_tree, [0] * count)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return ["result" + jax.tree_util.keystr(path) for path in paths]


# The signature of a function of StableHLO.


def _module_signature(module: ir.Module, entry: str, label: str) -> ProgramSignature:
    function = next(f for f in defined_functions(module) if f.attributes["sym_name"].value == entry)
    inputs = []
    for index, argument in enumerate(function.regions[0].blocks[0].arguments):
        name = _location_name(argument) or f"arg{index}"
        try:
            dims, dtype = tuple(static_extents(argument.type)), storage_dtype(argument.type)
        except Unsupported as error:
            raise UnsupportedError(f"import {label}: input {name!r}: {error}") from error
        inputs.append(ProgramInput(name, dims, dtype, True))
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    count = len(kind.results)
    output_names = ["result"] if count == 1 else [f"result[{i}]" for i in range(count)]
    stated = [_jax_result_name(function, index) for index in range(count)]
    if len({*stated, ""}) == count + 1:
        output_names = stated
    return ProgramSignature(entry, tuple(inputs), tuple(output_names))


def _jax_result_name(function: ir.Operation, index: int) -> str:
    """Return the name that JAX gives to a result of its programs; "" for others."""
    attributes = function.attributes
    result_attributes = attributes["res_attrs"][index] if "res_attrs" in attributes else {}
    return (
        result_attributes[_RESULT_INFO_ATTRIBUTE].value
        if _RESULT_INFO_ATTRIBUTE in result_attributes
        else ""
    )


_RESULT_INFO_ATTRIBUTE = "jax.result_info"
