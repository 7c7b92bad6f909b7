"""Devices, their memory, and third-party engines that run regions of a program."""
