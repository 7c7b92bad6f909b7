"""A compiled program, ready to run: inputs by name, results, state, callers."""
