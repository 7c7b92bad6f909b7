"""Passes over the functional language: names, scopes, functions, matches, loops."""
