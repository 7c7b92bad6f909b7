"""Devices, their memory, and the engines of others that run regions of a program."""
