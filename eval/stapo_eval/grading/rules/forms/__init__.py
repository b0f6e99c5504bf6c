"""From tokens to the form of an answer: a value, a list, a set, an interval, a matrix, a relation, words."""
