"""Measures once what later runs plan from."""
