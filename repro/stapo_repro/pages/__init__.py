"""Generated files and the marked blocks of pages: the only room that knows tables, figures, tokens and report."""
