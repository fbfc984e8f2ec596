"""Measures the runtime as it is shipped, beside other work queues in the same run. See README.md."""
