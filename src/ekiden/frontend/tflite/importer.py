"""Import of a TensorFlow Lite model as an IRModule: inputs, operators, outputs."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.dim_facts import DimFacts, import_to_fixpoint
from ekiden.frontend.common.import_result import INITIAL_STATE_FUNCTION, ImportResult
from ekiden.frontend.common.main_builder import MainBuilder, build_initial_state
from ekiden.frontend.common.options import Dims, Shapes, parse_shape_option
from ekiden.frontend.common.rank_cases import to_program_output
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unranked_inputs import StatedInput, check_ranks, format_user_shape
from ekiden.frontend.common.value import Value, constant_value
from ekiden.frontend.tflite.graph import ImportState, SubgraphImporter
from ekiden.frontend.tflite.load import (
    TfliteModel,
    TfliteSignature,
    TfliteSubgraph,
    TfliteTensor,
    read_model,
)
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.type import tensor_type
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError


def import_tflite(
    source: object, shape: Shapes | None = None, signature: str | None = ""
) -> ImportResult:
    """Import a model, a path or bytes, as a module whose `main` computes it.

    Extents that the model leaves open are symbolic.

    Args:
        source: the model.
        shape: replaces the shapes of inputs by name.
        signature: one of the model's, which need not be named where there is only one; its names
            are
            those of inputs and outputs, else the tensors' own. None stands for the first graph, by
            the names of its tensors.

    Raises:
        UnsupportedError: listing every operator that cannot be imported.
        ImportModelError: for a broken model.
        CompileError: for a signature or an input that the model lacks.
    """
    model = read_model(source)
    chosen = _select_signature(model, signature)
    return import_to_fixpoint(lambda facts: _ModelImport(model, chosen, facts).run(shape or {}))


def _select_signature(model: TfliteModel, name: str | None) -> TfliteSignature:
    if name is None:
        return TfliteSignature(0, {}, {})
    available = ", ".join(map(repr, model.signatures)) or "none"
    if name and name not in model.signatures:
        raise CompileError(f"import {model.label}: no signature {name!r}; it has {available}")
    if not name and len(model.signatures) > 1:
        text = f"it has the signatures {available}: choose one, signature=..."
        raise CompileError(f"import {model.label}: {text}")
    if name:
        return model.signatures[name]
    return next(iter(model.signatures.values()), TfliteSignature(0, {}, {}))


class _ModelImport:
    """Import attempt of one model, under the dimension facts known so far."""

    def __init__(self, model: TfliteModel, signature: TfliteSignature, facts: DimFacts) -> None:
        self.label, self.signature = model.label, signature
        self.subgraph = model.graphs[signature.graph]
        self.scope = Scope(facts, {name for g in model.graphs for name in _used_tensors(g)})
        self.main = MainBuilder(self.scope)
        self.shared = ImportState(model, self.scope, self.main)
        self.graph = SubgraphImporter(self.subgraph, self.shared)

    def run(self, shapes: Shapes) -> ImportResult:
        """Import inputs, operators and outputs; raise the collected problems if there are some."""
        tensors, graph = self.subgraph.tensors, self.graph
        names = [self.signature.inputs.get(i, tensors[i].name) for i in self.subgraph.inputs]
        for name in shapes:
            if name not in names:
                available = ", ".join(map(repr, names)) or "none"
                text = f"shape: no input {name!r}; it has {available}"
                raise CompileError(f"import {self.label}: {text}")
        self._check_ranks(names, shapes)
        pairs = zip(self.subgraph.inputs, names, strict=True)
        graph.bind_inputs(
            [self._add_input(tensors[i], name, shapes.get(name)) for i, name in pairs]
        )
        graph.import_operators()
        self.shared.raise_collected_problems()
        outputs = [to_program_output(self.scope, value) for value in graph.output_values()]
        if not outputs:
            raise ImportModelError(f"import {self.label}: it returns no tensor")
        variables = self.shared.variables
        after = [self._final_value(name) for name in variables.initial]
        functions: dict[GlobalVar | str, BaseFunc] = {
            "main": self.main.build_main([*outputs, *after])
        }
        if variables.initial:
            functions[INITIAL_STATE_FUNCTION] = build_initial_state(
                list(variables.initial.values())
            )
        stated = [self.signature.outputs.get(i, tensors[i].name) for i in self.subgraph.outputs]
        return ImportResult(
            IRModule(functions, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=(*stated, *variables.initial),
            constraints=tuple(self.scope.constraints.values()),
            states=tuple(variables.initial),
            sequences=True,
        )

    def _final_value(self, name: str) -> Value:
        """Return a variable's value after a run, which must have its initial type."""
        value, first = self.shared.variables.now[name], self.shared.variables.initial[name]
        kind = constant_value(first).type
        if format_type(value.relay_type) != format_type(kind):
            text = f"the variable {name!r} is {format_type(kind)} before a run and"
            raise UnsupportedError(
                f"import {self.label}: {text} {format_type(value.relay_type)} after it"
            )
        return value

    def _check_ranks(self, names: Sequence[str], shapes: Shapes) -> None:
        """Raise UnrankedInputError for inputs whose rank neither the model nor `shapes` states."""
        tensors, stated = self.subgraph.tensors, list[StatedInput]()
        for index, name in zip(self.subgraph.inputs, names, strict=True):
            tensor, dims = tensors[index], shapes.get(name)
            if dims is None and not tensor.is_unranked:
                dims = tensor.shape
            stated.append((name, tensor.dtype, format_user_shape(name, dims)))
        outputs = [(self.signature.outputs.get(i, tensors[i].name), tensors[i].dtype)
                   for i in self.subgraph.outputs]  # fmt: skip
        check_ranks(self.label, stated, outputs)

    def _add_input(self, tensor: TfliteTensor, name: str, stated_shape: object) -> Value:
        if not tensor.is_supported:
            raise UnsupportedError(
                f"import {self.label}: input {name!r}: {tensor.unsupported_reason}"
            )
        dims: Dims = [d if d >= 0 else None for d in tensor.shape]
        if stated_shape is not None:
            dims = parse_shape_option(name, stated_shape)
            if len(dims) != len(tensor.shape) and not tensor.is_unranked:
                text = f"shape of the input {name!r}: expected {len(tensor.shape)} dimensions"
                raise CompileError(f"import {self.label}: {text}, got {len(dims)}")
        extents = [self.main.input_dim(name, axis, d) for axis, d in enumerate(dims)]
        return self.main.add_tensor_input(name, tensor_type(extents, tensor.dtype))


def _used_tensors(graph: TfliteSubgraph) -> set[str]:
    """Return the names of the tensors that are used."""
    used = {i for o in graph.operations for i in o.inputs} | set(graph.outputs)
    return {graph.tensors[i].name for i in used if i >= 0}
