"""Binding to the C runtime; the extension module, its numbers and layouts."""
