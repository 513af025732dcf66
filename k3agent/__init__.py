"""k3agent: a coding agent for the terminal with its own backend for Kimi K3."""

__version__ = "0.1.0"
