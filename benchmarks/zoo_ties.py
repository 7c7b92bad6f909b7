"""Whether a model's results hang on the order of equal numbers, for the zoo (zoo.py)."""

from __future__ import annotations

from typing import Any

from zoo_models import Model

_TAKEN = {"topk": ("k", "dim", "largest"), "sort": ("dim", "descending")}
"""Operators that choose -> the names of their arguments behind the data."""


def has_ties(model: Model) -> bool:
    """Whether what PyTorch chose or sorted had equal numbers side by side, whose order it leaves
    open: random weights saturate scores of boxes.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(
            self,
            call: Any,  # noqa: ANN401
            types: object,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> object:
            made = call(*args, **(kwargs or {}))
            name = call.overloadpacket.__name__
            if name in _TAKEN and (most := made[0]).ndim:
                named = dict(zip(_TAKEN[name], args[1:], strict=False)) | (kwargs or {})
                dim = named.get("dim", -1)
                down = named.get("largest" if name == "topk" else "descending", name == "topk")
                order = torch.sort(args[0], dim, bool(down)).values
                count = min(most.shape[dim] + 1, order.shape[dim])  # with the first one left out
                found.append(bool((order.narrow(dim, 0, count).diff(dim=dim) == 0).any()))
            return made

    with torch.no_grad(), Watch():
        model.module(*model.inputs.values())
    return any(found)
