"""Artifact: the file format of a compiled program; frame, sections, constants, metadata."""
