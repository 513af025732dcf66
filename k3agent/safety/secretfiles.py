"""Files that hold secrets, known by their names: they are not shown without a question."""

from __future__ import annotations

import re

_NAME = re.compile(
    r"\.env(?:\..+)?|.+\.env|.*\.(?:pem|key|p12|pfx|jks|keystore|kdbx|ppk|asc|gpg|ovpn|tfvars|mobileprovision)"
    r"|id_(?:rsa|dsa|ecdsa|ed25519)(?:_sk)?|[._]netrc|\.pgpass|\.pypirc|\.npmrc|\.git-credentials|\.htpasswd"
    r"|\.dockercfg|\.vault-token|\.my\.cnf|(?:aws_?)?credentials(?:\.(?:json|csv|ini|ya?ml|toml))?"
    r"|client_secrets?.*\.json|service[-_]?account.*\.json|.*-credentials\.json"
    r"|secrets?\.(?:json|ya?ml|toml|env|ini)"
    r"|kubeconfig|token\.(?:json|pickle)|master\.key|\.terraformrc|terraform\.tfstate(?:\.backup)?",
    re.IGNORECASE,
)
# Examples that are made to be read, and halves that are made to be given away.
_OPEN = re.compile(
    r".*[._-](?:example|sample|template|dist|defaults?|schema|test|tpl)(?:\..*)?"
    r"|(?:public|pub|ca|chain|fullchain|cert)[._-]?(?:key|cert)?\.(?:pem|key|asc)|.*\.pub|.*[._-]pub(?:lic)?\.(?:pem|key|asc)",
    re.IGNORECASE,
)


def is_secret_file(name: str) -> bool:
    """By the last part of its path."""
    base = name.rstrip("/").rpartition("/")[2]
    return _NAME.fullmatch(base) is not None and _OPEN.fullmatch(base) is None
