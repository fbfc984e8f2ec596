"""Stores behind the protocol of queue_runtime.store."""
