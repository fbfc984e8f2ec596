"""What queue-runtime puts into a Phorge: the extension file, stubs of task classes, and how they get there safely."""
