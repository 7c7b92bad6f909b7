"""Frontend of Relay text, the output of `IRModule.astext()`."""
