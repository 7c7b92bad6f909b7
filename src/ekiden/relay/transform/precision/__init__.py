"""Floating-point types of products."""
