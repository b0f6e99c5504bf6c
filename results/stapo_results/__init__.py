"""The foundation: what two wings share, and nothing that only one needs."""
