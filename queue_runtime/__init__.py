"""Queue runtime. Deliberately empty: re-exports here would make every store import a circle."""
