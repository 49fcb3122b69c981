"""Models that generate, compared token by token."""
