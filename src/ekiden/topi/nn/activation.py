"""Activation functions of neural networks, and dropout in its inference form."""

from ekiden.topi.elementwise import bias_add, leaky_relu, prelu, relu

__all__ = ["bias_add", "leaky_relu", "prelu", "relu"]
