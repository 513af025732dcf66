"""The command line: what it answers without loading anything, unknown words, combinations of flags."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from k3agent import __version__, cli
from k3agent.config.trust import covered
from k3agent.headless.flags import run_parser
from k3agent.store.records import StoredSession
from k3agent.store.sessions import SessionStore
from k3agent.types import Message, MessageId, Origin, Role, SessionId, TextPart


@pytest.fixture(autouse=True)
def away(tmp_path, monkeypatch) -> None:
    """No settings, data or keys of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("K3AGENT_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for name in ("MOONSHOT_API_KEY", "KIMI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_KEY", "K3AGENT_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def run(*words: str) -> int:
    try:
        return cli.main(words)
    except SystemExit as error:
        return int(error.code or 0)


def test_as_a_module(tmp_path) -> None:
    command = [sys.executable, "-P", "-m", "k3agent", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert done.stdout == f"k3agent {__version__}\n"


def test_version_and_help(capsys) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"k3agent {__version__}\n"
    assert run("--help") == 0
    out = capsys.readouterr().out
    assert all(name in out for name in cli.COMMANDS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "x", "--modle", "y"), "Did you mean --model?"),
        (("run", "x", "--max-turn=3"), "Did you mean --max-turns?"),
        (("run", "-c", "x"), "unknown flag -c. Did you mean --continue? See k3agent run --help."),
        (("doctor", "-c"), "unknown flag -c. See k3agent doctor --help."),
        (("help", "nosuch"), "unknown command 'nosuch'. See k3agent --help."),
        (("help", "sesions", "list"), "unknown command 'sesions'. Did you mean sessions?"),
        (("run", "x", "--out"), "unknown flag --out"),
        (("run", "two", "words"), "quotes"),
        (("run", "x", "--max-turns", "0"), "less than 1"),
        (("run", "x", "--max-time", "soon"), "no number"),
        (("run", "x", "--effort", "medium"), "'medium' is none of low, high, max. See k3agent run --help."),
        (("run", "x", "--effort", "hihg"), "Did you mean high?"),
        (("run", "x", "--add-dir", "/no/such/folder"), "--add-dir /no/such/folder: no such folder."),
        (("run", "x", "-o", "/"), "-o /: it is a folder"),
        (("run", "x", "-o", "/no/such/folder/f"), "its folder is not there"),
        (("doctor", "x"), "one argument too many: 'x'. See k3agent doctor --help."),
        (("run", "x", "--session-id", "abc"), "no UUID"),
        (("run", "x", "--resume", "a", "--continue"), "exclude each other"),
        (("run", "x", "--fork-session"), "--resume"),
        (("run", "x", "--ephemeral", "--continue"), "--ephemeral"),
        (("run",), "no prompt"),
        (("run", "x", "--cwd", "/no/such/folder"), "no such folder"),
        (("sesions", "list"), "Did you mean sessions?"),
        (("sessions", "lst"), "Did you mean list?"),
        (("config", "get", "modle"), "Did you mean model?"),
        (("config", "get", "limit"), "Did you mean limits?"),
        (("doctor", "--jsn"), "Did you mean --json?"),
        (("--versoin",), "Did you mean --version?"),
        ((), "k3agent run"),
        (("-c",), "k3agent run --continue"),
        (("resume", "abc"), "k3agent run --resume abc"),
        (("resume",), "sessions list shows the ids."),
        (("fix the tests",), "k3agent run"),
        (("frobnicate", "it"), "A prompt of several words needs quotes."),
        (("--modle", "x"), "Did you mean --model? See k3agent --help."),
        (("undo", "--to", "x"), "'x' is no whole number"),
        (("undo", "--json"), "--list or --dry-run"),
        (("tasks", "show", "a", "x"), "'x' is no whole number"),
        (("sessions", "export", "a", "-o", "/no/such/folder/f"), "-o /no/such/folder/f: its folder is not"),
        (("sessions", "export", "a", "-o", "x" * 300 + "/f"), "its folder is not there"),
        (("run", "x", "--cwd", "x" * 300), "no such folder"),
        (("plan", "--gpu", "x"), "did you mean --gpus? See k3agent plan --help."),
        (("run", "x", "--max-turns"), "expected one argument. See k3agent run --help."),
    ],
)
def test_wrong_usage_is_2_and_says_what_is_right(capsys, words: tuple[str, ...], said: str) -> None:
    code = run(*words)
    captured = capsys.readouterr()
    assert code == (52 if words[:2] == ("config", "get") else 2)
    assert said in captured.err
    assert captured.out == ""


