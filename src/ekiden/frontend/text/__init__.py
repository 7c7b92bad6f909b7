"""Relay's own text as a file: what `IRModule.astext()` gives."""
