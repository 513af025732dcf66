"""Hand-written wordings of user requests for the embedded model's training; start at `grammar`."""
