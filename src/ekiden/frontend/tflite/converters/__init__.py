"""Converters of TensorFlow Lite operators by family; each module has a converter table `ROWS`."""
