"""Export of a module by torch.export, and decomposition of operators without a converter."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from ekiden.frontend.common.error_translation import translate_errors
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.torch.decompositions import DECOMPOSITIONS
from ekiden.frontend.torch.example_inputs import (
    check_examples,
    check_module,
    input_specs,
    spec_dims,
)
from ekiden.frontend.torch.functionalization import (
    aliased_tensor_node,
    functional_variant,
    is_directly_importable,
)
from ekiden.frontend.torch.program import import_program
from ekiden.frontend.torch.recurrent_layers import preserve_recurrent_layers
from ekiden.frontend.torch.registry import should_decompose
from ekiden.frontend.torch.sympy_conversion import sole_symbol_name
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_logger import LazyLogger

LOG = LazyLogger(__name__)
LIBRARY_PACKAGES = ("torch", "sympy")
"""Those whose lines are none of the user's."""

FLAT_WEIGHTS_WARNING = r"(?s)The tensor attributes .*_flat_weights"
"""What torch.export warns of for each of its own recurrent layers, which nobody can mend."""

DUPLICATE_LOGGERS = ("torch._subclasses.fake_tensor", "torch.export")
"""Loggers of PyTorch that say, with a traceback, what is raised then."""

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def decomposition_table() -> Decompositions:
    """Return the decomposition table: PyTorch's entries, then Ekiden's for operators without
    one.
    """
    table: Decompositions = dict(torch.export.default_decompositions())
    for target, function in torch._decomp.decomposition_table.items():
        if isinstance(target, torch._ops.OpOverload):
            # PyTorch's default table wins: torch.export's own semantics are built on it.
            table.setdefault(target, function)
    table.update(DECOMPOSITIONS)
    # An operator with a converter of its own stays whole; composites are decomposed as PyTorch does
    # it.
    return {t: f for t, f in table.items() if should_decompose(t)}


@contextmanager
def translate_torch_errors(tool: str, label: str) -> Iterator[None]:
    """Translate PyTorch's errors on a user's program, without PyTorch's own log records."""
    loggers = [logging.getLogger(name) for name in DUPLICATE_LOGGERS]
    try:
        for logger in loggers:
            logger.addFilter(_has_no_traceback)
        with translate_errors(tool, label, LIBRARY_PACKAGES):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_has_no_traceback)


def _has_no_traceback(record: logging.LogRecord) -> bool:
    return not record.exc_info


def export_module(
    module: torch.nn.Module | torch.jit.ScriptFunction[Any, Any],
    example_inputs: Sequence[object],
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
) -> ExportedProgram:
    """Export a module as a program.

    Args:
        module: A module, or a TorchScript module or function.
        example_inputs: Positional inputs to trace with.
        example_kwargs: Keyword inputs to trace with.
        dynamic_shapes: Dynamic dimensions as torch.export expects them.

    Raises:
        ImportModelError: torch.export fails; the message names the line of the module.
    """
    label = model_label(module)
    if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return _convert_torchscript(module, example_inputs)
    check_module(module, label)
    check_examples(module, example_inputs, example_kwargs or {}, dynamic_shapes, label)
    kwargs = None if example_kwargs is None else dict(example_kwargs)
    with (
        warnings.catch_warnings(),
        translate_torch_errors("torch.export", label),
        preserve_recurrent_layers(),
    ):
        warnings.filterwarnings("ignore", FLAT_WEIGHTS_WARNING, UserWarning)
        return torch.export.export(
            module, tuple(example_inputs), kwargs,
            dynamic_shapes=dynamic_shapes, strict=False,  # type: ignore[arg-type]
        )  # fmt: skip


def _convert_torchscript(
    module: Any,  # noqa: ANN401 - PyTorch's own types of these have no schema
    example_inputs: Sequence[object],
) -> ExportedProgram:
    """Convert a TorchScript module to a program by PyTorch's TS2EPConverter."""
    from torch._export.converter import TS2EPConverter  # noqa: PLC0415

    is_function = isinstance(module, torch.jit.ScriptFunction)
    schema = module.schema if is_function else module.forward.schema
    required = [a for a in schema.arguments[not is_function :] if not a.has_default_value()]
    if len(example_inputs) < len(required):
        names = ", ".join(repr(a.name) for a in required)
        text = f"its inputs are {names}, got {len(example_inputs)} of them"
        raise ImportModelError(f"import a TorchScript module: {text}")
    with (
        translate_torch_errors("PyTorch's converter", "a TorchScript module"),
        preserve_recurrent_layers(),
    ):
        program: ExportedProgram = TS2EPConverter(module, tuple(example_inputs)).convert()
        return program


