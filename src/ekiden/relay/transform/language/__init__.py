"""Passes over the functional language: scopes, closures, pattern matches, recursion and normal
forms.
"""
