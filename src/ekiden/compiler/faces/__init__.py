"""TVM's names for compiling: relay.build, relay.vm, relay.quantize, executors."""
