"""Operator converters shared by several formats, parameterised by tables of operator names or by
parsed attributes.
"""
