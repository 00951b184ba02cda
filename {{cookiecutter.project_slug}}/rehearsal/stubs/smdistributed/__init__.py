"""Stub of AWS's package of this name, which only AWS's images hold; found only while a rehearsal runs."""
