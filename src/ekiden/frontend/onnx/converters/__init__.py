"""Converters of ONNX operators to Relay by family; each module has a converter table `ROWS`."""
