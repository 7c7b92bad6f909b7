"""Passes that name dimensions, compute them where they are known, and carry them along."""
