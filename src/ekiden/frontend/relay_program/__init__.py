"""Frontend of Relay programs: modules, functions, and the text of `IRModule.astext()`."""
