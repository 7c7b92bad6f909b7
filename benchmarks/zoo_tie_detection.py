"""Detection of results that depend on the order of equal numbers (ties in top-k, sort and argmax),
for the model zoo (zoo.py).
"""

from __future__ import annotations

from typing import Any

from zoo_models import ZooModel

_SELECTION_ARGS = {"topk": ("k", "dim", "largest"), "sort": ("dim", "descending")}
"""Operators that choose -> the names of their arguments behind the data."""


def has_ties(model: ZooModel) -> bool:
    """Return whether PyTorch selected from or sorted adjacent equal numbers, whose order is
    unspecified: random weights saturate box scores.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    ties = []

    class SelectionWatcher(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            call: Any,  # noqa: ANN401
            types: object,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> object:
            result = call(*args, **(kwargs or {}))
            name = call.overloadpacket.__name__
            if name in _SELECTION_ARGS and (values := result[0]).ndim:
                named = dict(zip(_SELECTION_ARGS[name], args[1:], strict=False)) | (kwargs or {})
                dim = named.get("dim", -1)
                down = named.get("largest" if name == "topk" else "descending", name == "topk")
                order = torch.sort(args[0], dim, bool(down)).values
                count = min(values.shape[dim] + 1, order.shape[dim])  # with the first one left out
                ties.append(bool((order.narrow(dim, 0, count).diff(dim=dim) == 0).any()))
            return result

    with torch.no_grad(), SelectionWatcher():
        model.module(*model.inputs.values())
    return any(ties)
