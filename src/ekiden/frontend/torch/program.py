"""Import of an exported program: inputs and weights, graph, outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import sympy
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

from ekiden.frontend.common import data_dependent_dims
from ekiden.frontend.common.complex_arithmetic import ComplexValue
from ekiden.frontend.common.dim_facts import DimFacts, import_to_fixpoint
from ekiden.frontend.common.graph_walk import GraphWalk
from ekiden.frontend.common.import_result import INITIAL_STATE_FUNCTION, ImportResult
from ekiden.frontend.common.main_builder import MainBuilder, build_initial_state
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.spans import attach_span
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant_value, known_value, sanitize_name
from ekiden.frontend.torch.dtype import COMPLEX_PART_DTYPES, from_torch_dtype, tensor_to_array
from ekiden.frontend.torch.graph import FxImporter, tensor_constant
from ekiden.frontend.torch.rng import draws_random
from ekiden.frontend.torch.sympy_conversion import SymbolTable, sole_symbol_name, symbol_name
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array
from ekiden.ir.prim import GE, LE, PrimExpr, Var, fold_binary
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.topi.dimensions import as_dim
from ekiden.topi.random import threefry_key

GENERATOR_STATE = "random_generator"
"""The state that random numbers are drawn from, among the buffers that a program changes."""

_MUTATION_KINDS = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
"""Outputs that are what a module's own tensor is after a run: a buffer, or a parameter, which
programs without gradients may write too."""


def import_program(
    program: ExportedProgram,
    label: str = "program",
    names: Mapping[str, str] | None = None,
    freeze_params: bool = True,
    input_names: Sequence[str] = (),
) -> ImportResult:
    """Import a torch.export program as a module whose `main` computes it.

    Its operators may be core ATen or any others that the table has. Weights are constants that
    share the program's memory; with `freeze_params=False` the floating-point ones are parameters of
    main.

    Args:
        program: The exported program.
        label: Name of the program in messages.
        names: Names of symbolic sizes, by symbol; by default they are named after inputs and axes.
        freeze_params: Whether floating-point weights are constants.
        input_names: Names of the first inputs.

    Raises:
        UnsupportedError: Lists every node that cannot be imported.
    """

    def attempt(facts: DimFacts) -> ImportResult:
        """Import the program under the dimension facts known so far."""
        return _ProgramImport(program, label, facts, freeze_params).run(names or {}, input_names)

    try:
        imported = import_to_fixpoint(attempt)
    except Unsupported as error:
        raise UnsupportedError(f"import {label}: {error}", error.inputs) from error
    return imported


class FxImportAttempt:
    """Import attempt of an FX graph, under the dimension facts known so far; base of both
    importers.
    """

    takes_complex = False
    """Whether inputs may be complex numbers, as two tensors each."""

    def __init__(self, module: torch.fx.GraphModule, label: str, facts: DimFacts) -> None:
        self.scope = Scope(facts, set())
        self.walk = GraphWalk(label, self.scope, "example_inputs=(...)")
        self.main = MainBuilder(self.scope)
        self.symbols = SymbolTable()
        self.of_data: set[Var] = set()
        """Sizes that are numbers among the inputs."""
        self.graph = FxImporter(module, self.walk, self.symbols)

    def name_input_symbols(
        self, nodes: Sequence[torch.fx.Node], names: Mapping[str, str] | None = None
    ) -> None:
        """Bind the symbols that are dimensions of inputs to names."""
        for node in nodes:
            meta = node.meta.get("val")
            for axis, size in enumerate(meta.shape if isinstance(meta, torch.Tensor) else ()):
                symbol = symbol_name(size)
                if symbol is not None and symbol not in self.symbols.known:
                    shown = (names or {}).get(symbol, f"{node.name}_dim{axis}")
                    self.symbols.known[symbol] = self.scope.dim_symbol(shown)

    def name_derived_dims(self, nodes: Sequence[torch.fx.Node], names: Mapping[str, str]) -> None:
        """Bind symbols that occur only in derived dimensions, such as `2 * h`, which a run solves
        for `h`.
        """
        for node in nodes:
            meta = node.meta.get("val")
            for axis, size in enumerate(meta.shape if isinstance(meta, torch.Tensor) else ()):
                symbol = sole_symbol_name(size)
                if symbol is not None and symbol not in self.symbols.known:
                    shown = names.get(symbol, f"{node.name}_dim{axis}_root")
                    self.symbols.known[symbol] = self.scope.dim_symbol(shown)

    def name_compound_dims(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Bind dimensions made of symbols that no input has, such as `(n + 1) // 2` in a backward
        graph.
        """
        metas = [node.meta.get("val") for node in nodes]
        inputs = {symbol_name(meta) for meta in metas}  # numbers that are inputs
        for node, meta in zip(nodes, metas, strict=True):
            for axis, size in enumerate(meta.shape if isinstance(meta, torch.Tensor) else ()):
                if not self.symbols.has_all_symbols(size) and not inputs.issuperset(
                    self.symbols.symbol_names(size)
                ):
                    shown = f"{node.name}_dim{axis}"
                    self.symbols.bind_dim(size, shown, self.scope.dim_symbol(shown))

    def add_input(self, node: torch.fx.Node, name: str) -> object:
        """Return the value of an input: a parameter of main, or the number it was traced with.

        Raises:
            UnsupportedError: The dtype has no tensors here; the message names the input.
        """
        meta = node.meta.get("val")
        if isinstance(meta, torch.Tensor):
            if meta.dtype in COMPLEX_PART_DTYPES and self.takes_complex:
                real, imaginary = (
                    self._add_part_input(f"{name}_{side}", meta) for side in ("real", "imag")
                )
                return ComplexValue(real, imaginary)
            try:
                kind = TensorType(self.symbols.to_shape(meta.shape), from_torch_dtype(meta.dtype))
            except Unsupported as error:
                raise UnsupportedError(
                    f"import {self.walk.label}: input {name!r}: {error}"
                ) from error
            return self._add_tensor_input(name, kind)
        if isinstance(meta, torch.SymInt):
            return self._add_size_input(name, meta)
        return meta

    def _add_tensor_input(self, name: str, kind: TensorType) -> Value:
        """Add a parameter of main.

        Sizes that depend on numbers among the inputs cannot be inferred from parameter shapes: such
        dimensions get fresh symbols, and a reshape declares the real ones.
        """
        plain = [
            self.scope.dim_symbol(f"{name}_dim{axis}")
            if self.of_data & set(free_vars(dim))
            else dim
            for axis, dim in enumerate(kind.shape)
        ]
        value = self.main.add_tensor_input(name, TensorType(tuple(plain), kind.dtype))
        # No dimension was replaced: the parameter has the declared shape already.
        if all(a is b for a, b in zip(plain, kind.shape, strict=True)):
            return value
        # A size that is itself an input cannot be a dimension of a parameter's type: it is tied by
        # a reshape.
        shaped = self.scope.attach_span(
            op.reshape(self.scope.expr(value), kind.shape, allowzero=True)
        )
        return Value(kind, expr=shaped)

    def _add_part_input(self, name: str, meta: torch.Tensor) -> Value:
        """Add a parameter for one part of a complex input, which is passed as two tensors."""
        dtype = from_torch_dtype(COMPLEX_PART_DTYPES[meta.dtype])
        return self._add_tensor_input(name, TensorType(self.symbols.to_shape(meta.shape), dtype))

    def _add_size_input(self, name: str, meta: torch.SymInt) -> object:
        """Return a size input: a tensor's dimension if one has it, else a scalar parameter.

        The latter also for an expression of a size that no input has: backward graphs get `(n + 1)
        // 2` alone.
        """
        if not self.symbols.has_all_symbols(meta):
            value = self.main.add_tensor_input(name, TensorType((), "int64"))
            vector = self.scope.attach_span(op.reshape(self.scope.expr(value), (1,)))
            dims = data_dependent_dims.to_named_dims(
                self.scope, Value(self.scope.tensor_type_of(vector), expr=vector)
            )
            assert dims is not None
            self.symbols.bind_dim(meta, name, as_dim(dims[0]))
            self.of_data.update(free_vars(as_dim(dims[0])))
        return self.symbols.to_scalar(meta)

    def weight_constant(self, tensor: torch.Tensor, name: str) -> Value:
        """Return a weight as a constant that shares its memory.

        Raises:
            UnsupportedError: The dtype has no tensors here; the message names the weight.
        """
        label = f"weight '{name}'"
        try:
            value = constant_value(tensor_to_array(tensor))
        except Unsupported as error:
            raise UnsupportedError(f"import {self.walk.label}: {label}: {error}") from error
        assert value.expr is not None
        value.expr = attach_span([value.expr], Span(label))[0]
        return value

    def weight_value(self, tensor: torch.Tensor, name: str) -> Value | ComplexValue:
        """Return a weight as a constant; a complex one as two copies."""
        return (
            tensor_constant(tensor)
            if tensor.dtype in COMPLEX_PART_DTYPES
            else self.weight_constant(tensor, name)
        )


