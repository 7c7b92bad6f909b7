"""The operators of ATen by family: each module has `ROWS`, tuples (name and overload, converter[,
complex rule]).
"""
