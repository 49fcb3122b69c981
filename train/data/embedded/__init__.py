"""The English-French corpus that comes with the program: a lexicon and a grammar that writes sentence pairs."""
