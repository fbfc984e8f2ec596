"""What every store must do, in sentences; a new store is one entry in tests/backends.py."""
