"""The command line: one file for each command, heavy imports inside the commands."""
