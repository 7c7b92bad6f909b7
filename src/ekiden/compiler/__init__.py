"""Compiler driver: from a model to an executable; options, stages, caches, tiers, exported
files.
"""
