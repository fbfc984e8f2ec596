"""Tests of the HTTP faces: in process for what is said, over sockets for how the server behaves."""
