"""Symbolic shapes: passes that name, bind and hoist dimensions, and pass them to kernels."""
