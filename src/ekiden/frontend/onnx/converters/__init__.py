"""Converters of ONNX operators to Relay, by family: every module has a table `ROWS`."""
