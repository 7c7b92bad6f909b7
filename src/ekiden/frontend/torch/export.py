"""From a module to a program of operators that the table has: torch.export and decompositions."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.export import ExportedProgram

from ekiden.frontend.common.imported import ImportedModule
from ekiden.frontend.common.libraries import told_by
from ekiden.frontend.torch.apart import APART
from ekiden.frontend.torch.examples import check_examples, check_module, dims_of, specs_of
from ekiden.frontend.torch.layers import whole_layers
from ekiden.frontend.torch.plain import is_plain, same_as, twin_of
from ekiden.frontend.torch.program import import_program
from ekiden.frontend.torch.registry import is_taken_apart
from ekiden.frontend.torch.symbols import derived_name
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.logs import LazyLogger

LOG = LazyLogger(__name__)
LIBRARIES = ("torch", "sympy")
"""Those whose lines are none of the user's."""

FLAT_WEIGHTS = r"(?s)The tensor attributes .*_flat_weights"
"""What torch.export warns of for each of its own recurrent layers, which nobody can mend."""

TWICE = ("torch._subclasses.fake_tensor", "torch.export")
"""Loggers of PyTorch that say, with a traceback, what is raised then."""

Decompositions = dict[torch._ops.OpOverload, Callable[..., Any]]


def decompositions() -> Decompositions:
    """How operators without a converter are made of others: PyTorch's own definitions, and ours of
    those that it has none for."""
    found: Decompositions = dict(torch.export.default_decompositions())
    for target, function in torch._decomp.decomposition_table.items():
        if isinstance(target, torch._ops.OpOverload):
            found.setdefault(target, function)
    found.update(APART)
    return {t: f for t, f in found.items() if is_taken_apart(t)}


@contextmanager
def told_by_torch(tool: str, label: str) -> Iterator[None]:
    """As told_by, of what works on a user's program; the message is all that is said."""
    loggers = [logging.getLogger(name) for name in TWICE]
    try:
        for logger in loggers:
            logger.addFilter(_is_no_report)
        with told_by(tool, label, LIBRARIES):
            yield
    finally:
        for logger in loggers:
            logger.removeFilter(_is_no_report)


def _is_no_report(record: logging.LogRecord) -> bool:
    return not record.exc_info


def exported(
    module: torch.nn.Module | torch.jit.ScriptFunction[Any, Any],
    example_inputs: Sequence[object],
    example_kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
) -> ExportedProgram:
    """The program of a module. Raises ImportModelError with what torch.export says, and the line of
    the module where it stopped.
    """
    label = label_of(module)
    if isinstance(module, (torch.jit.ScriptModule, torch.jit.ScriptFunction)):
        return _of_script(module, example_inputs)
    check_module(module, label)
    check_examples(module, example_inputs, example_kwargs or {}, dynamic_shapes, label)
    kwargs = None if example_kwargs is None else dict(example_kwargs)
    with warnings.catch_warnings(), told_by_torch("torch.export", label), whole_layers():
        warnings.filterwarnings("ignore", FLAT_WEIGHTS, UserWarning)
        return torch.export.export(
            module, tuple(example_inputs), kwargs,
            dynamic_shapes=dynamic_shapes, strict=False,  # type: ignore[arg-type]
        )  # fmt: skip


def _of_script(
    module: Any,  # noqa: ANN401 - PyTorch's own types of these have no schema
    example_inputs: Sequence[object],
) -> ExportedProgram:
    """TorchScript, by PyTorch's converter of it."""
    from torch._export.converter import TS2EPConverter  # noqa: PLC0415

    is_function = isinstance(module, torch.jit.ScriptFunction)
    schema = module.schema if is_function else module.forward.schema
    wanted = [a for a in schema.arguments[not is_function :] if not a.has_default_value()]
    if len(example_inputs) < len(wanted):
        names = ", ".join(repr(a.name) for a in wanted)
        text = f"its inputs are {names}, got {len(example_inputs)} of them"
        raise ImportModelError(f"import a TorchScript module: {text}")
    with told_by_torch("PyTorch's converter", "a TorchScript module"), whole_layers():
        program: ExportedProgram = TS2EPConverter(module, tuple(example_inputs)).convert()
        return program