class _ProgramImport(FxImportAttempt):
    """Import attempt of a torch.export program."""

    def __init__(
        self, program: ExportedProgram, label: str, facts: DimFacts, freeze_params: bool
    ) -> None:
        super().__init__(program.graph_module, label, facts)
        self.program, self.freeze_params = program, freeze_params
        self.params: dict[str, Array] = {}
        self.states: dict[str, Array] = {}
        """Buffers that the program changes, by name, with their values at first."""

    def run(self, names: Mapping[str, str], input_names: Sequence[str]) -> ImportResult:
        """Import inputs, nodes and outputs; raise the collected problems if there are some."""
        signature = self.program.graph_signature
        pairs = list(zip(self.graph.inputs, signature.input_specs, strict=True))
        inputs = [(n, s) for n, s in pairs if s.kind == InputKind.USER_INPUT]
        self.name_input_symbols([node for node, _ in inputs], names)
        self.name_derived_dims([node for node, _ in inputs], names)
        parameter_names = [*input_names, *(s.arg.name for _, s in inputs[len(input_names) :])]
        for (node, _), name in zip(inputs, parameter_names, strict=True):
            self.graph.env[node] = self.add_input(node, name)
        # Mutated buffers are inputs and outputs (states); the others are constants.
        changed = {s.target for s in signature.output_specs if s.kind in _MUTATION_KINDS}
        for node, spec in pairs:
            if spec.kind != InputKind.USER_INPUT and spec.target not in changed and node.users:
                self.graph.env[node] = self._add_weight(str(spec.target))
        for node, spec in pairs:
            if spec.kind != InputKind.USER_INPUT and spec.target in changed:
                self.graph.env[node] = self._add_state(str(spec.target))
        if any(map(draws_random, self.graph.module.graph.nodes)):
            self._add_generator()
        self._require_ranges()
        self.graph.import_nodes()
        self.walk.raise_collected_problems()
        outputs = self._collect_outputs()
        if not outputs:
            raise ImportModelError(f"import {self.walk.label}: it returns no tensor")
        functions: dict[GlobalVar | str, BaseFunc] = {
            "main": self.main.build_main([value for _, value in outputs])
        }
        if self.states:
            functions[INITIAL_STATE_FUNCTION] = build_initial_state(list(self.states.values()))
        return ImportResult(
            IRModule(functions, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(name for name, _ in outputs),
            constraints=tuple(self.scope.constraints.values()),
            states=tuple(self.states),
            params=self.params,
            owns_results=True,
        )

    def _lookup_tensor(self, target: str) -> object:
        tensor = self.program.state_dict.get(target)
        return self.program.constants.get(target) if tensor is None else tensor

    def _add_state(self, target: str) -> Value:
        """Add a buffer that the program mutates: a parameter of main, and later an output."""
        buffer = self._lookup_tensor(target)
        assert isinstance(buffer, torch.Tensor), f"{target!r} is a buffer"
        value = self.weight_constant(buffer, target)
        assert value.array is not None
        self.states[target] = value.array
        return self.main.add_tensor_input(target, value.type)

    def _add_generator(self) -> None:
        """Add the random generator's state, with which every run continues where the last one
        ended.
        """
        # The generator's key is a state of the module: each run continues the stream of the one
        # before.
        first = np.array(threefry_key(0), np.uint64)
        self.states[GENERATOR_STATE] = first
        self.graph.generator = self.main.add_tensor_input(
            GENERATOR_STATE, constant_value(first).type
        )

    def _add_weight(self, target: str) -> object:
        weight = self._lookup_tensor(target)
        if not isinstance(weight, torch.Tensor):
            return weight
        value = self.weight_value(weight, target)
        if isinstance(value, ComplexValue):
            return value
        assert value.array is not None
        if not self.freeze_params and value.array.dtype.kind == "f":
            name = sanitize_name(target)  # what Relay text can hold: parameters are bound by it
            self.params[name] = value.array
            return self.main.add_tensor_input(name, value.type)
        return value

    def _require_ranges(self) -> None:
        """Require the bounds that torch.export derived for sizes, other than trivial ones."""
        for symbol, bounds in self.program.range_constraints.items():
            dim = self.symbols.known.get(str(symbol))
            if dim is None:
                continue
            for kind, limit in ((GE, bounds.lower), (LE, bounds.upper)):
                # Infinite bounds map to 2**62, which is not a constraint.
                number = int(limit) if isinstance(limit, (int, sympy.Integer)) else 2**62
                if number < 2**62 and (kind is LE or number > 1):
                    self._require(fold_binary(kind, dim, number))

    def _require(self, condition: PrimExpr) -> None:
        self.scope.span = Span("dynamic_shapes")
        self.scope.require_condition(condition)

    # Outputs.

    def _collect_outputs(self) -> list[tuple[str, Value]]:
        """Return the program's own outputs, then the mutated buffers in input order.

        None and constants are left out.
        """
        outputs: list[tuple[str, Value]] = []
        after: dict[str, Value] = {}
        items = self.graph.outputs()
        for spec, item in zip(self.program.graph_signature.output_specs, items, strict=True):
            value = to_output_value(item, f"import {self.walk.label}: output {spec.arg.name!r}")
            if spec.kind == OutputKind.USER_INPUT_MUTATION:
                text = f"it changes its input {spec.target!r}: let it give the changed one"
                raise UnsupportedError(f"import {self.walk.label}: {text}")
            if spec.kind in _MUTATION_KINDS:
                assert value is not None and spec.target is not None, "a buffer is a tensor"
                if value.type.shape != self.states[spec.target].shape:
                    raise UnsupportedError(
                        f"import {self.walk.label}: it changes the shape of its own {spec.target!r}"
                    )
                after[spec.target] = value
            elif value is not None:
                outputs.append((spec.arg.name, value))
        if self.graph.generator is not None:
            after[GENERATOR_STATE] = self.graph.generator
        # The outputs of the states come last, in the order of their inputs.
        return outputs + [(name, after[name]) for name in self.states]


def to_output_value(item: object, what: str) -> Value | None:
    """Return an output of a graph as a value; None if it is neither a tensor nor a size.

    Raises UnsupportedError for complex numbers, which leave a program as pairs.
    """
    if isinstance(item, ComplexValue):
        raise UnsupportedError(f"{what} is complex: let it give torch.view_as_real of it")
    if isinstance(item, Value):
        return item
    if isinstance(item, PrimExpr):
        return known_value(np.array(item, object), "int64")
    return None
