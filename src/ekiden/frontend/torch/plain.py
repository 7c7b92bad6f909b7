"""Programs that can be imported as torch.export wrote them, without PyTorch's own pass that takes
operators apart and makes a program functional, which is most of the time that an import takes.

Such a program has operators of the table alone, and writes into no tensor that is seen by another
name afterwards: `y.relu_()` then makes a new value, for which `y` stands from there on.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch.export import ExportedProgram

from ekiden.frontend.torch.converters.pointwise import same
from ekiden.frontend.torch.draws import argument, is_random
from ekiden.frontend.torch.registry import converter_of
from ekiden.runtime.lazy_dataclass import dataclass

TRAINING = ("train", "training")
"""Arguments of operators that do something else, and write more than they say, where they are
true."""


def twin_of(target: object) -> object:
    """The operator that gives what an in-place one writes into its first argument:
    `aten.add.Tensor` of `aten.add_.Tensor`; None for operators that write nothing, or another."""
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return None
    schema = target._schema
    written = [bool(a.alias_info and a.alias_info.is_write) for a in schema.arguments]
    space, _, name = schema.name.partition("::")
    if written[:1] != [True] or any(written[1:]) or not name.endswith("_"):
        return None
    packet = getattr(getattr(torch.ops, space), name[:-1], None)
    return getattr(packet, target._overloadname, None)


def is_plain(program: ExportedProgram) -> bool:
    """Whether a program can be imported as it stands."""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    return all(map(_is_known, calls)) and _writes_are_seen_once(program.graph)


def _is_known(node: torch.fx.Node) -> bool:
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):  # getitem and sizes, not graphs in a node
        return not isinstance(target, torch._ops.HigherOrderOperator)
    if target._schema.is_mutable:
        twin = twin_of(target)
        return twin is not None and converter_of(twin) is not None and not is_random(node)
    return converter_of(target) is not None and not any(argument(node, name) for name in TRAINING)


def _storages(node: torch.fx.Node) -> list[int]:
    """The memory of what a node gives, by the tensors that torch.export inferred: those of views
    are views."""
    meta = node.meta.get("val")
    many = meta if isinstance(meta, (list, tuple)) else [meta]
    tensors = [m for m in many if isinstance(m, torch.Tensor) and m.layout == torch.strided]
    return [m.untyped_storage()._cdata for m in tensors]


def same_as(node: torch.fx.Node) -> torch.fx.Node | None:
    """The node that gives the very same tensor: what an in-place operator writes into, what a
    dropout outside of training is given (torch.export infers another tensor of that)."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return None
    is_dropout = converter_of(target) is same and argument(node, "train") is False
    is_same = twin_of(target) is not None or is_dropout
    found = node.args[0] if is_same and node.args else None
    return found if isinstance(found, torch.fx.Node) else None


@dataclass(eq=False, slots=True)
class _Named:
    """A tensor that nodes give: all that give the very same one."""

    read: int
    """Where it is read last."""
    is_given: bool
    """Whether it is an input or a weight."""


def _writes_are_seen_once(graph: torch.fx.Graph) -> bool:
    """Whether what each in-place operator writes into is read afterwards by no name but that of its
    result and those that were given to the very same tensor, and is nothing of the caller's."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    taken: dict[int, int] = {}
    """Memory that torch.export inferred as new -> whose it is."""
    of: dict[torch.fx.Node, _Named] = {}
    sharing: dict[int, list[_Named]] = defaultdict(list)
    for node in place:
        last = max((place[u] for u in node.users), default=-1)
        own, before = _storages(node), same_as(node)
        if before is None:
            of[node] = _Named(last, node.op != "call_function")
            for memory in own:
                sharing[taken.get(memory, memory)].append(of[node])
            continue
        tensor = of[node] = of[before]
        tensor.read = max(tensor.read, last)
        theirs = [taken.get(memory, memory) for memory in _storages(before)]
        if twin_of(node.target) is None:
            taken.update(zip(own, theirs, strict=True))
            continue
        if own != _storages(before):  # as in programs that were saved
            return False
        for memory in theirs:
            others = [each for each in sharing[memory] if each is not tensor]
            if any(t.is_given for t in (tensor, *others)):
                return False
            if any(t.read > place[node] for t in others):
                return False
            sharing[memory] = [tensor]  # of which the others are read no more
    return True


__all__ = ["is_plain", "same_as", "twin_of"]
