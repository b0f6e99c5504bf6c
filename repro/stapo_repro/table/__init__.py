"""The main table: `build` makes its rows from records, `write` its forms."""
