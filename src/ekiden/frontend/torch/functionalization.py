"""Check whether a program can be imported as exported, without PyTorch's decomposition and
functionalization passes.

Such a program has operators of the table alone, and writes into no tensor that is read through
another alias afterwards: `y.relu_()` then makes a new value, which `y` denotes from there on.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.export import ExportedProgram

from ekiden.frontend.torch.converters.elementwise import identity_cast
from ekiden.frontend.torch.registry import find_converter
from ekiden.frontend.torch.rng import argument_value, draws_random
from ekiden.runtime.lazy_dataclass import dataclass

TRAINING_ARGUMENTS = ("train", "training")
"""Arguments of operators that do something else, and write more than they say, where they are
true."""


def functional_variant(target: object) -> object:
    """Return the functional variant of an in-place operator: `aten.add.Tensor` for
    `aten.add_.Tensor`.

    None for operators that write nothing, or something other than their first argument.
    """
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    schema = target._schema
    written = [bool(a.alias_info and a.alias_info.is_write) for a in schema.arguments]
    space, _, name = schema.name.partition("::")
    if written[:1] != [True] or any(written[1:]) or not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, space), name[:-1], None)
    return getattr(packet, target._overloadname, None)


def is_directly_importable(program: ExportedProgram) -> bool:
    """Return whether a program can be imported as exported."""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    return all(map(_has_converter, calls)) and _writes_are_unobserved(program.graph)


def _has_converter(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):  # getitem and sizes, not graphs in a node
        return not isinstance(target, torch._ops.HigherOrderOperator)
    if target._schema.is_mutable:
        twin = functional_variant(target)
        return twin is not None and find_converter(twin) is not None and not draws_random(node)
    return find_converter(target) is not None and not any(
        argument_value(node, name) for name in TRAINING_ARGUMENTS
    )


def _storage_ids(node: torch.fx.Node) -> list[int]:
    """Return the ids of the storages behind a node's results; views share theirs."""
    meta = node.meta.get("val")
    metas = meta if isinstance(meta, (list, tuple)) else [meta]
    tensors = [m for m in metas if isinstance(m, torch.Tensor) and m.layout == torch.strided]
    return [m.untyped_storage()._cdata for m in tensors]


def aliased_tensor_node(node: torch.fx.Node) -> torch.fx.Node | None:
    """Return the node whose tensor object this one returns: an in-place operator's target, or the
    input of an inactive dropout; None for other nodes.
    """
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    is_dropout = find_converter(target) is identity_cast and argument_value(node, "train") is False
    is_same = functional_variant(target) is not None or is_dropout
    source = node.args[0] if is_same and node.args else None
    return source if isinstance(source, torch.fx.Node) else None


@dataclass(eq=False, slots=True)
class _TensorUses:
    """Uses of one tensor under all its names."""

    last_read: int
    """Where it is read last."""
    is_input_or_weight: bool
    """Whether it is an input or a weight."""


def _writes_are_unobserved(graph: torch.fx.Graph) -> bool:
    """Return whether each in-place write is observed only through its result and names of the same
    tensor.

    Writes into an input or a weight do not qualify.
    """
    position = {node: i for i, node in enumerate(graph.nodes)}
    canonical: dict[int, int] = {}
    """Memory that torch.export inferred as new -> whose it is."""
    of: dict[torch.fx.Node, _TensorUses] = {}
    sharing: dict[int, list[_TensorUses]] = defaultdict(list)
    for node in position:
        last = max((position[u] for u in node.users), default=-1)
        storage_ids, before = _storage_ids(node), aliased_tensor_node(node)
        if before is None:
            of[node] = _TensorUses(last, node.op != "call_function")
            for memory in storage_ids:
                sharing[canonical.get(memory, memory)].append(of[node])
            continue
        tensor = of[node] = of[before]
        tensor.last_read = max(tensor.last_read, last)
        canonical_ids = [canonical.get(memory, memory) for memory in _storage_ids(before)]
        if functional_variant(node.target) is None:
            canonical.update(zip(storage_ids, canonical_ids, strict=True))
            continue
        if storage_ids != _storage_ids(before):  # as in programs that were saved
            return False
        for memory in canonical_ids:
            aliases = [named for named in sharing[memory] if named is not tensor]
            if any(t.is_input_or_weight for t in (tensor, *aliases)):
                return False
            if any(t.last_read > position[node] for t in aliases):
                return False
            sharing[memory] = [tensor]  # of which the others are read no more
    return True


__all__ = ["aliased_tensor_node", "functional_variant", "is_directly_importable"]
