"""A small pretrained model: fetched once, and trained on problems in English sentences that are made here."""
