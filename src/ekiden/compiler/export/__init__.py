"""Export of compiled models: shared libraries, objects, C sources, archives, web folders,
microcontrollers.
"""
