"""From files to batches of padded ids."""
