"""Operators that mean the same in several formats: a row for each, which names it in every one, or
a function of attributes that a format has read.
"""
