"""The backend's exceptions.

BackendError
├── ModelFilesError        a model folder lacks something or holds something else than expected
├── BadRequestError        the client's request cannot be served as it is (HTTP 400)
│   ├── SchemaError        a JSON schema for the answer is invalid, or asks for what cannot be enforced
│   └── TemplateError      the messages cannot be rendered in the model's prompt grammar
├── CacheFullError         pages or state slots do not suffice for this request
├── GrammarError           the constrained decoder reached a state that its grammar does not know
├── EngineUnavailableError the engine process is not there (HTTP 503)
│   └── RankLostError      for good: one of the processes that share the model is gone
└── PeerLostError          what ranks do together broke off, because one of them is gone

A message names what failed, with which value, and what to do.
"""

RANK_LOST_STATUS = 70
"""Exit status of the engine, and of `k3agent serve`, after a rank of a model on several ranks was lost."""


class BackendError(Exception):
    """Root of all errors that the backend raises on purpose."""


class ModelFilesError(BackendError):
    """A model folder lacks something, or a file of it cannot be used."""


class BadRequestError(BackendError):
    """The request cannot be served as it is; the text goes to the client."""


class SchemaError(BadRequestError):
    """A JSON schema that the answer cannot be held to; the text goes to the client."""


class TemplateError(BadRequestError):
    """Messages that have no form in the prompt grammar."""


class CacheFullError(BackendError):
    """Pages or state slots do not suffice, even after eviction."""


class GrammarError(BackendError):
    """Decoding left the grammar: a defect of ours, never of the client."""


class EngineUnavailableError(BackendError):
    """The engine process has ended or does not answer."""


class RankLostError(EngineUnavailableError):
    """A rank of a model on several ranks has ended; the server ends with RANK_LOST_STATUS."""


class PeerLostError(BackendError):
    """A collective broke off. The fault is another rank's; whoever watches the processes knows whose."""


class MissingPackageError(BackendError):
    """The engine's own packages come with an extra, and one is not here."""

    def __init__(self, error: ModuleNotFoundError) -> None:
        """Raises `error` again where it is a fault of ours: a module of this program."""
        if error.name is None or error.name.partition(".")[0] == "k3agent":
            raise error
        super().__init__(f"the package {error.name} is not installed: pip install 'k3agent[local]'")
