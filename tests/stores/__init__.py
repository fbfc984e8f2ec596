"""What only one store has: its files, its threads, its plans."""
