"""From a model of TensorFlow to a module: its inputs, its nodes, its outputs."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.cases import leaving
from ekiden.frontend.common.facts import Facts, settled
from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.main import Main
from ekiden.frontend.common.options import Dims, Shapes, given_dims
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.tensorflow.graph import Graph, Shared
from ekiden.frontend.tensorflow.load import Input, Model, read_model
from ekiden.ir.module import IRModule
from ekiden.ir.type import tensor_type
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError


def import_tensorflow(
    source: object,
    shape: Shapes | None = None,
    signature: str = "",
    outputs: Sequence[str] = (),
) -> ImportedModule:
    """A module whose `main` computes a model: a SavedModel, a frozen graph, a Keras model or a
    concrete function.

    Extents that the model leaves open are symbolic; `shape` replaces those of inputs by name.
    `signature` is one of a SavedModel's, "serving_default" where it has that; `outputs` are nodes
    or tensors of a frozen graph, which gives without them what nothing in it takes.
    Raises UnsupportedError listing every node that cannot be imported, ImportModelError for a
    broken model, CompileError for a signature, a shape or an output that the model has not.
    """
    model = read_model(source, signature, outputs)
    return settled(lambda facts: _Importer(model, facts).run(shape or {}))


class _Importer:
    """One attempt, with what is known so far about the dimensions."""

    def __init__(self, model: Model, facts: Facts) -> None:
        self.model, self.label = model, model.label
        self.scope = Scope(facts, set())
        self.main = Main(self.scope)
        self.shared = Shared(model, self.scope)
        self.graph = Graph(self.shared.plan(""), self.shared)

    def run(self, shapes: Shapes) -> ImportedModule:
        """Import everything, or raise."""
        inputs, outputs = self.model.graph.inputs, self.model.graph.outputs
        names = [i.name for i in inputs]
        for name in shapes:
            if name not in names:
                known = ", ".join(map(repr, names)) or "none"
                text = f"shape: no input {name!r}; it has {known}"
                raise CompileError(f"import {self.label}: {text}")
        for each in inputs:
            self.graph.env.put({each.tensor: self._input(each, shapes.get(each.name))})
        try:
            found = self.graph.values([tensor for _, tensor in outputs])
        except Unsupported as error:
            self.shared.finish()
            raise ImportModelError(f"import {self.label}: {error}") from error
        if not found:
            raise ImportModelError(f"import {self.label}: it gives no tensor")
        self.shared.finish()
        found = [leaving(self.scope, value) for value in found]
        return ImportedModule(
            IRModule({"main": self.main.function(found)}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(name for name, _ in outputs),
            constraints=tuple(self.scope.constraints.values()),
            sequences=True,
        )

    def _input(self, each: Input, given: object) -> Value:
        what = f"input {each.name!r}"
        if each.dtype in ("string", "resource", "variant"):
            raise UnsupportedError(f"import {self.label}: {what} is {each.dtype}")
        dims: Dims | None = None
        if each.shape is not None:
            dims = [d if d >= 0 else None for d in each.shape]
        if given is not None:
            replaced = given_dims(each.name, given)
            if dims is not None and len(replaced) != len(dims):
                text = f"shape of the {what}: expected {len(dims)} dimensions, got {len(replaced)}"
                raise CompileError(f"import {self.label}: {text}")
            dims = replaced
        if dims is None:
            text = f"{what} may have any rank; shape={{{each.name!r}: (...)}} says which"
            raise CompileError(f"import {self.label}: {text}")
        extents = [self.main.dim(each.name, axis, d) for axis, d in enumerate(dims)]
        return self.main.tensor(each.name, tensor_type(extents, each.dtype))
