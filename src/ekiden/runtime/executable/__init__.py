"""Executables: compiled programs, ready to run; inputs by name, results, state, callers."""
