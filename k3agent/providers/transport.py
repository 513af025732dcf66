"""httpx, loaded at the least cost, and one client for one endpoint.

httpx imports its own command line program, which pulls in click and rich, a third of its start-up time; an
empty stand-in keeps that out.
"""

from __future__ import annotations

import socket
import sys
from types import ModuleType
from typing import Any

if "httpx" not in sys.modules:
    _stand_in = ModuleType("httpx._main")
    _stand_in.main = lambda: None  # type: ignore[attr-defined]
    sys.modules.setdefault("httpx._main", _stand_in)

import httpx

from k3agent.errors import ConfigError
from k3agent.providers.dialects import is_loopback

# After so many seconds of silence the kernel asks the other end whether it is there; `COUNT` times without an
# answer end the connection.
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 60, 15, 4


def make_client(base_url: str, connect_timeout_s: float) -> httpx.AsyncClient:
    """A client without a read timeout: a long prompt may take minutes before its first byte. So that a
    connection that is gone (the machine slept, the network changed) is not waited for, the kernel looks.

    Proxies of the environment are not used for loopback. Without TLS no certificates are loaded.
    """
    try:
        client = httpx.AsyncClient(
            timeout=httpx.Timeout(connect_timeout_s, read=None, write=120.0, pool=None),
            trust_env=not is_loopback(base_url),
            verify=base_url.lower().startswith("https:"),
            follow_redirects=False,
        )
    except (ImportError, ValueError) as error:
        raise ConfigError(f"a proxy of the environment cannot be used: {error}") from error
    for transport in (client._transport, *client._mounts.values()):
        pool = getattr(transport, "_pool", None)
        if pool is not None:
            # A transport of one's own would take socket options, but then the environment's proxies count no
            # longer; and connections to proxies are given none.
            pool._network_backend = _Watched(pool._network_backend)
    return client


class _Watched:
    """Opens connections that the kernel looks after: httpcore's AsyncNetworkBackend around another one."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    async def connect_tcp(self, *arguments: Any, **more: Any) -> Any:
        more["socket_options"] = [*(more.get("socket_options") or ()), *_keepalive()]
        return await self._backend.connect_tcp(*arguments, **more)

    async def connect_unix_socket(self, *arguments: Any, **more: Any) -> Any:
        return await self._backend.connect_unix_socket(*arguments, **more)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


def _keepalive() -> list[tuple[int, int, int]]:
    found = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    # macOS calls the first of them so.
    idle = "TCP_KEEPIDLE" if hasattr(socket, "TCP_KEEPIDLE") else "TCP_KEEPALIVE"
    values = {idle: KEEPALIVE_IDLE_S, "TCP_KEEPINTVL": KEEPALIVE_EVERY_S, "TCP_KEEPCNT": KEEPALIVE_COUNT}
    return found + [
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in values.items()
        if hasattr(socket, name)
    ]
