"""Activations; functions of elements that networks name, and dropout-free inference forms."""

from ekiden.topi.elementwise import bias_add, leaky_relu, prelu, relu

__all__ = ["bias_add", "leaky_relu", "prelu", "relu"]
