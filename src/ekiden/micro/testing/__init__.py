"""Test helpers for programs without an allocator, at TVM's path."""
