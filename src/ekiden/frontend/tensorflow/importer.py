"""Import of a TensorFlow model as an IRModule: inputs, nodes, outputs."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.dim_facts import DimFacts, import_to_fixpoint
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.main_builder import MainBuilder
from ekiden.frontend.common.options import Dims, Shapes, parse_shape_option
from ekiden.frontend.common.rank_cases import to_program_output
from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.unranked_inputs import StatedInput, check_ranks, format_user_shape
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value
from ekiden.frontend.tensorflow.graph import GraphImporter, ImportState
from ekiden.frontend.tensorflow.load import GraphInput, TensorflowModel, output_dtype, read_model
from ekiden.ir.module import IRModule
from ekiden.ir.type import tensor_type
from ekiden.runtime.errors import CompileError, ImportModelError, UnsupportedError


def import_tensorflow(
    source: object,
    shape: Shapes | None = None,
    signature: str = "",
    outputs: Sequence[str] = (),
) -> ImportResult:
    """Import a SavedModel, frozen graph, Keras model or concrete function as a module whose `main`
    computes it.

    Extents that the model leaves open are symbolic.

    Args:
        source: A path, bytes, or an object of TensorFlow or Keras.
        shape: Shapes of inputs by name, which replace the declared ones.
        signature: A signature of a SavedModel; "serving_default" by default if there is one.
        outputs: Nodes or tensors of a frozen graph; by default those that no node reads.

    Raises:
        UnsupportedError: Lists every node that cannot be imported.
        ImportModelError: The model is broken.
        CompileError: The model has no such signature, shape or output.
    """
    model = read_model(source, signature, outputs)
    return import_to_fixpoint(lambda facts: _ModelImport(model, facts).run(shape or {}))


class _ModelImport:
    """Import attempt of one model, under the dimension facts known so far."""

    def __init__(self, model: TensorflowModel, facts: DimFacts) -> None:
        self.model, self.label = model, model.label
        self.scope = Scope(facts, set())
        self.main = MainBuilder(self.scope)
        self.shared = ImportState(model, self.scope)
        self.graph = GraphImporter(self.shared.analyse_graph(""), self.shared)

    def run(self, shapes: Shapes) -> ImportResult:
        """Import inputs, nodes and outputs; raise the collected problems if there are some."""
        inputs, outputs = self.model.graph.inputs, self.model.graph.outputs
        names = [i.name for i in inputs]
        for name in shapes:
            if name not in names:
                input_list = ", ".join(map(repr, names)) or "none"
                text = f"shape: no input {name!r}; it has {input_list}"
                raise CompileError(f"import {self.label}: {text}")
        self._check_ranks(shapes)
        for entry in inputs:
            self.graph.env.bind({entry.tensor: self._add_input(entry, shapes.get(entry.name))})
        try:
            values = self.graph.import_tensors([tensor for _, tensor in outputs])
        except Unsupported as error:
            self.shared.raise_collected_problems()
            raise ImportModelError(f"import {self.label}: {error}") from error
        if not values:
            raise ImportModelError(f"import {self.label}: it returns no tensor")
        self.shared.raise_collected_problems()
        values = [to_program_output(self.scope, value) for value in values]
        return ImportResult(
            IRModule({"main": self.main.build_main(values)}, self.scope.module.type_definitions),
            input_names=tuple(self.main.input_names),
            output_names=tuple(name for name, _ in outputs),
            constraints=tuple(self.scope.constraints.values()),
            sequences=True,
        )

    def _check_ranks(self, shapes: Shapes) -> None:
        """Raise UnrankedInputError for inputs whose rank neither the model nor `shapes`
        declares.
        """
        graph, stated = self.model.graph, list[StatedInput]()
        for entry in graph.inputs:
            override = shapes.get(entry.name)
            shape = format_user_shape(entry.name, entry.shape if override is None else override)
            stated.append((entry.name, entry.dtype, shape))
        check_ranks(self.label, stated, [(n, output_dtype(graph, t)) for n, t in graph.outputs])

    def _add_input(self, entry: GraphInput, override: object) -> Value:
        what = f"input {entry.name!r}"
        if entry.dtype in ("string", "resource", "variant"):
            raise UnsupportedError(f"import {self.label}: {what} is {entry.dtype}")
        dims: Dims | None = None
        if entry.shape is not None:
            dims = [d if d >= 0 else None for d in entry.shape]
        if override is not None:
            replaced = parse_shape_option(entry.name, override)
            if dims is not None and len(replaced) != len(dims):
                text = f"shape of the {what}: expected {len(dims)} dimensions, got {len(replaced)}"
                raise CompileError(f"import {self.label}: {text}")
            dims = replaced
        assert dims is not None, "an input without a rank has been refused"
        extents = [self.main.input_dim(entry.name, axis, d) for axis, d in enumerate(dims)]
        return self.main.add_tensor_input(entry.name, tensor_type(extents, entry.dtype))
