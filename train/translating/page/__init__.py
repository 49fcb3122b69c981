"""The page on which attention and decoding are explored."""
