"""Records as they are read and checked."""
