"""From the text of an answer to its tokens: cleaning, the tables of signs, words and units, plain numbers."""
