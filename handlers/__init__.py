"""Handlers of Phorge task classes that run in this process."""
