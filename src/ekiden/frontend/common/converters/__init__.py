"""Converters of operators that several formats share: a row names the operator in each, or a
function takes attributes that a format has read.
"""
