"""The operators of TensorFlow by family; each module has its ROWS."""
