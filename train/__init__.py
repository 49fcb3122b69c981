"""A program that trains neural machine translation: `python -m train.nmt`."""
