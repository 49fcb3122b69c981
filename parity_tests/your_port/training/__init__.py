"""Whole trainings in both frameworks, compared at every step."""