def test_every_flag_has_one_line_of_help() -> None:
    for action in run_parser()._actions:
        assert action.help
        assert "\n" not in action.help


def test_p_is_run(monkeypatch) -> None:
    seen = []
    monkeypatch.setattr("k3agent.headless.flags.run_command", lambda argv: seen.append(argv) or 0)
    assert run("-p", "do it", "--model", "nano") == 0
    assert run("--model", "nano", "-p", "do it") == 0
    assert seen == [["do it", "--model", "nano"], ["--model", "nano", "do it"]]


def test_config_round_trip(capsys) -> None:
    assert run("config", "set", "limits.max_turns", "9") == 0
    assert run("config", "get", "limits.max_turns") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "9"
    assert run("config", "list", "--json") == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["limits.max_turns"]["value"] == 9
    assert listed["limits.max_turns"]["origin"].endswith("config.toml")
    assert listed["model"] == {"value": "", "origin": "default"}


@pytest.mark.parametrize("words", [("help", "sessions"), ("sessions", "--help")])
def test_help_of_a_command_tells_what_each_action_is_for(capsys, words: tuple[str, ...]) -> None:
    assert run(*words) == 0
    out = capsys.readouterr().out
    assert "  uncompact  Undo the newest compaction: the whole conversation goes on\n" in out


def test_help_and_version_as_words(capsys) -> None:
    assert run("help", "sessions", "list") == 0
    assert capsys.readouterr().out.startswith("usage: k3agent sessions list")
    for words in (("help",), ("help", "help"), ("help", "--help")):
        assert run(*words) == 0 and capsys.readouterr().out.startswith("usage: k3agent [PROMPT]")
    assert run("version") == 0
    assert capsys.readouterr().out == f"k3agent {__version__}\n"


def test_a_wrong_key_can_be_taken_out_and_a_wrong_rule_is_not_put_in(capsys, tmp_path) -> None:
    file = tmp_path / "config" / "k3agent" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text('modle = "x"\n')
    assert run("config", "unset", "modle") == 0 and file.read_text() == ""
    assert run("config", "set", "deny", "((") == 52
    assert "is not understood" in capsys.readouterr().err and file.read_text() == ""


def test_config_unset(capsys) -> None:
    assert run("config", "set", "limits.max_turns", "7") == 0
    assert run("config", "unset", "limits.max_turns") == 0
    assert "was set in" in capsys.readouterr().out
    assert run("config", "get", "limits.max_turns") == 0
    assert capsys.readouterr().out == ""
    assert run("config", "unset", "limits.max_turns") == 0
    assert "was not set" in capsys.readouterr().out
    assert run("config", "unset", "limits.max_turn") == 52
    assert "limits.max_turns" in capsys.readouterr().err


def test_an_unknown_provider_is_told_when_it_is_set(capsys) -> None:
    assert run("config", "set", "provider", "bundeld") == 0
    said = capsys.readouterr().err
    assert "Did you mean bundled?" in said and "[providers.bundeld]" in said
    assert run("config", "set", "provider", "bundled") == 0
    assert capsys.readouterr().err == ""


