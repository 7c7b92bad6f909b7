"""Converters of TensorFlow Lite's operators by family; each module has its ROWS."""
