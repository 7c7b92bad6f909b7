"""The operators of ATen by family: each module has `ROWS`, pairs (name and overload, converter)."""
