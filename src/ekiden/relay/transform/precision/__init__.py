"""Floating-point precision of operators."""
