"""The options of the programs, as their users write them."""
