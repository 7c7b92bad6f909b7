"""From an optimised module to an executable: kernels, and the executors that call them."""
