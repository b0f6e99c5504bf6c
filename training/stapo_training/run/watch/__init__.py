"""What goes on while a run runs: its metrics' names, STATUS.md, alarms, loggers, Ctrl-C."""
