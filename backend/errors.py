"""The error of the backend: raised for bad weights, bad requests and limits, with the remedy in its text."""


class BackendError(Exception):
    """Something outside the backend's own code is wrong; the message names it, its value and what to do."""
