"""Expressions as trees, their values, and whether two of them are equal by value."""
