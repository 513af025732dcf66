"""A server of foreign tools with an address, on the official SDK: `python mcp_http_server.py PORT [--login]`.

With `--login` it also is the one that gives tokens, and agrees to everybody at once: the browser of a test
only has to follow where it is sent. Tokens end after `--ends-in` seconds.
"""

from __future__ import annotations

import argparse
import secrets
import time
from typing import Any

import uvicorn
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class Giver:
    """Gives codes and tokens to all who ask."""

    def __init__(self, ends_in: int) -> None:
        self.ends_in = ends_in
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.access: dict[str, AccessToken] = {}

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: Any) -> str:
        code = secrets.token_hex(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=True,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> Any:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: Any) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self._tokens(str(client.client_id), authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> Any:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: list[str]) -> OAuthToken:
        del self.refresh[refresh_token.token]
        print("renewed", flush=True)
        return self._tokens(str(client.client_id), scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        return None if found is None or (found.expires_at or 0) < time.time() else found

    async def revoke_token(self, token: Any) -> None:
        self.access.pop(token.token, None)

    def _tokens(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, refresh = secrets.token_hex(16), secrets.token_hex(16)
        ends_at = int(time.time()) + self.ends_in
        self.access[access] = AccessToken(
            token=access, client_id=client_id, scopes=scopes, expires_at=ends_at, resource=resource
        )
        self.refresh[refresh] = RefreshToken(
            token=refresh, client_id=client_id, scopes=scopes, resource=resource
        )
        return OAuthToken(
            access_token=access,
            token_type="Bearer",
            expires_in=self.ends_in,
            refresh_token=refresh,
            scope=" ".join(scopes),
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--login", action="store_true")
    parser.add_argument("--ends-in", type=int, default=3600)
    parser.add_argument("--json", action="store_true", help="answer with JSON instead of events")
    parser.add_argument("--sse", action="store_true", help="the transport from before 2025-03-26")
    args = parser.parse_args()
    url = f"http://127.0.0.1:{args.port}"
    options: dict[str, Any] = {}
    if args.login:
        options["auth_server_provider"] = Giver(args.ends_in)
        options["auth"] = AuthSettings(
            issuer_url=url,  # type: ignore[arg-type]
            resource_server_url=f"{url}/mcp",  # type: ignore[arg-type]
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=True,
        )
    server = MCPServer("far", **options)

    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds two numbers."""
        return a + b

    @server.tool()
    async def slow(ctx: Context) -> str:
        """Tells of its progress."""
        await ctx.report_progress(1, 2, "half of it")
        return "slow but done"

    @server.tool()
    async def grow(ctx: Context) -> str:
        """Gets another tool."""
        server.add_tool(lambda: "new", name="newcomer", description="Came later.")
        await ctx.session.send_tool_list_changed()
        return "grown"

    app = server.sse_app(sse_path="/mcp") if args.sse else server.streamable_http_app(json_response=args.json)
    print("ready", flush=True)
    uvicorn.run(app, host="127.0.0.1", port=args.port, log_level="warning")


if __name__ == "__main__":
    main()
