"""Galago: Qwen3-VL on the CPU you already have."""

__version__ = "0.1.0"
