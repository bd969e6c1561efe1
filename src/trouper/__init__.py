"""Trouper."""
