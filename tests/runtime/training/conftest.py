"""Tests of this folder import Lightning."""


def pytest_collectstart() -> None:
    """Not while this is imported: a process that shares tests out to others collects none."""
    import lightning_first  # noqa: F401
