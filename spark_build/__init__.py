"""Build, keep, prove and judge the PyTorch stack for DGX Spark."""

__version__ = "0.1.0"
