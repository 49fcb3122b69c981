"""Is the attention right, and which scoring function? Trained side by side and counted: see `__main__`."""
