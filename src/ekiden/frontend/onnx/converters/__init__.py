"""How each ONNX operator becomes Relay, by family: every module has `ROWS`."""
