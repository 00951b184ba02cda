"""Every test runs in an empty folder, outside any cluster (smlightning.testing)."""

pytest_plugins = ["smlightning.testing.plugin"]
