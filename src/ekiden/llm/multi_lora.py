"""Multi-LoRA: several LoRA adapters in one program, selected per token: each text of a call has one
of them, or none.

    y = W x + B ((A x) where the rank belongs to the token's adapter, else 0)

A and B hold the factors of all adapters of a product: A [ranks, inputs], B [outputs, ranks]. So
the tokens of a call go through two products whatever their adapters are, and a text's result
depends on its own adapter alone: what other adapters add is 0. Calls in which no text has an
adapter skip both by a branch.

Source: Chen and others, "Punica: Multi-Tenant LoRA Serving" (2023), for adapters in one batch.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ekiden.llm.lora import LoraAdapter
from ekiden.relay import op
from ekiden.relay.expr import Expr, If, Var, const
from ekiden.runtime.errors import ImportModelError, UnsupportedError
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["NO_ADAPTER", "AdapterProducts", "AdapterSet"]

NO_ADAPTER = -1
"""Number of a text without an adapter."""


@dataclass(frozen=True, slots=True)
class StackedFactors:
    """Stacked low-rank factors of all adapters of a product: down float32 [ranks, inputs], up
    float32 [outputs, ranks], and the number of the adapter that each rank belongs to, int32
    [ranks].
    """

    down: NDArray[np.float32]
    up: NDArray[np.float32]
    owners: NDArray[np.int32]


class AdapterSet:
    """Adapters of a program, numbered in order."""

    def __init__(self, adapters: Mapping[str, LoraAdapter]) -> None:
        self.names = tuple(adapters)
        self._adapters = tuple(adapters.values())
        self._unread = {(n, name) for n, one in enumerate(self._adapters) for name in one.weights}

    @staticmethod
    def open(adapters: Mapping[str, str | os.PathLike[str]], tensors: Iterable[str]) -> AdapterSet:
        """Return the adapters of folders by their names, for a checkpoint with these tensors."""
        names = frozenset(tensors)
        return AdapterSet({name: LoraAdapter(folder, names) for name, folder in adapters.items()})

    def stack(self, names: Sequence[str], rows: Sequence[int], depth: int) -> StackedFactors | None:
        """Return the stacked factors of a product, None if no adapter changes one of its weights.

        Args:
            names: Those of the weights.
            rows: The rows of each.
            depth: The columns of all.

        Raises ImportModelError for factors of another shape.
        """
        begins = np.cumsum([0, *rows])
        downs, ups, owners = [], [], []
        for number, adapter in enumerate(self._adapters):
            for name, begin, count in zip(names, begins[:-1], rows, strict=True):
                if name not in adapter.weights:
                    continue
                down, up = adapter.factors(name)
                if (len(up), down.shape[1]) != (count, depth):
                    raise ImportModelError(
                        f"{adapter.folder}: '{name}' must be {(count, depth)}, the adapter's is"
                        f" {(len(up), down.shape[1])}"
                    )
                padded = np.zeros((begins[-1], len(down)), np.float32)
                padded[begin : begin + count] = up
                downs.append(down)
                ups.append(padded)
                owners.append(np.full(len(down), number, np.int32))
                self._unread.discard((number, name))
        if not downs:
            return None
        return StackedFactors(
            np.concatenate(downs), np.concatenate(ups, axis=1), np.concatenate(owners)
        )

    def check_unused(self) -> None:
        """Raise UnsupportedError for an adapted weight that no product has read."""
        for number, name in sorted(self._unread):
            raise UnsupportedError(
                f"{self._adapters[number].folder}: '{name}': adapters by request change the"
                " products of attention and MLPs alone; 'adapter' adds one to all weights"
            )

    def check(self) -> None:
        """Raise LoadError if a file has changed since it was opened."""
        for adapter in self._adapters:
            adapter.check()


class AdapterProducts:
    """Builder of the low-rank updates of products, by each token's adapter."""

    def __init__(
        self, adapters: AdapterSet, token_adapters: Var, bind: Callable[[str, Expr], Var]
    ) -> None:
        """Create a builder.

        Args:
            adapters: The adapters.
            token_adapters: The number of each token's adapter, int32 [n].
            bind: Binds a value to a new variable of a name.
        """
        self.adapters, self.bind = adapters, bind
        self._column = bind("adapter_column", op.expand_dims(token_adapters, axis=1))
        is_given = op.greater_equal(token_adapters, const(np.int32(0)))
        self._is_used = bind("has_adapters", op.any(is_given))

    def add(self, result: Expr, data: Var, factors: StackedFactors) -> Expr:
        """Emit the result [n, outputs] of a product plus the adapters' low-rank updates for data
        [n, inputs].
        """
        plain = self.bind("plain", result)
        low = op.nn.dense(data, const(factors.down))
        is_owner = op.equal(self._column, const(factors.owners))
        masked = op.where(is_owner, low, const(np.float32(0)))
        added = op.add(plain, op.nn.dense(masked, const(factors.up)))
        return self.bind("adapted", If(self._is_used, added, plain))
