"""TensorFlow Lite: models of one flatbuffer, `.tflite`, read by the package `tflite`."""
