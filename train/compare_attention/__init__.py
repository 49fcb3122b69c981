"""Train every attention side by side and compare them: see `__main__`."""
