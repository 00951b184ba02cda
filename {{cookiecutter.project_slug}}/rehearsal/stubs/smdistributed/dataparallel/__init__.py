"""Stub of SMDDP: the documented contract over gloo, to prove wiring. It says nothing about SMDDP itself."""
