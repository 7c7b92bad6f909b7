"""Meta kernels: result shapes of operators that PyTorch considers data-dependent and cannot trace.

They are added to PyTorch's table of fake tensor implementations where it has none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import op_implementations_dict, register_op_impl
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from ekiden.frontend.torch.overloads import overload_table

aten = torch.ops.aten


def is_vector_rhs(a: Tensor, b: Tensor) -> bool:
    """Return whether a right-hand side is one vector per matrix, by the rule of torch.linalg."""
    return b.dim() == 1 or (a.dim() - 1 == b.dim() and a.shape[:-1] == b.shape)


def _lstsq(
    a: Tensor, b: Tensor, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Tensor, ...]:
    (rows, columns), driver = a.shape[-2:], driver or "gelsy"
    if driver in ("gelsd", "gelss") and rows > columns:  # residuals are there for full ranks alone
        raise DynamicOutputShapeException(aten.linalg_lstsq.default)
    right = b.shape[-1:] if is_vector_rhs(a, b) else b.shape[-2:]
    batch = torch.broadcast_shapes(  # type: ignore[no-untyped-call]
        a.shape[:-2], b.shape[: -len(right)]
    )
    solution = a.new_empty((*batch, columns, *right[1:]))
    has_residuals = driver == "gels" and rows > columns
    residuals = a.new_empty((*batch, *(right[1:] or (1,))) if has_residuals else (0,))
    rank = a.new_empty((0,) if driver == "gels" else a.shape[:-2], dtype=torch.int64)
    has_values = driver in ("gelsd", "gelss")
    values = a.new_empty((*a.shape[:-2], min(rows, columns)) if has_values else (0,))
    return solution, residuals, rank, values


def max_target_length(targets: Tensor, lengths: Tensor | Sequence[int]) -> int:
    """Return an upper bound on the length of CTC targets: their last extent if the lengths are a
    tensor, else the largest length.
    """
    return targets.shape[-1] if isinstance(lengths, Tensor) else max(lengths, default=0)


def _ctc_loss(
    log_probs: Tensor, targets: Tensor, input_lengths: Any, target_lengths: Any,  # noqa: ANN401
    blank: int = 0, zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    steps, batch, _ = log_probs.shape
    states = 2 * max_target_length(targets, target_lengths) + 1
    return log_probs.new_empty((batch,)), log_probs.new_empty((batch, steps, states))


NONE, MEAN, SUM = range(3)
"""What becomes of the losses of a batch."""


def _ctc_loss_int_list(
    log_probs: Tensor, targets: Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int],
    blank: int = 0, reduction: int = MEAN, zero_infinity: bool = False,
) -> Tensor:  # fmt: skip
    """Return aten::ctc_loss.IntList as PyTorch composes it, but traceable.

    PyTorch's own composition makes a tensor of the lengths, which cannot be traced.
    """
    batched = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    loss: Tensor = aten._ctc_loss(
        batched, targets, input_lengths, target_lengths, blank, zero_infinity
    )[0]
    if zero_infinity:
        loss = torch.where(loss == math.inf, 0.0, loss)
    if reduction == MEAN:
        # Reduction "mean" divides each loss by its target length, at least 1, before the mean over
        # the batch.
        counts = [torch.full((), max(length, 1), dtype=loss.dtype) for length in target_lengths]
        return (loss / torch.stack(counts)).mean()
    if reduction == SUM:
        return loss.sum()
    return loss if batched is log_probs else loss.squeeze(0)


META_KERNELS: Mapping[torch._ops.OpOverload, Callable[..., Any]] = overload_table(
    {
        "linalg_lstsq.default": _lstsq,
        "_ctc_loss.default": _ctc_loss,
        "_ctc_loss.Tensor": _ctc_loss,
    }
)


def _make_fake_impl(function: Callable[..., Any]) -> Callable[..., Any]:
    def fake(mode: Any, func: object, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        with mode:
            return function(*args, **kwargs)

    return fake


_TRACING_DISPATCH_KEY = torch._C.DispatchKey.CompositeImplicitAutograd
if (
    _TRACING_DISPATCH_KEY not in aten.ctc_loss.IntList.py_kernels
):  # of tracing alone: eager PyTorch has its own
    aten.ctc_loss.IntList.py_impl(_TRACING_DISPATCH_KEY)(_ctc_loss_int_list)
for _op, _function in META_KERNELS.items():
    if _op not in op_implementations_dict:
        register_op_impl(_op)(_make_fake_impl(_function))