def decomposed(program: ExportedProgram, label: str = "program") -> ExportedProgram:
    """A program of operators that the table has, as far as PyTorch says how."""
    program = _prepared(program)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns of its own deprecations
        with told_by("torch.export", label, LIBRARIES):
            made: ExportedProgram = program.run_decompositions(decompositions())
            return made


def _prepared(program: ExportedProgram) -> ExportedProgram:
    """Return the program without what PyTorch takes apart wrongly where something is written in
    place: dropouts that give their input itself, which it takes for copies (a write into one would
    not be seen by the other), and copies that broadcast, of which it forgets the shape.
    """
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    if not any(twin_of(n.target) is not None for n in calls):
        return program
    if not any(_is_name(n) or _broadcasts(n) for n in calls):
        return program
    graph, signature = copy.deepcopy(program.graph), copy.deepcopy(program.graph_signature)
    for node in graph.nodes:
        if _is_name(node):
            before = same_as(node)
            assert before is not None
            node.replace_all_uses_with(before)
            signature.replace_all_uses(node.name, before.name)
            graph.erase_node(node)
        elif _broadcasts(node):
            to, source = node.args[:2]
            with graph.inserting_before(node):
                whole = graph.call_function(torch.ops.aten.expand_as.default, (source, to))
            whole.meta["val"] = source.meta["val"].expand(to.meta["val"].shape)
            node.update_arg(1, whole)
    return ExportedProgram(
        program.graph_module, graph, signature, program.state_dict, program.range_constraints,
        program.module_call_graph, program.example_inputs, program.constants,
        verifiers=program.verifiers,
    )  # fmt: skip


def _is_name(node: torch.fx.Node) -> bool:
    """Whether a call gives its input itself."""
    return same_as(node) is not None and twin_of(node.target) is None


def _broadcasts(node: torch.fx.Node) -> bool:
    """Whether a call copies a tensor into one of another shape."""
    if node.target is not torch.ops.aten.copy_.default:
        return False
    shapes = [each.meta["val"].shape for each in node.all_input_nodes[:2]]
    return len(shapes) == 2 and shapes[0] != shapes[1]


def import_exported(
    program: ExportedProgram,
    label: str = "program",
    names: Mapping[str, str] | None = None,
    freeze_params: bool = True,
    input_names: Sequence[str] = (),
) -> ImportedModule:
    """`import_program` of a program as torch.export wrote it, where that can be; else taken apart.
    Raises as that does."""
    if is_plain(program):
        try:
            return import_program(program, label, names, freeze_params, input_names)
        except UnsupportedError as error:
            LOG.info("import %s: taken apart by PyTorch: %s", label, error)
    return import_program(decomposed(program, label), label, names, freeze_params, input_names)


def label_of(module: object) -> str:
    """A model as messages have it."""
    return f"module {type(module).__name__}"


def symbol_names(program: ExportedProgram, dynamic_shapes: object) -> dict[str, str]:
    """The names that a user gave to dimensions (torch.export.Dim), by the program's symbols."""
    nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    inputs = [nodes[name] for name in program.graph_signature.user_inputs if name in nodes]
    found: dict[str, str] = {}
    for node, spec in zip(inputs, specs_of(dynamic_shapes, [n.name for n in inputs]), strict=False):
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            continue
        for axis, dim in dims_of(spec):
            symbol = derived_name(meta.shape[axis]) if axis < meta.dim() else None
            root = getattr(dim, "root", dim)  # the h of 2 * Dim("h")
            shown = root if isinstance(root, str) else getattr(root, "__name__", None)
            if symbol is not None and isinstance(shown, str) and not shown.startswith("_"):
                found.setdefault(symbol, shown)
    return found
