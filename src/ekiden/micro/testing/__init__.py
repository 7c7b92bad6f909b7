"""Helpers of tests of programs for machines without an allocator, at TVM's place."""
