"""Converters of operators that several formats share, driven by tables of operator names or by
attributes that a format has parsed.
"""
