"""Layouts of tensors: the order of their axes, and packed weights."""
