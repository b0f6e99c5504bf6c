"""The folder of a training: what it writes, alarms, status, and how an interruption ends it."""
