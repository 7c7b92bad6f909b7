"""Test helpers for programs without an allocator, at TVM's path."""

from ekiden.micro.testing.utils import get_target

__all__ = ["get_target"]
