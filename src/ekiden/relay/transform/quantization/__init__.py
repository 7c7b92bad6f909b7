"""Integers in the place of floats that they stand for."""