def decompose_program(program: ExportedProgram, label: str = "program") -> ExportedProgram:
    """Decompose the operators of a program that lack a converter."""
    program = _fix_for_functionalization(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own deprecations
        with translate_errors("torch.export", label, LIBRARY_PACKAGES):
            result: ExportedProgram = program.run_decompositions(decomposition_table())
            return result


def _fix_for_functionalization(program: ExportedProgram) -> ExportedProgram:
    """Rewrite a program where PyTorch's functionalization of in-place writes is wrong.

    Dropouts that return their input itself are removed (PyTorch treats them as copies, so that a
    write into one would not be seen through the other); copies that broadcast get an explicit
    expand, as PyTorch loses their shape.
    """
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    if not any(functional_variant(n.target) is not None for n in calls):
        return program
    if not any(_returns_input_itself(n) or _is_broadcasting_copy(n) for n in calls):
        return program
    # The user's program must stay unchanged.
    graph, signature = copy.deepcopy(program.graph), copy.deepcopy(program.graph_signature)
    for node in graph.nodes:
        if _returns_input_itself(node):
            before = aliased_tensor_node(node)
            assert before is not None
            node.replace_all_uses_with(before)
            signature.replace_all_uses(node.name, before.name)
            graph.erase_node(node)
        elif _is_broadcasting_copy(node):
            to, source = node.args[:2]
            with graph.inserting_before(node):
                expanded = graph.call_function(torch.ops.aten.expand_as.default, (source, to))
            expanded.meta["val"] = source.meta["val"].expand(to.meta["val"].shape)
            node.update_arg(1, expanded)
    return ExportedProgram(
        program.graph_module, graph, signature, program.state_dict, program.range_constraints,
        program.module_call_graph, program.example_inputs, program.constants,
        verifiers=program.verifiers,
    )  # fmt: skip


def _returns_input_itself(node: torch.fx.Node) -> bool:
    """Return whether a call returns its input itself."""
    return aliased_tensor_node(node) is not None and functional_variant(node.target) is None


def _is_broadcasting_copy(node: torch.fx.Node) -> bool:
    """Return whether a copy_ broadcasts its source."""
    if node.target is not torch.ops.aten.copy_.default:
        return False
    shapes = [operand.meta["val"].shape for operand in node.all_input_nodes[:2]]
    return len(shapes) == 2 and shapes[0] != shapes[1]


def import_exported(
    program: ExportedProgram,
    label: str = "program",
    names: Mapping[str, str] | None = None,
    freeze_params: bool = True,
    input_names: Sequence[str] = (),
) -> ImportResult:
    """Import a program as exported if possible, else decomposed by PyTorch."""
    # Decomposition takes seconds for large programs, so it is skipped where every operator has a
    # converter.
    if is_directly_importable(program):
        try:
            return import_program(program, label, names, freeze_params, input_names)
        except UnsupportedError as error:
            LOG.info("import %s: taken apart by PyTorch: %s", label, error)
    return import_program(
        decompose_program(program, label), label, names, freeze_params, input_names
    )


def model_label(module: object) -> str:
    """Return the name of a model for messages."""
    return f"module {type(module).__name__}"


def symbol_names(program: ExportedProgram, dynamic_shapes: object) -> dict[str, str]:
    """Return the user's names of dimensions (torch.export.Dim), by the program's symbols."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [nodes[name] for name in program.graph_signature.user_inputs if name in nodes]
    names: dict[str, str] = {}
    for node, spec in zip(
        inputs, input_specs(dynamic_shapes, [n.name for n in inputs]), strict=False
    ):
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            continue
        for axis, dim in spec_dims(spec):
            symbol = sole_symbol_name(meta.shape[axis]) if axis < meta.dim() else None
            root = getattr(dim, "root", dim)  # the h of 2 * Dim("h")
            shown = root if isinstance(root, str) else getattr(root, "__name__", None)
            if symbol is not None and isinstance(shown, str) and not shown.startswith("_"):
                names.setdefault(symbol, shown)
    return names
