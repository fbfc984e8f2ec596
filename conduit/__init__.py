"""The Conduit side: calling Phorge over HTTP. Knows nothing of queues."""
