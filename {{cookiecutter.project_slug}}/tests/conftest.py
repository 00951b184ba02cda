"""Every test runs in an empty folder, outside any cluster (smlightning_sagemaker.testing)."""

pytest_plugins = ["smlightning_sagemaker.testing.plugin"]