def test_facts_are_kept_without_secrets(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("MY_API_KEY", "k7f3a9c1d5e8b2a4")
    monkeypatch.chdir(tmp_path)
    key = "ghp_" + "a1B2" * 9
    assert run("memory", "add", f"the key is {key} and k7f3a9c1d5e8b2a4") == 0
    assert run("memory", "edit", "1", f"the token is {key}") == 0
    assert run("memory", "list") == 0
    told = capsys.readouterr().out
    assert "the token is" in told and key not in told and "k7f3a9c1d5e8b2a4" not in told


def test_config_trust(capsys, tmp_path) -> None:
    assert run("config", "trust") == 52
    (tmp_path / ".k3agent").mkdir()
    (tmp_path / ".k3agent" / "config.toml").write_text('model = "repo"\n')
    assert run("config", "get", "model") == 0
    assert "repo" not in capsys.readouterr().out
    assert run("config", "trust", "--yes") == 0
    assert "--- " in (said := capsys.readouterr().out) and 'model = "repo"' in said
    assert run("config", "get", "model") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "repo"


def test_config_trust_asks(capsys, tmp_path, monkeypatch) -> None:
    (tmp_path / ".k3agent").mkdir()
    file = tmp_path / ".k3agent" / "config.toml"
    file.write_text('model = "repo"\n')
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert run("config", "trust") == 2
    assert "say --yes" in capsys.readouterr().err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    for typed in ("n\n", "\n", ""):
        monkeypatch.setattr("builtins.input", typed_once(typed))
        assert run("config", "trust") == 1
    assert "Nothing was trusted" in capsys.readouterr().out

    def changes_it(question: str) -> str:
        assert 'model = "repo"' in capsys.readouterr().out and "the 1 file shown?" in question
        file.write_text('model = "other"\n')
        return "y"

    monkeypatch.setattr("builtins.input", changes_it)
    assert run("config", "trust") == 52
    assert "has changed since it was shown" in capsys.readouterr().err
    monkeypatch.setattr("builtins.input", typed_once("y\n"))
    assert run("config", "trust") == 0
    assert run("config", "get", "model") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "other"


def test_config_trust_covers_no_file_that_came_while_it_was_shown(capsys, tmp_path, monkeypatch) -> None:
    (tmp_path / ".k3agent").mkdir()
    (tmp_path / ".k3agent" / "config.toml").write_text('model = "repo"\n')

    def listed(folder: Path) -> list[Path]:
        found = covered(folder)
        (folder / "hooks.json").write_text("{}")
        return found

    monkeypatch.setattr("k3agent.commands.config.covered", listed)
    assert run("config", "trust", "--yes") == 52
    assert "has changed since it was shown" in capsys.readouterr().err


def typed_once(line: str) -> Callable[[str], str]:
    """What `input` does when this is typed; nothing at all is the end of input."""

    def answer(_: str) -> str:
        if not line:
            raise EOFError
        return line.rstrip("\n")

    return answer


def test_models_and_doctor_as_json(capsys) -> None:
    assert run("models", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"kimi-k3", "nano"} <= {row["model"] for row in rows}
    code = run("doctor", "--json")
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["ok"] else 1)
    assert {"python", "git", "sandbox", "embedded model", "data folder", "configuration"} <= {
        finding["name"] for finding in report["findings"]
    }
    assert all(finding["mend"] for finding in report["findings"] if finding["state"] != "ok")


def test_doctor_names_a_wrong_configuration(capsys, tmp_path) -> None:
    file = tmp_path / "config" / "k3agent" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text("modle = 1\n")
    assert run("doctor") == 1
    assert "Did you mean model?" in capsys.readouterr().out


