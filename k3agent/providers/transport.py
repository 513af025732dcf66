"""httpx, loaded at the least cost, and one client for one endpoint.

httpx imports its own command line program, which pulls in click and rich, a third of its start-up time; an
empty stand-in keeps that out.
"""

from __future__ import annotations

import sys
from types import ModuleType

if "httpx" not in sys.modules:
    _stand_in = ModuleType("httpx._main")
    _stand_in.main = lambda: None  # type: ignore[attr-defined]
    sys.modules.setdefault("httpx._main", _stand_in)

import httpx

from k3agent.errors import ConfigError
from k3agent.providers.dialects import is_loopback


def make_client(base_url: str, connect_timeout_s: float) -> httpx.AsyncClient:
    """A client without a read timeout: a long prompt may take minutes before its first byte.

    Proxies of the environment are not used for loopback. Without TLS no certificates are loaded.
    """
    try:
        return httpx.AsyncClient(
            timeout=httpx.Timeout(connect_timeout_s, read=None, write=120.0, pool=None),
            trust_env=not is_loopback(base_url),
            verify=base_url.lower().startswith("https:"),
            follow_redirects=False,
        )
    except (ImportError, ValueError) as error:
        raise ConfigError(f"a proxy of the environment cannot be used: {error}") from error
