"""Converters of TensorFlow operators by family; each module has a converter table `ROWS`."""
