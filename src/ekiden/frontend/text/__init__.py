"""Relay text as a model format: the output of `IRModule.astext()`."""
