"""Symbolic shapes: passes that name, bind, hoist and pass dimensions."""
