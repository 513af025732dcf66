"""Secrets are found in every form in which programs print them, and nothing else is touched."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import shlex
from pathlib import Path
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.secret_shapes import ALNUM, HARMLESS, in_context, pem, shapes, text

from k3agent.agent.masking import Masker
from k3agent.safety.environment import child_environ, is_secret_variable
from k3agent.safety.streaming import MAX_HELD

VALUES = {
    "DB_PASSWORD": "p@ss \"w0rd\"/with 'all' <kinds> & \\ of é signs",
    "SERVICE_TOKEN": text(100, 40),
    "SIGNING_SECRET": text(101, 64, ALNUM + "+/") + "==",
    "DEPLOY_KEY": pem(lines=4),
    "SHORT_TOKEN": "a1b2c3d4",
}
MASKER = Masker(VALUES)


def pieces_left(secret: str, shown: str, size: int = 10) -> list[str]:
    """Parts of the secret that can still be read."""
    parts = [secret[at : at + size] for at in range(0, len(secret) - size + 1)]
    return [
        part for part in parts if part in shown and not part.startswith("-----") and "PRIVATE" not in part
    ]


@pytest.mark.parametrize("kind", shapes())
def test_known_kinds_of_keys(kind: str) -> None:
    secret = shapes()[kind]
    for around in ("{}", "x={}", "key is {}.", '"{}"', "({})", "a\n{}\nb", "-H 'k: {}'", "12\t{}", "`{}`,"):
        shown = Masker({}).mask(around.format(secret))
        assert shown == around.format("[masked: a key]"), around


@pytest.mark.parametrize("kind", in_context())
def test_what_stands_around_tells_of_a_secret(kind: str) -> None:
    told, secret = in_context()[kind]
    for around in ("{}", "see:\n{}\nend", "12\t{}"):
        shown = Masker({}).mask(around.format(told))
        assert not pieces_left(secret, shown) and "[masked: a " in shown


@pytest.mark.parametrize("harmless", HARMLESS)
def test_harmless_text_stays_byte_for_byte(harmless: str) -> None:
    for around in ("{}", "x = {}\n", "12\t{}\n13\tnext"):
        whole = around.replace("{}", harmless)
        assert MASKER.mask(whole) == whole
        stream = MASKER.stream()
        assert "".join(map(stream.feed, whole)) + stream.flush() == whole


def forms(value: str) -> dict[str, str]:
    raw = value.encode()
    return {
        "plain": value,
        "json": json.dumps(value)[1:-1],
        "json, raw": json.dumps(value, ensure_ascii=False)[1:-1],
        "json in json": json.dumps(json.dumps(value))[1:-1],
        "json, slashes": json.dumps(value)[1:-1].replace("/", "\\/"),
        "url": quote(value, safe=""),
        "url, path": quote(value),
        "url, form": quote_plus(value),
        "html": html.escape(value),
        "shell": shlex.quote(value),
        "python": repr(value),
        "hex": raw.hex(),
        "HEX": raw.hex().upper(),
        "base64": base64.b64encode(raw).decode(),
        "base64, shifted": base64.b64encode(b"u:" + raw + b"\n").decode(),
        "base64, in bytes": base64.b64encode(b"\xff\xfe" + raw + b"\x00\xff").decode(),
        "base64, url": base64.urlsafe_b64encode(b"\xff" + raw).decode(),
        "base64, wrapped": base64.encodebytes(b"A=" + raw).decode(),
    }


@pytest.mark.parametrize("form", forms("x"))
@pytest.mark.parametrize("name", ["DB_PASSWORD", "SERVICE_TOKEN", "SIGNING_SECRET", "DEPLOY_KEY"])
def test_values_are_found_in_every_form(name: str, form: str) -> None:
    written = forms(VALUES[name])[form]
    shown = MASKER.mask(f"before {written} after")
    assert shown.startswith("before ") and shown.endswith(" after") and "[masked: " in shown
    assert not pieces_left(written, shown, 12)


@pytest.mark.parametrize("kind", [kind for kind, secret in shapes().items() if len(secret) >= 30])
def test_keys_are_found_in_base64(kind: str) -> None:
    secret = shapes()[kind]
    for raw in (secret, f"user:{secret}", f"TOKEN={secret}\nA=1\n"):
        for written in (base64.b64encode(raw.encode()).decode(), base64.encodebytes(raw.encode()).decode()):
            shown = Masker({}).mask(f"data: {written}")
            assert shown.strip() == "data: [masked: a key]"


@pytest.mark.parametrize("width", [7, 20, 40, 64, 76])
@pytest.mark.parametrize("numbered", [False, True])
def test_secrets_that_are_broken_over_lines(width: int, numbered: bool) -> None:
    secrets = [VALUES["SERVICE_TOKEN"], VALUES["SIGNING_SECRET"], *shapes().values()]
    for secret in secrets:
        if "\n" in secret or len(secret) <= width:
            continue
        rows = [secret[at : at + width] for at in range(0, len(secret), width)]
        rows = [f"{number}\t{row}" for number, row in enumerate(rows, 9)] if numbered else rows
        for end in ("\n", "\r\n", "\\\n"):
            shown = MASKER.mask(f"folded:\n{end.join(rows)}\nthe end")
            assert not [row for row in rows if row.partition("\t")[2] and row in shown], (secret, shown)
            assert not pieces_left(secret, shown, min(10, width)), (secret, shown)
            assert shown.endswith("\nthe end")


@pytest.mark.parametrize("cut", ["head", "tail", "escaped", "numbered", "quoted", "narrow"])
def test_private_keys_are_found_in_parts_and_in_disguise(cut: str) -> None:
    key = pem()
    lines = key.split("\n")
    shown = Masker({}).mask({
        "head": "\n".join(lines[:6]),
        "tail": "\n".join(lines[6:]),
        "escaped": f'{{"private_key": "{key.replace(chr(10), chr(92) + "n")}\\n"}}',
        "numbered": "\n".join(f"{n}\t{line}" for n, line in enumerate(lines, 1)),
        "quoted": "\n".join(f'  "{line}\\n" +' for line in lines),
        "narrow": "\n".join([lines[0], *re.findall(".{32}", "".join(lines[1:-1])), lines[-1]]),
    }[cut])  # fmt: skip
    assert not any(pieces_left(line, shown, 16) for line in lines[1:-1]), shown


@pytest.mark.parametrize("seed", range(6))
def test_no_secret_survives_the_borders_of_chunks(seed: int) -> None:
    dice = random.Random(seed)
    secrets = [*shapes().values(), *VALUES.values()]
    for secret in secrets:
        whole = f"Here it is: {secret} and more text."
        stream, at, out = MASKER.stream(), 0, []
        while at < len(whole):
            size = dice.choice((1, 2, 3, 5, 8, 40))
            out.append(stream.feed(whole[at : at + size]))
            at += size
        out.append(stream.flush())
        assert not pieces_left(secret, "".join(out), min(8, len(secret))), (secret, out)
        assert "".join(out).startswith("Here it is: [masked: ") and "".join(out).endswith(" and more text.")


@pytest.mark.parametrize("size", [1, 3, 11])
def test_contexts_survive_the_borders_of_chunks(size: int) -> None:
    for told, secret in in_context().values():
        stream = Masker({}).stream()
        whole = f"see {told}\nend"
        shown = (
            "".join(stream.feed(whole[at : at + size]) for at in range(0, len(whole), size)) + stream.flush()
        )
        assert not pieces_left(secret, shown), (told, shown)


@pytest.mark.parametrize("width", [10, 30])
def test_broken_lines_survive_the_borders_of_chunks(width: int) -> None:
    for secret in (
        VALUES["SERVICE_TOKEN"],
        VALUES["SIGNING_SECRET"],
        f"ghp_{text(10, 36)}",
        f"sk-{text(1, 48)}",
    ):
        rows = "\n".join(secret[at : at + width] for at in range(0, len(secret), width))
        stream = MASKER.stream()
        shown = "".join(map(stream.feed, f"folded:\n{rows}\nthe end of it")) + stream.flush()
        assert not pieces_left(secret, shown, 8), shown


WORDS = st.sampled_from(
    [
        "a",
        "key",
        "token",
        "sk-",
        "ghp_",
        "\n",
        "  ",
        "def f(x):",
        "12\t",
        "-----",
        "=",
        "://",
        "é",
        "Bearer ",
        "x7Q",
    ]
)


@given(st.lists(WORDS | st.text(max_size=5), max_size=40), st.integers(1, 7))
def test_streaming_gives_ordinary_text_back(words: list[str], size: int) -> None:
    whole = "".join(words)
    stream = MASKER.stream()
    shown = "".join(stream.feed(whole[at : at + size]) for at in range(0, len(whole), size)) + stream.flush()
    assert shown == MASKER.mask(whole)


@given(st.lists(WORDS | st.sampled_from([*shapes().values(), *VALUES.values()]), max_size=6))
def test_masking_twice_changes_nothing_more(parts: list[str]) -> None:
    once = MASKER.mask(" ".join(parts))
    assert MASKER.mask(once) == once


def test_a_stream_does_not_hold_back_what_is_harmless() -> None:
    stream = MASKER.stream()
    assert stream.feed("Hello ") == "Hello "
    assert stream.feed("wor") == "wor"
    assert "PRIVATE KEY" in stream.feed(
        "ld. The line -----BEGIN PRIVATE KEY----- begins a key. " + "And so on. " * 80
    )


def test_a_stream_holds_a_bounded_amount() -> None:
    stream = MASKER.stream()
    secret = text(7, 4 * MAX_HELD)
    shown = "".join(stream.feed(f"sk-{secret}"[at : at + 999]) for at in range(0, len(secret) + 3, 999))
    shown += stream.feed(" after") + stream.flush()
    assert not pieces_left(secret[:5000], shown, 30) and not pieces_left(secret[-5000:], shown, 30)
    assert shown.endswith(" after")


def test_plain_words_of_development_are_no_secrets() -> None:
    masker = Masker({"POSTGRES_PASSWORD": "postgres", "ADMIN_PASSWORD": "Changeme"})
    assert masker.mask("postgres is up. Changeme.") == "postgres is up. Changeme."


@pytest.mark.parametrize(
    ("name", "value", "is_secret"),
    [
        ("OPENAI_API_KEY", "x", True),
        ("GH_TOKEN", "x", True),
        ("my_secret", "x", True),
        ("APIKEY", "x", True),
        ("AWS_ACCESS_KEY_ID", "x", True),
        ("MYSQL_PWD", "x", True),
        ("SESSION_COOKIE", "x", True),
        ("GH_PAT", "x", True),
        ("SENTRY_DSN", "x", True),
        ("DATABASE_URL", "postgres://a:b1c2@h/d", True),
        ("SECRET_KEY_BASE", "x", True),
        ("PATH", "/bin", False),
        ("PWD", "/x", False),
        ("OLDPWD", "/x", False),
        ("LANG", "C", False),
        ("TOKENIZERS_PARALLELISM", "false", False),
        ("KEYBOARD", "us", False),
        ("SSL_KEY_FILE", "/x", False),
        ("DATABASE_URL", "postgres://h/d", False),
        ("SSH_ASKPASS", "/x", False),
        ("MONKEYS", "3", False),
    ],
)
def test_which_variables_are_secret(name: str, value: str, is_secret: bool) -> None:
    assert is_secret_variable(name, value) is is_secret
    assert (name not in child_environ({name: value})) is is_secret


def test_the_environment_files_of_the_workspace_are_known(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(
        'A=1\nexport APP_SECRET="quoted value, secret"\nAPI_TOKEN=abcd1234efgh # note\n'
    )
    masker = Masker({}, tmp_path)
    assert (
        masker.mask("quoted value, secret; abcd1234efgh; note")
        == "[masked: APP_SECRET]; [masked: API_TOKEN]; note"
    )
    (tmp_path / ".env.local").write_text("NEW_TOKEN=zyxw9876vuts\n")
    masker.refresh()
    assert masker.mask("zyxw9876vuts") == "[masked: NEW_TOKEN]"
