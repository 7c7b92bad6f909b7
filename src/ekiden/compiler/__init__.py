"""Compiler driver: from a model to an executable, with options, caches, tiers and export."""
