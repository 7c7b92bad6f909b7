"""Symbolic shapes: passes that name, bind, hoist and carry dimensions."""
