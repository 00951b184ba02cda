"""The machinery of a PyTorch Lightning project that trains on a laptop and on SageMaker."""

__version__ = "1.0.0"
