"""The English-French corpus that comes with the program: a lexicon and a grammar that writes sentence pairs."""

TOPICS = "people, families, animals, food, clothes, things of the house, and the places of a village"
