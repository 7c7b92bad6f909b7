"""The operators of TensorFlow Lite by family; each module has its ROWS."""
