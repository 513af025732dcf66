"""What the command line offers, taken from its own parsers: shell completions, the manual page."""
