"""Tensor layouts: layout conversion and weight packing."""
