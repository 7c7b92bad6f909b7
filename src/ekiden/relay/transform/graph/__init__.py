"""Rewrites of values into cheaper ones of the same meaning."""
