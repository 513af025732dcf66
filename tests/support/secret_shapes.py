"""Made-up credentials of every known kind, and harmless texts that look a little like them.

Nothing here was ever valid: the long parts come from a seeded generator.
"""

from __future__ import annotations

import base64
import json
import random
import string

LETTERS = string.ascii_letters
ALNUM = LETTERS + string.digits
UPPER = string.ascii_uppercase + string.digits
HEX = "0123456789abcdef"
URLSAFE = ALNUM + "-_"


def text(seed: int, size: int, chars: str = ALNUM) -> str:
    """Random characters, with a letter first and a digit second, as nearly all real ones have somewhere."""
    made = "".join(random.Random(seed).choices(chars, k=size - 2))
    return f"{'a' if 'a' in chars else 'A'}7{made}"


def _jwt(seed: int) -> str:
    parts = [{"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "iat": seed}]
    coded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
    return ".".join((*coded, text(seed, 43, URLSAFE)))


def pem(kind: str = "RSA PRIVATE KEY", lines: int = 12, seed: int = 900) -> str:
    body = "\n".join(text(seed + n, 64, ALNUM + "+/") for n in range(lines))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"


def shapes() -> dict[str, str]:
    """Name of the kind to a credential that is recognised wherever it stands."""
    return {
        "openai": f"sk-{text(1, 48)}",
        "openai project": f"sk-proj-{text(2, 120, URLSAFE)}{text(3, 30)}",
        "openai service": f"sk-svcacct-{text(4, 80)}",
        "anthropic": f"sk-ant-api03-{text(5, 93, URLSAFE)}{text(6, 22)}",
        "moonshot": f"sk-{text(7, 48)}",
        "kimi code": f"sk-kimi-{text(8, 64)}",
        "openrouter": f"sk-or-v1-{text(9, 64, HEX)}",
        "github personal": f"ghp_{text(10, 36)}",
        "github oauth": f"gho_{text(11, 36)}",
        "github app": f"ghs_{text(12, 36)}",
        "github user": f"ghu_{text(13, 36)}",
        "github refresh": f"ghr_{text(14, 76)}",
        "github fine-grained": f"github_pat_{text(15, 22)}_{text(16, 59)}",
        "gitlab": f"glpat-{text(17, 20, URLSAFE)}",
        "gitlab runner": f"glrt-{text(18, 20)}",
        "aws id": f"AKIA{text(19, 16, UPPER)}",
        "aws session id": f"ASIA{text(20, 16, UPPER)}",
        "google": f"AIza{text(21, 35, URLSAFE)[:-1]}x",
        "google oauth": f"ya29.{text(22, 120, URLSAFE)}",
        "google client": f"GOCSPX-{text(23, 28)}",
        "slack bot": f"xoxb-{text(24, 12, string.digits)}-{text(25, 12, string.digits)}-{text(26, 24)}",
        "slack user": f"xoxp-{text(27, 12, string.digits)}-{text(28, 40)}",
        "slack app": f"xapp-1-{text(29, 11, UPPER)}-{text(30, 13, string.digits)}-{text(31, 64, HEX)}",
        "stripe": f"sk_live_{text(32, 24)}",
        "stripe test": f"sk_test_{text(33, 99)}",
        "stripe restricted": f"rk_live_{text(34, 24)}",
        "stripe webhook": f"whsec_{text(35, 32)}",
        "npm": f"npm_{text(36, 36)}",
        "pypi": f"pypi-AgEIcHlwaS5vcmc{text(37, 120, URLSAFE)}{text(38, 20)}",
        "hugging face": f"hf_{text(39, 34, LETTERS + '7')}",
        "sendgrid": f"SG.{text(40, 22)}.{text(41, 43)}",
        "twilio": f"SK{text(42, 32, HEX)}",
        "mailgun": f"key-{text(43, 32, HEX)}",
        "telegram": f"{'1' * 9}:AA{text(44, 32, URLSAFE)}x",
        "digitalocean": f"dop_v1_{text(45, 64, HEX)}",
        "shopify": f"shpat_{text(46, 32, HEX)}",
        "databricks": f"dapi{text(47, 32, HEX)}",
        "docker": f"dckr_pat_{text(48, 27)}",
        "age": f"AGE-SECRET-KEY-1{text(49, 58, UPPER)}",
        "vault": f"hvs.{text(50, 90)}",
        "linear": f"lin_api_{text(51, 40)}",
        "notion": f"ntn_{text(52, 46)}",
        "groq": f"gsk_{text(53, 52)}",
        "xai": f"xai-{text(54, 80)}",
        "perplexity": f"pplx-{text(55, 48)}",
        "replicate": f"r8_{text(56, 37)}",
        "postman": f"PMAK-{text(57, 24, HEX)}-{text(58, 34, HEX)}",
        "new relic": f"NRAK-{text(59, 27, UPPER)}",
        "grafana": f"glsa_{text(60, 32)}_{text(61, 8, HEX)}",
        "sentry": f"sntrys_{text(62, 60)}",
        "figma": f"figd_{text(63, 40)}",
        "planetscale": f"pscale_tkn_{text(64, 43)}",
        "square": f"sq0atp-{text(65, 22)}",
        "atlassian": f"ATATT3{text(66, 100)}",
        "json web token": _jwt(67),
        "private key": pem(),
        "openssh key": pem("OPENSSH PRIVATE KEY", 30),
        "elliptic key": pem("EC PRIVATE KEY", 3),
        "pkcs8 key": pem("PRIVATE KEY", 26),
        "encrypted key": pem("ENCRYPTED PRIVATE KEY"),
    }


def in_context() -> dict[str, tuple[str, str]]:
    """Kinds that are known only by what stands around them: (text, the secret in it)."""
    aws, word, token = text(70, 40, ALNUM + "/+"), text(71, 24), text(72, 40)
    return {
        "aws secret": (f"aws_secret_access_key = {aws}", aws),
        "aws secret in JSON": (f'{{"SecretAccessKey": "{aws}"}}', aws),
        "url": (f"postgres://app:{word}@db.example.com:5432/app", word),
        "git remote": (f"https://oauth2:{token}@git.example.com/a/b.git", token),
        "redis": (f"redis://:{word}@cache:6379/0", word),
        "env file": (f"export DB_PASSWORD={word}", word),
        "quoted env": (f'SERVICE_API_KEY="{token}"', token),
        "rails": (f"SECRET_KEY_BASE={text(73, 64, HEX)}", text(73, 64, HEX)),
        "bearer": (f"Authorization: Bearer {token}", token),
        "basic": (f"authorization: Basic {base64.b64encode(b'user:' + word.encode()).decode()}",
                  base64.b64encode(b"user:" + word.encode()).decode()),
        "curl": (f'curl -H "X-Api-Key: {token}" https://example.com', token),
        "query": (f"https://api.example.com/v1?x=1&access_token={token}", token),
        "yaml": (f"  client_secret: '{token}'", token),
        "toml": (f'api_key = "{token}"', token),
        "npmrc": (f"//registry.example.com/:_authToken={word}", word),
        "netrc": (f"machine example.com\n  login me\n  password {word}", word),
        "azure": (f"AccountKey={text(74, 86, ALNUM + '+/')}==", text(74, 86, ALNUM + "+/")),
        "slack hook": (f"https://hooks.slack.com/services/T0{text(75, 8, UPPER)}/B0/{word}", word),
    }  # fmt: skip


HARMLESS = (
    "d41d8cd98f00b204e9800998ecf8427e",
    "da39a3ee5e6b4b0d3255bfef95601890afd80709",
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "commit 3b18e512dba79e4c8300dd08aeb37f8e728b8dad (HEAD -> main)",
    "sha512-q7h0w2Zk0lN1xkA1dU5P5m2b0mM7k9nZ5fGdU4Vt2X1f0oQ2nqg0mQvJ9l9Qd2y3m1rT8wS7pL6k5j4h3g2f1Q==",
    "550e8400-e29b-41d4-a716-446655440000",
    "01HZX3V9K2M4N6P8Q0R2S4T6V8",
    "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 3).decode(),
    base64.b64encode(random.Random(5).randbytes(600)).decode(),
    base64.b64encode(b"The quick brown fox jumps over the lazy dog, and nothing happens.").decode(),
    "sk-learn",
    "task-force",
    "desk-lamp-with-a-very-long-name-and-nothing-else",
    "sk-loading-spinner-overlay-container",
    "risk-assessment-of-long-running-operations-in-2024",
    "ghp_short",
    "ghost_in_the_machine",
    "AKIA",
    "AKIAEXAMPLE",
    "xoxo-love-from-the-test",
    "pypi-publish-action",
    "npm_config_registry=https://registry.example.org/",
    "hf_hub_download(repo_id, filename)",
    "AIzawa",
    "github_pat_",
    "key-value-store",
    "api_key: str",
    "API_KEY = os.environ['OPENAI_API_KEY']",
    "api_key=settings.openai_api_key",
    "token = tokenizer.encode(text)",
    "PASSWORD=${POSTGRES_PASSWORD}",
    "DB_PASSWORD=<your-password-here>",
    "password: required",
    "SECRET_KEY = config('SECRET_KEY')",
    "export TOKEN=$(gh auth token)",
    "MAX_TOKENS=4096",
    "max_tokens: 262144",
    "tokens = 12345678901234567890",
    "CACHE_KEY=python-3.11-linux-x86_64-abcdef0123456789",
    "primary_key=True",
    "PUBLIC_KEY_PATH=/etc/keys/public.pem",
    "-----BEGIN PUBLIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEA\n-----END PUBLIC KEY-----",
    pem("CERTIFICATE", 3, 5000),
    'BEGIN = "-----BEGIN PRIVATE KEY-----"\nEND = "-----END PRIVATE KEY-----"\nprint(BEGIN, END)',
    "if line.startswith('-----BEGIN RSA PRIVATE KEY-----'):\n    raise ValueError('no keys here')",
    "https://example.com:8443/path@v1/file",
    "http://localhost:8080/",
    "git@github.com:owner/repo.git",
    "ssh://git@example.com:22/repo.git",
    "postgres://postgres:postgres@localhost/test",
    "https://user:password@example.com",
    "amqp://guest:guest@localhost:5672",
    "mysql://root:${MYSQL_ROOT_PASSWORD}@db/app",
    "http://user:{password}@host",
    "Authorization: Bearer YOUR_API_KEY",
    "Bearer $TOKEN",
    "the bearer of this long internationalization letter",
    "eyJhbGciOiJIUzI1NiJ9",
    "eyJ.eyJ.x",
    "Set-Cookie: theme=dark; Path=/",
    "SG.com",
    "SKU12345678",
    "SKIP_TESTS=1",
    "from k3agent.safety import masking, shapes",
    "arn:aws:iam::123456789012:role/service-role/my-role",
    "hooks.slack.com is where webhooks live",
    "https://example.com/?page=2&sort=key&order=desc",
    "next_page_token: 'CAUQAA1bcDEF2ghiJKL3mno'",
    "def test_secret_is_masked_when_token_is_given(self):",
    "ops_team_runbook_for_incident_response_2024_edition",
    "fw_version_string_of_the_embedded_controller_board",
)
