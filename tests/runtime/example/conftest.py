"""Imports Lightning before the example's tests do."""


def pytest_collectstart() -> None:
    """Not while this is imported: a process that shares tests out to others collects none."""
    import lightning_first  # noqa: F401