def test_sessions_of_an_empty_store(capsys) -> None:
    assert run("sessions", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == []
    assert run("sessions", "show", "abc") == 1
    assert run("stats", "--json") == 0
    capsys.readouterr()
    assert run("sessions", "list") == 0
    assert "No sessions yet." in capsys.readouterr().err
    assert run("sessions", "list", "--here") == 0
    assert "No sessions of this folder" in capsys.readouterr().err


def prompt(text: str) -> Message:
    return Message(
        id=MessageId(text),
        parent=None,
        role=Role.USER,
        origin=Origin.HUMAN,
        parts=(TextPart(text=text),),
        created_at=datetime.now(UTC),
    )


def test_sessions_list_marks_those_that_were_killed_in_a_turn(capsys, tmp_path) -> None:
    store = SessionStore(tmp_path / "data")
    for number, name in enumerate(("killed", "ended", "held")):
        session_id = SessionId(f"{number}{number}")
        store.create(StoredSession(id=session_id, cwd=str(tmp_path)))
        turn = store.start_turn(session_id, [prompt(name)], title=name)
        if name == "ended":
            store.end_turn(session_id, turn, "success", "")
    lock = store.lock(SessionId("22"))
    assert run("sessions", "list") == 0
    listed, noted = capsys.readouterr()
    assert "--resume ID" in noted
    assert "  ⊘ interrupted: killed  (" in listed and listed.count("⊘") == 1
    assert run("sessions", "list", "--json") == 0
    found = {row["title"]: row["is_interrupted"] for row in json.loads(capsys.readouterr().out)}
    assert found == {"killed": True, "ended": False, "held": False}
    lock.release()
    # An earlier turn with an end says nothing of the newest one, and the other way round.
    turn = store.start_turn(SessionId("00"), [prompt("again")])
    assert store.unfinished() == {"00", "22"}
    store.end_turn(SessionId("00"), turn, "success", "")
    assert store.unfinished() == {"22"}
    store.close()
    assert run("sessions", "list", "--help") == 0
    assert "--resume ID` goes on" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", ["sessions", "memory", "mcp", "config"])
def test_a_command_that_lists_does_so_without_another_word(capsys, name: str) -> None:
    for flags in ((), ("--json",)):
        assert run(name, *flags) == 0
        told = capsys.readouterr()
        assert run(name, "list", *flags) == 0 and told == capsys.readouterr()
    assert run(name, "--nope") == 2 and run(name, "nope") == 2
    assert "default: list" in (run(name, "--help"), capsys.readouterr().out)[1]


def test_tasks_alone_lists_those_of_the_newest_session_here(capsys) -> None:
    assert run("tasks") == run("tasks", "list") == 1
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 2 and said[0] == said[1] and "no session of" in said[0]


@pytest.mark.parametrize("words", [("sessions", "list"), ("stats",), ("search", "x"), ("memory", "list")])
def test_what_lists_can_be_asked_for_this_folder_and_for_all(capsys, words: tuple[str, ...]) -> None:
    assert run(*words, "--here") == 0 and run(*words, "--all") == 0
    assert run(*words, "--here", "--all") == 2
    assert "not allowed with argument" in capsys.readouterr().err
    assert run(*words, "--help") == 0
    assert capsys.readouterr().out.count("(default)") == 1


@pytest.mark.parametrize(
    "words", [("doctor",), ("config", "list"), ("models",), ("sessions", "list", "--here")]
)
def test_a_folder_that_is_gone_is_no_crash(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    assert run(*words) == 1
    said = capsys.readouterr().err
    assert said == "k3agent: the folder it was started in is not there any more; cd into another one.\n"


def test_config_alone_lists_and_a_group_is_listed(capsys) -> None:
    assert run("config") == 0
    whole = capsys.readouterr().out
    assert run("config", "list") == 0
    assert capsys.readouterr().out == whole and "limits.max_turns" in whole
    assert run("config", "--json") == 0
    assert "limits.max_turns" in json.loads(capsys.readouterr().out)
    assert run("config", "get", "limits") == 0
    group = capsys.readouterr().out.splitlines()
    assert len(group) > 2 and all(line.startswith("limits.") for line in group)


def test_the_help_of_resume_says_how_it_is_used(capsys) -> None:
    assert run("resume", "--help") == 0
    assert "k3agent resume [ID] [PROMPT] [flags]" in capsys.readouterr().out


def test_bench_alone_measures_nothing(capsys) -> None:
    assert run("bench") == 2
    out = capsys.readouterr().out
    assert all(name in out for name in ("measure", "replay", "load", "model"))


def test_a_locale_that_lacks_a_letter_gets_an_escape_for_it(tmp_path) -> None:
    program = "from k3agent import cli; cli._print_anything(); print('ü \\ud800')"
    for encoding, shown in (
        ("ascii", b"\\xfc \\ud800\n"),
        ("utf-8", "ü \\ud800\n".encode()),
        # As in the locale C.
        ("utf-8:surrogateescape", "ü \\ud800\n".encode()),
    ):
        environ = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environ, check=True)
        assert done.stdout == shown
