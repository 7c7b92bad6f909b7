"""Converters of ATen operators by family: each module has a table `ROWS` of tuples (name and
overload, converter[, complex rule]).
"""
