"""Tag of the computations that a block of code or a function makes (TVM's te.tag)."""

from __future__ import annotations

from contextlib import ContextDecorator
from contextvars import ContextVar

CURRENT_TAG: ContextVar[str | None] = ContextVar("tag", default=None)
"""Tag of the enclosing `tag_scope`."""


class tag_scope(ContextDecorator):  # noqa: N801
    """`with te.tag_scope(tag="conv"):` gives the tag to computations that have none of their own;
    `@te.tag_scope(tag="conv")` to those that a function makes.

    Raises ValueError when scopes nest, as TVM's do.
    """

    def __init__(self, tag: str) -> None:
        self.tag = tag

    def __enter__(self) -> tag_scope:
        if CURRENT_TAG.get() is not None:
            raise ValueError("tag_scope: scopes must not nest")
        CURRENT_TAG.set(self.tag)
        return self

    def __exit__(self, *_: object) -> None:
        CURRENT_TAG.set(None)
