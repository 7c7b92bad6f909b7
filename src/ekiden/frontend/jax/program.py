"""From a program of jax.export to a module: its inputs, its operations, its outputs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax
import numpy as np
from jax import export
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.facts import Facts, settled
from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.main import Main
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, clean_name, constant
from ekiden.frontend.common.walk import Walk
from ekiden.frontend.jax.dtype import dtype_of, extents_of
from ekiden.frontend.jax.graph import Graph
from ekiden.frontend.jax.node import Many
from ekiden.ir.expr import BaseFunc, GlobalVar
from ekiden.ir.module import IRModule
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.type import TensorType
from ekiden.runtime.errors import ImportModelError, UnsupportedError


def import_program(program: export.Exported, label: str) -> ImportedModule:
    """A module whose `main` computes a program of jax.export. Its inputs are the leaves of the
    function's arguments, named as jax.tree_util.keystr does; symbolic dimensions keep their names.

    Raises UnsupportedError listing every operation that cannot be imported.
    """
    with mlir.make_ir_context() as context:
        try:
            module = stablehlo.deserialize_portable_artifact(
                context, program.mlir_module_serialized
            )
        except Exception as error:
            text = str(error).strip().partition("\n")[0]
            raise ImportModelError(f"import {label}: no StableHLO: {text}") from error

        def attempt(facts: Facts) -> ImportedModule:
            return _Program(program, module, label, facts).run()

        try:
            return settled(attempt)
        except Unsupported as error:
            raise UnsupportedError(f"import {label}: {error}", error.inputs) from error


class _Program:
    """One attempt with what is known so far about the dimensions."""

    def __init__(
        self, program: export.Exported, module: ir.Module, label: str, facts: Facts
    ) -> None:
        self.program = program
        self.scope = Scope(facts, set())
        self.walk = Walk(label, self.scope, "example_inputs=(...)")
        self.main = Main(self.scope)
        self.graph = Graph(self.walk, module)

    def run(self) -> ImportedModule:
        """Import everything, or raise."""
        block = self.graph.function("main")
        kept = self.program.module_kept_var_idx
        which = self._platform()
        arguments = list(block.arguments)[len(which) :]
        names = _input_names(self.program, arguments)
        inputs = which
        for argument, index in zip(arguments, kept, strict=True):
            inputs.append(self.main.tensor(names[index], self._type(argument, index, names[index])))
        reported: Unsupported | None = None
        given: Many = []
        try:
            given = self.graph.results(block, inputs)
        except Unsupported as error:
            reported = error
        self.walk.finish()
        if reported is not None:
            raise reported
        outputs = self._real(given)
        if not outputs:
            raise ImportModelError(f"import {self.walk.label}: it gives no tensor")
        functions: dict[GlobalVar | str, BaseFunc] = {"main": self.main.function(outputs)}
        return ImportedModule(
            IRModule(functions, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(_output_names(self.program)),
            constraints=tuple(self.scope.constraints.values()),
        )

    def _platform(self) -> list[Value]:
        """What stands before the inputs of a program for several platforms: which of them it is."""
        platforms = self.program.platforms
        if len(platforms) == 1:
            return []
        if "cpu" not in platforms:
            text = f"it is exported for {', '.join(platforms)}: export it for 'cpu'"
            raise UnsupportedError(f"import {self.walk.label}: {text}")
        return [constant(np.array(platforms.index("cpu"), np.int32))]

    def _real(self, given: Many) -> list[Value]:
        for name, each in zip(_output_names(self.program), given, strict=True):
            if isinstance(each, Complex):
                raise UnsupportedError(
                    f"import {self.walk.label}: output {name!r} is of complex numbers, of which "
                    "there are no tensors: give their parts, jnp.real and jnp.imag"
                )
        return [each for each in given if isinstance(each, Value)]

    def _type(self, argument: ir.Value, index: int, name: str) -> TensorType:
        """The type of an input. A dimension that is one symbol has its name; of one that is
        computed from symbols the program takes them back.
        """
        stated = self.program.in_avals[index].shape
        try:
            dtype, extents = dtype_of(argument.type), extents_of(argument.type)
        except Unsupported as error:
            raise UnsupportedError(f"import {self.walk.label}: input {name!r}: {error}") from error
        dims: list[PrimExpr] = []
        for axis, (extent, dim) in enumerate(zip(extents, stated, strict=True)):
            if extent is not None:
                dims.append(const(extent, "int64"))
            elif str(dim).isidentifier():
                dims.append(self.scope.symbol(str(dim)))
            else:
                dims.append(self.scope.symbol(f"{clean_name(name)}_dim{axis}"))
        return TensorType(tuple(dims), dtype)


def _input_names(program: export.Exported, arguments: Sequence[ir.Value]) -> list[str]:
    """`x`, `params['w']`: the leaves of the arguments as the function calls them, or, where it is
    not known, by their positions.
    """
    tree = jax.tree_util.tree_unflatten(program.in_tree, [0] * program.in_tree.num_leaves)
    names = [_name(path) for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    for argument, index in zip(arguments, program.module_kept_var_idx, strict=True):
        names[index] = _stated(argument) or names[index]
    return names


def _stated(argument: ir.Value) -> str:
    """The name of an argument in the program, or in the function that it is handed to."""
    found = str(argument.location)
    match = _NAME.fullmatch(found)
    if match:
        return match[1]
    for use in argument.uses:
        if use.owner.name == "func.call":
            return _of_callee(use.owner, use.operand_number)
    return ""


_NAME = re.compile(r'loc\("([^"]+)"\)')


def _of_callee(call: ir.Operation, index: int) -> str:
    module = call.parent.operation.parent if call.parent is not None else None
    name = call.attributes["callee"].value
    for each in module.regions[0].blocks[0].operations if module is not None else ():
        if each.operation.name == "func.func" and each.attributes["sym_name"].value == name:
            match = _NAME.fullmatch(str(each.regions[0].blocks[0].arguments[index].location))
            return match[1] if match else ""
    return ""


def _name(path: Sequence[object]) -> str:
    """Of a leaf of (args, kwargs)."""
    side, first, *rest = path
    key = getattr(first, "idx", getattr(first, "key", 0))
    head = f"arg{key}" if getattr(side, "idx", 0) == 0 else str(key)
    return f"{head}{jax.tree_util.keystr(tuple(rest))}"


def _output_names(program: export.Exported) -> list[str]:
    count = program.out_tree.num_leaves
    tree = jax.tree_util.tree_unflatten(program.out_tree, [0] * count)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    return ["result" + jax.tree_util.keystr(path) for path in paths]
