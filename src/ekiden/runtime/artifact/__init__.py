"""The file of a compiled program: frame, sections, constants, metadata."""
