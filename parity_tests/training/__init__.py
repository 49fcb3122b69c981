"""Whole trainings in both frameworks, compared at every step (`training`), and the picture of float32 drift."""
