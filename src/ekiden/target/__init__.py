"""Targets: what the code will run on, as a value with its facts."""

from ekiden.target.target import Target

__all__ = ["Target"]
