"""Faults of whole processes: killed, told to stop, started on a file that is not theirs."""
