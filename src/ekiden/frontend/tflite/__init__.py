"""Importer of TensorFlow Lite: flatbuffer models (`.tflite`), read with the package `tflite`."""
