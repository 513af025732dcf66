"""What live credentials look like: one row for each kind, found by a cheap word first and a pattern second.

A row's `needles` are looked for before its pattern is compiled or run, so that ordinary text costs next to
nothing. A pattern with a group `secret` masks that group only. No part of a pattern looks ahead without a
bound: anybody's text is masked, and one made for it would take hours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

KEY = "a key"
PASSWORD = "a password"


@dataclass(frozen=True, slots=True)
class Shape:
    """`wraps`: one unbroken run of characters, which programs may print over several lines. `needs`: one of
    these signs stands in each line that has it. `reach`: one over several lines ends with a needle, and
    begins no more characters before it; 0: anywhere.
    """

    needles: tuple[str, ...]
    pattern: str
    label: str = KEY
    wraps: bool = True
    is_multiline: bool = False
    needs: str = ""
    reach: int = 0


_START = r"(?<![A-Za-z0-9])"
_END = r"(?![A-Za-z0-9])"
# Letters and a digit: what people write as a stand-in has no digit, what code writes has dots or brackets.
_MIXED = r"(?=[A-Za-z+/_=~-]{0,400}[0-9])(?=[0-9+/_=~-]{0,400}[A-Za-z])"
_VALUE = _MIXED + r"[A-Za-z0-9+/_=~-]"
_VALUE_END = r"""(?![A-Za-z0-9+/_=~.(\[{$-])"""
# However it ends, a very long one is a secret: else all of it would be gone through from each name in it.
_WHOLE_VALUE = rf"(?:{_VALUE}{{16,8191}}+{_VALUE_END}|{_VALUE}{{8192,}}+)"
# With one part that is no word: names in code are long, too, but their words are short.
_LONG = r"(?=[A-Za-z0-9_=-]{0,200}(?=[A-Za-z]{0,100}[0-9])[A-Za-z0-9]{16})[A-Za-z0-9_=-]{28,}"


def _run(prefix: str, rest: str, *needles: str) -> Shape:
    return Shape(needles or (prefix,), f"{_START}{prefix}{rest}{_END}")


_TOKENS = (
    # OpenAI, Anthropic, Moonshot, Kimi, OpenRouter; names of packages and of CSS have no such long part
    _run("sk-", r"(?=[A-Za-z0-9_-]{0,200}[A-Za-z0-9]{20})[A-Za-z0-9_-]{32,}"),
    _run("gh[pousr]_", r"[A-Za-z0-9]{36,}", "ghp_", "gho_", "ghu_", "ghs_", "ghr_"),
    _run("github_pat_", r"[A-Za-z0-9_]{50,}"),
    _run("gl(?:pat|dt|rt|ptt|ft|agent)-", r"[A-Za-z0-9_-]{20,}(?:[.][A-Za-z0-9_-]+)*",
         "glpat-", "gldt-", "glrt-", "glptt-", "glft-", "glagent-"),
    _run("(?:AKIA|ASIA)", r"[0-9A-Z]{16}", "AKIA", "ASIA"),
    _run("AIza", r"[A-Za-z0-9_-]{35}"),
    _run("ya29[.]", r"[A-Za-z0-9_-]{30,}", "ya29."),
    _run("GOCSPX-", r"[A-Za-z0-9_-]{20,}"),
    _run("xox[abeoprs](?:[.]xox[a-z])?-", r"(?=[A-Za-z-]{0,200}[0-9])[A-Za-z0-9-]{20,}", "xox"),
    _run("xapp-", r"[A-Za-z0-9-]{30,}"),
    _run("[sr]k_(?:live|test)_", r"[A-Za-z0-9]{20,}", "sk_live_", "rk_live_", "sk_test_", "rk_test_"),
    _run("whsec_", r"[A-Za-z0-9+/=]{24,}"),
    _run("npm_", r"[A-Za-z0-9]{36,}"),
    _run("pypi-AgE", r"[A-Za-z0-9_-]{50,}"),
    _run("hf_", r"[A-Za-z0-9]{30,}"),
    _run("SG[.]", r"[A-Za-z0-9_-]{16,}[.][A-Za-z0-9_-]{16,}", "SG."),
    _run("SK", r"(?=[a-f]*[0-9])[0-9a-f]{32}"),
    _run("(?<![_-])key-", r"(?=[a-f]*[0-9])[0-9a-f]{32}", "key-"),
    _run(r"[0-9]{8,10}:AA", r"[A-Za-z0-9_-]{33}", ":AA"),
    _run("do[opr]_v1_", r"[0-9a-f]{64}", "dop_v1_", "doo_v1_", "dor_v1_"),
    _run("shp(?:at|ca|pa|ss)_", r"[0-9a-fA-F]{32}", "shpat_", "shpca_", "shppa_", "shpss_"),
    _run("dapi", r"[0-9a-f]{32}"),
    _run("(?:dckr_pat_|dp[.](?:pt|st|ct|sa)[.])", r"[A-Za-z0-9_-]{24,}", "dckr_pat_", "dp."),
    _run("AGE-SECRET-KEY-1", r"[0-9A-Z]{58}"),
    _run("hv[sbr][.]", r"[A-Za-z0-9_-]{24,}", "hvs.", "hvb.", "hvr."),
    _run("(?:lin_api_|ntn_|gsk_|xai-|pplx-|r8_|fw_|tvly-|jina_)", _LONG,
         "lin_api_", "ntn_", "gsk_", "xai-", "pplx-", "r8_", "fw_", "tvly-", "jina_"),
    _run("(?:PMAK-|NRAK-|NRJS-|FLWSECK)", r"[A-Za-z0-9-]{20,}", "PMAK-", "NRAK-", "NRJS-", "FLWSECK"),
    _run("(?:glsa_|glc_|sntry[su]_|figd_|pscale_(?:tkn|pw|oauth)_|sbp_|EAACEd|ATATT3|ops_eyJ)", _LONG,
         "glsa_", "glc_", "sntry", "figd_", "pscale_", "sbp_", "EAACEd", "ATATT3", "ops_eyJ"),
    _run("sq0(?:atp|csp)-", r"[A-Za-z0-9_-]{22,}", "sq0"),
    # JSON web tokens: header and payload are JSON objects, so both begin with eyJ
    _run("eyJ", r"[A-Za-z0-9_-]{8,8000}+[.](?:eyJ)?[A-Za-z0-9_-]{6,}+[.][A-Za-z0-9_-]{8,}"
         r"(?:[.][A-Za-z0-9_-]+){0,2}", "eyJ"),
    Shape(("hooks.slack.com", "discord.com/api/webhooks", "discordapp.com/api/webhooks"),
          r"https://(?:hooks\.slack\.com/(?:services|workflows|triggers)"
          r"|discord(?:app)?\.com/api/webhooks)/(?P<secret>[A-Za-z0-9_/-]{20,})"),
    Shape(("AccountKey=", "SharedAccessKey="),
          r"(?:AccountKey|SharedAccessKey)=(?P<secret>[A-Za-z0-9+/]{40,}={0,2})"),
)  # fmt: skip

_BODY = r"(?:[A-Za-z0-9+/=\s]|\\[nrt])"
# Around the lines of a key that is printed: numbers, quotes, file names, escapes, headers such as Proc-Type.
_LOOSE = r"(?:(?!-----)[\t\n\r -~])"
_NAME = r"[A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?"
_KEY_BLOCKS = (
    Shape(
        ("PRIVATE KEY",),
        rf"-----BEGIN {_NAME}-----(?:{_BODY}+-----END {_NAME}-----"
        rf"|(?={_LOOSE}{{0,400}}?[A-Za-z0-9+/]{{32}}){_LOOSE}{{1,20000}}-----END {_NAME}-----"
        # cut off before its end: at least one full line, and all lines that follow
        r"""|(?:(?:[\s"',\\>|]|\\[nr]|\b\d+\t|[A-Za-z-]+: [^\n]*\n)*[A-Za-z0-9+/=]{32,}){1,400}"""
        r"(?:(?:\s|\\n)*[A-Za-z0-9+/=]{4,70}(?=\s*$))?)",
        wraps=False,
        is_multiline=True,
    ),
    # cut off before its beginning
    Shape(
        ("PRIVATE KEY-----", "PRIVATE KEY BLOCK-----"),
        rf"(?:(?<![A-Za-z0-9+/=])[A-Za-z0-9+/=]{{32,}}+(?:\s|\\[nr])(?:\s|\d+\t)*)+[A-Za-z0-9+/=]*(?:\s|\\[nr]|\d+\t)*"
        rf"-----END {_NAME}-----",
        wraps=False,
        is_multiline=True,
        reach=20_000,
    ),
)

_SECRET_NAME = (
    r"(?:TOKEN|SECRET|(?:SECRET|API|ACCESS|PRIVATE|AUTH)_?KEY|PASSWORD|PASSWD|PASSPHRASE|[A-Z]_PWD)"
)
_STAND_INS = (
    r"(?!(?:password|passwd|pass|pw|pwd|secret|postgres|mysql|root|admin|user|guest|test|example|changeme|token"
    r"|x+|\*+|\.+)@)(?![$<{%\[*])"
)
_CONTEXTS = (
    # assignments in the style of environment files, and quoted values of names that say what they are
    Shape(
        ("TOKEN", "SECRET", "PASS", "KEY", "PWD"),
        rf"(?<![A-Za-z0-9_])[A-Z0-9_]*{_SECRET_NAME}(?:_BASE|_?[0-9]{{1,2}})?[ \t]?=[ \t]?[\"']?"
        rf"(?P<secret>(?![/~]){_WHOLE_VALUE})",
        wraps=False,
        needs="=",
    ),
    Shape(
        (*("token", "secret", "passw", "key", "Token", "Secret", "Passw", "Key"),
         *("TOKEN", "SECRET", "PASSW", "KEY")),
        r"(?i:(?<!page)(?<!page_)(?<!next)(?<!next_)token|secret|password|passwd"
        r"|(?:api|access|private|account)[_-]?key)"
        r"""["']?[ \t]*[:=]>?[ \t]*["'](?P<secret>(?=[^"']*[0-9])(?=[^"']*[a-z])(?=[^"']*[A-Z])"""
        r"""[A-Za-z0-9+/_=~.-]{20,})["']""",
        wraps=False,
        needs="\"'",
    ),
    Shape(
        ("aws_se", "AWS_SE", "SecretAccessKey", "secretAccessKey", "secret_access_key"),
        r"(?i:(?:aws_)?secret_?access_?key)[\"']?[ \t]*[:=][ \t]*[\"']?(?P<secret>[A-Za-z0-9/+]{40})"
        r"(?![A-Za-z0-9/+])",
        wraps=False,
    ),
    Shape(("_authToken", "_auth", "_password"),
          r"_(?:authToken|auth|password)[ \t]*=[ \t]*[\"']?(?P<secret>[A-Za-z0-9+/_=.-]{8,})", wraps=False),
    Shape(("login ", "login\n"),
          r"\bmachine\s+\S+\s+login\s+\S+\s+password\s+(?P<secret>\S{4,})", PASSWORD, wraps=False,
          is_multiline=True),
    Shape(("earer ", "asic ", "oken ", "EARER "),
          r"(?i:authorization[\"']?[ \t]*[:=][ \t]*[\"']?(?:bearer|basic|token))[ \t]+"
          r"(?P<secret>(?=[A-Za-z+/_=.~-]*[0-9=])[A-Za-z0-9+/_=.~-]{12,})", wraps=False),
    Shape(("earer ",),
          r"\b[Bb]earer[ \t]+(?P<secret>(?=[A-Za-z_.-]*[0-9])(?=[a-z0-9_.-]*[A-Z]|[0-9a-f]{32})"
          r"[A-Za-z0-9_.-]{24,})",
          wraps=False),
    Shape(("pi-key", "pi-Key", "PI-Key", "PI-KEY", "uth-token", "uth-Token", "AUTH-TOKEN", "rivate-token",
           "RIVATE-TOKEN", "rivate-Token"),
          r"(?i:(?:x-)?(?:goog-)?(?:api-key|auth-token|private-token))[\"']?[ \t]*[:=][ \t]*[\"']?"
          rf"(?P<secret>{_VALUE}{{16,}})", wraps=False),
    Shape(("token=", "key=", "secret=", "sig=", "ignature=", "password=", "auth="),
          r"[?&](?i:[a-z_-]*(?:token|key|secret|password|signature|sig|auth))="
          r"(?P<secret>(?=[A-Za-z+/_=.%-]*[0-9])(?=[0-9+/_=.%-]*[A-Za-z])[A-Za-z0-9+/_=.%-]{16,})",
          wraps=False, needs="?&"),
    # user:password@host
    Shape(("://",),
          rf"\b[a-zA-Z][a-zA-Z0-9+.-]{{0,30}}://(?P<user>[^\s/:@\"'<>`?#]*):(?!(?P=user)@)"
          rf"(?P<secret>{_STAND_INS}[^\s/@\"'<>`]{{3,}})@(?=[A-Za-z0-9\[])",
          PASSWORD, wraps=False, needs="@"),
)  # fmt: skip

SHAPES = (*_KEY_BLOCKS, *_TOKENS, *_CONTEXTS)
# A text that ends in one of these may go on with a secret.
RUN_NEEDLES = tuple(sorted({needle for shape in SHAPES if shape.wraps for needle in shape.needles}))
_BY_NEEDLE = tuple((needle, shape) for shape in SHAPES for needle in shape.needles)
_SPACE = re.compile(r"\s")
_WRAPPING_BY_NEEDLE = tuple((needle, shape) for needle, shape in _BY_NEEDLE if shape.wraps)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def find(text: str, *, only_wrapping: bool = False) -> Iterator[tuple[int, int, str]]:
    """(start, end, label) of all that looks like a credential; the spans may overlap."""
    rows = _WRAPPING_BY_NEEDLE if only_wrapping else _BY_NEEDLE
    for shape in dict.fromkeys([shape for needle, shape in rows if needle in text]):
        for begin, end in _windows(text, shape):
            # In a text without its line breaks, what follows a key is the next line.
            pattern = shape.pattern.removesuffix(_END) if only_wrapping else shape.pattern
            for hit in _compiled(pattern).finditer(text, begin, end):
                group = "secret" if "secret" in hit.re.groupindex else 0
                yield hit.start(group), hit.end(group), shape.label


def _windows(text: str, shape: Shape) -> Iterator[tuple[int, int]]:
    """The lines in which a needle stands, or the words where no match goes on after one: patterns are slow,
    so they see little. Those over lines see all.
    """
    if shape.is_multiline:
        yield from _reaches(text, shape) if shape.reach else [(0, len(text))]
        return
    end_of = _word_end if shape.wraps else _line_end
    found = [place for needle in shape.needles for place in _places(text, needle, end_of)]
    end = -1
    for place in sorted(found):
        if place > end:
            # Never looked for beyond the last window: in a text without spaces that would be slow.
            begin = max(text.rfind("\n", end + 1, place), end) + 1
            if shape.wraps:
                begin = max(text.rfind(" ", begin, place) + 1, begin)
            end = end_of(text, place)
            if not shape.needs or any(text.find(sign, begin, end) >= 0 for sign in shape.needs):
                yield begin, end


def _reaches(text: str, shape: Shape) -> Iterator[tuple[int, int]]:
    """What stands before each needle, as far as a match may begin."""
    end = 0
    for needle in re.finditer("|".join(map(re.escape, shape.needles)), text):
        yield max(end, needle.start() - shape.reach), needle.end()
        end = needle.end()


def _places(text: str, needle: str, end_of: Callable[[str, int], int]) -> Iterator[int]:
    """Where `needle` stands, once for each line or word."""
    at = text.find(needle)
    while at >= 0:
        yield at
        at = text.find(needle, end_of(text, at))


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end


def _word_end(text: str, at: int) -> int:
    space = _SPACE.search(text, at)
    return len(text) if space is None else space.start()
