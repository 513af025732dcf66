"""Who may do what: modes, rules, protected places."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.judge import Judge

from k3agent.agent.permissions import Action, Permissions, Rule, Territory
from k3agent.agent.suggestions import rules_for
from k3agent.errors import ConfigError
from k3agent.tools.base import Access


@pytest.mark.parametrize(
    ("mode", "inside", "outside"),
    [
        ("plan", Action.DENY, Action.ASK),
        ("default", Action.ASK, Action.ASK),
        ("accept-edits", Action.ALLOW, Action.ASK),
        ("auto", Action.ALLOW, Action.ASK),
    ],
)
def test_writing_by_mode(judge: Judge, mode: str, inside: Action, outside: Action) -> None:
    assert judge.write("src/new.py", mode) is inside
    assert judge.write("../elsewhere.py", mode) is outside
    assert judge.write("../other/file", mode) is inside
    assert judge.read("a.py", mode) is Action.ALLOW
    assert judge.read("../elsewhere.py", mode) is Action.ASK


@pytest.mark.parametrize(
    "path", [".git/config", ".git/hooks/pre-commit", ".GIT/config", "src/.git/x", ".k3agent/config.toml"]
)
def test_protected_folders_are_asked_about_even_when_a_rule_allows(judge: Judge, path: str) -> None:
    assert judge.write(path) is Action.ASK
    assert judge.write(path, allow=("edit",)) is Action.ASK
    assert judge.read(path) is Action.ALLOW


def test_secrets_and_our_own_data_are_asked_about(judge: Judge) -> None:
    for path in (
        "../user/.ssh/id_rsa",
        "../user/.aws/credentials",
        "../data/k3agent.db",
        "../data/blobs/t/x",
    ):
        assert judge.read(path, allow=("read",)) is Action.ASK, path
        assert judge.write(path, allow=("edit",)) is Action.ASK, path
    assert judge.read("../data/blobs/s/full.txt") is Action.ALLOW
    assert judge.write("../data/blobs/s/full.txt") is Action.ASK


def test_a_workspace_inside_the_data_folder_is_a_workspace(tmp_path: Path) -> None:
    cwd = tmp_path / "data" / "ws"
    cwd.mkdir(parents=True)
    territory = Territory(cwd=cwd, extra_dirs=(), home=tmp_path / "data", environ={}, readable=())
    assert territory.protected(cwd / "a.py", is_write=True) is None
    assert territory.protected(tmp_path / "data" / "k3agent.db", is_write=False) is not None


def test_names_that_only_look_protected_are_not(judge: Judge) -> None:
    for path in (".gitignore", ".github/README.md", "src/git/x", ".k3agentrc"):
        assert judge.write(path) is Action.ALLOW


# --- a tool that writes and runs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "action"),
    [
        ("plan", Action.DENY),
        ("default", Action.ASK),
        ("accept-edits", Action.ASK),
        ("auto", Action.ALLOW),
    ],
)
def test_a_search_is_judged_as_an_edit_and_as_a_command(judge: Judge, mode: str, action: Action) -> None:
    assert judge.trial("a.py", "make test", mode) is action


def test_the_stricter_part_of_a_search_decides(judge: Judge) -> None:
    for path, command in (("../out.py", "make test"), (".git/config", "make test"), ("a.py", "rm -rf ..")):
        assert judge.trial(path, command) is Action.ASK, (path, command)
        assert judge.trial(path, command, "default", allow=("edit(a.py)", "shell(make test)")) is Action.ASK


@pytest.mark.parametrize(
    ("mode", "rules", "left"),
    [
        ("auto", {}, ["b.py"]),
        ("auto", {"deny": ("edit(b.py)",)}, []),
        ("auto", {"deny": ("try(b.py)",)}, []),
        ("default", {}, ["b.py"]),
        ("default", {"allow": ("edit", "shell")}, ["b.py", "../elsewhere.py", ".env"]),
        ("default", {"allow": ("edit(a.py)", "shell")}, []),
        ("plan", {}, []),
    ],
)
def test_of_the_files_that_a_search_can_do_without_those_as_free_as_the_others_are_left(
    judge: Judge, mode: str, rules: dict[str, tuple[str, ...]], left: list[str]
) -> None:
    permissions = judge.permissions(mode, **rules)
    names = ("b.py", ".git/c.py", "../elsewhere.py", ".env")
    more = tuple((judge.cwd / name).resolve() for name in names)
    own = judge.cwd.resolve() / "a.py"
    access = permissions.narrowed("try", Access(writes=(own,), more=more, runs="make test"))
    assert access.writes == (own, *((judge.cwd / name).resolve() for name in left)) and access.more == ()
    assert permissions.narrowed("edit", Access(writes=(own,))).writes == (own,)


def test_a_question_about_a_search_names_all_files(judge: Judge) -> None:
    writes = tuple((judge.cwd / name).resolve() for name in ("a.py", "b.py"))
    verdict = judge.permissions("default").judge("try", Access(writes=writes, runs="true"))
    assert verdict.action is Action.ASK and "it would write a.py; it would write b.py" in verdict.reason


@pytest.mark.parametrize("rule", ["try", "edit", "shell", "edit(a.py)", "shell(make:*)", "try(a.py)", "t*"])
def test_rules_for_either_part_deny_a_search(judge: Judge, rule: str) -> None:
    assert judge.trial("a.py", "make test", deny=(rule,), allow=("try",)) is Action.DENY


@pytest.mark.parametrize(
    ("allow", "action"),
    [
        (("try",), Action.ALLOW),
        (("edit(./**)", "shell(make:*)"), Action.ALLOW),
        (("edit", "shell"), Action.ALLOW),
        (("edit(./**)",), Action.ASK),
        (("shell(make:*)",), Action.ASK),
        (("try(a.py)",), Action.ASK),
        (("write", "read"), Action.ASK),
    ],
)
def test_both_parts_of_a_search_have_to_be_allowed(
    judge: Judge, allow: tuple[str, ...], action: Action
) -> None:
    assert judge.trial("a.py", "make test", "default", allow=allow) is action


# --- rules ------------------------------------------------------------------------------------------------


def test_deny_wins_over_allow_and_mode(judge: Judge) -> None:
    assert judge.write("src/a.py", deny=("edit(src/**)",), allow=("edit",)) is Action.DENY
    assert judge.write("lib/a.py", deny=("edit(src/**)",)) is Action.ALLOW
    assert judge.write("a.py", deny=("edit",)) is Action.DENY
    assert judge.read("a.py", deny=("edit",)) is Action.ALLOW
    assert judge.read("a.py", deny=("*",)) is Action.DENY


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "src/a.py", False),
        ("**/*.py", "src/deep/a.py", True),
        ("**/*.py", "a.py", True),
        ("src/*", "src/a", True),
        ("src/*", "src/a/b", False),
        ("src/**", "src/a/b", True),
        ("src:*", "src/a/b", True),
        ("a?c", "abc", True),
        ("a.c", "abc", False),
        ("./a", "a", True),
    ],
)
def test_path_patterns(judge: Judge, pattern: str, path: str, fits: bool) -> None:
    assert Rule.parse(f"edit({pattern})").fits_path(judge.cwd / path, judge.cwd) is fits


def test_relative_patterns_never_fit_outside(judge: Judge) -> None:
    outside = judge.root / "elsewhere" / "a.py"
    assert not Rule.parse("edit(*.py)").fits_path(outside, judge.cwd)
    assert Rule.parse(f"edit({judge.root}/elsewhere/*)").fits_path(outside, judge.cwd)


def test_allow_rules_for_commands_fit_whole_words(judge: Judge) -> None:
    allow = ("shell(npm test:*)", "shell(make)")
    assert judge.shell("npm test", "default", allow=allow) is Action.ALLOW
    assert judge.shell("npm   test --watch", "default", allow=allow) is Action.ALLOW
    assert judge.shell("npm tests", "default", allow=allow) is Action.ASK
    assert judge.shell("make", "default", allow=allow) is Action.ALLOW
    assert judge.shell("make install", "default", allow=allow) is Action.ASK


def test_an_allowed_command_opens_no_door_for_its_neighbours(judge: Judge) -> None:
    allow = ("shell(git log:*)", "shell(echo:*)")
    for tail in (
        "&& rm x",
        "; rm x",
        "| xargs rm",
        "$(rm x)",
        "`rm x`",
        "\nrm x",
        "& rm x",
        "|| rm x",
        "> x",
        "<(rm x)",
    ):
        assert judge.shell(f"git log {tail}", "default", allow=allow) is Action.ASK, tail
    assert judge.shell("git log && echo hi", "default", allow=allow) is Action.ALLOW


def test_a_denied_command_is_found_wherever_it_hides(judge: Judge) -> None:
    allow, deny = ("shell",), ("shell(terraform:*)",)
    for command in (
        "terraform apply",
        "ls; terraform apply",
        "true && (terraform apply)",
        "echo $(terraform apply)",
        "echo `terraform apply`",
        "bash -c 'terraform apply'",
        "env A=1 terraform apply",
        "echo x | xargs terraform apply",
        "find . -exec terraform apply \\;",
        "timeout 5 terraform apply",
        "if true; then terraform apply; fi",
        "f() { terraform apply; }; f",
        "nohup nice terraform apply &",
        "cat <<EOF\n$(terraform apply)\nEOF",
        "eval 'terraform apply'",
        "ls\nterraform apply",
    ):
        assert judge.shell(command, allow=allow, deny=deny) is Action.DENY, command
    assert judge.shell("echo terraform", allow=allow, deny=deny) is Action.ALLOW


@pytest.mark.parametrize("text", ["", "shell(", "(x)", "shell git", "shell(x) y", "a b(c)"])
def test_rules_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="permission rule"):
        Rule.parse(text)


def test_unknown_modes_are_refused(judge: Judge) -> None:
    with pytest.raises(ConfigError, match="accept-edits"):
        judge.permissions("yolo")


@pytest.mark.parametrize("path", [".git/hooks/x", ".k3agent/config.toml", ".github/workflows/x.yml"])
def test_what_is_protected_stays_so_for_a_subagent_below(judge: Judge, path: str) -> None:
    for folder in (judge.cwd / path).parents[: path.count("/")]:
        territory = Territory(
            cwd=folder, extra_dirs=(), home=judge.root / "data", environ={}, readable=(), walls=(judge.cwd,)
        )
        permissions = Permissions(mode="auto", allow=(), deny=(), territory=territory)
        assert permissions.judge("write", Access(writes=(judge.cwd / path,))).action is Action.DENY


def test_links_out_of_the_workspace_are_outside(judge: Judge) -> None:
    (judge.cwd / "door").symlink_to(judge.root)
    assert judge.shell("echo x > door/y") is Action.ASK
    assert judge.shell("rm -rf door/ws") is Action.ASK


def test_connections_are_asked_about_and_can_be_allowed(judge: Judge) -> None:
    access = Access(connects=("docs.python.org",))
    assert judge.permissions("auto").judge("fetch", access).action is Action.ASK
    allowed = judge.permissions("auto", allow=("fetch(*.python.org)",))
    assert allowed.judge("fetch", access).action is Action.ALLOW
    assert allowed.judge("fetch", Access(connects=("evil.org",))).action is Action.ASK


def test_what_touches_nothing_is_allowed(judge: Judge) -> None:
    assert judge.permissions("plan").judge("todo", Access()).action is Action.ALLOW


@pytest.mark.parametrize(
    "name", [".envrc", ".github/workflows/new.yml", ".VSCode/tasks.json", ".gitlab-ci.yml"]
)
def test_what_runs_later_is_asked_about_unless_a_rule_allows_it(judge: Judge, name: str) -> None:
    for mode in ("default", "accept-edits", "auto"):
        assert judge.write(name, mode) is Action.ASK
        assert judge.write(name, mode, allow=("edit(.*/**)", "edit(.*)")) is Action.ALLOW
    assert judge.write(name, "plan") is Action.DENY
    assert judge.shell(f"echo x > {name}") is Action.ASK
    assert judge.write(f"src/{name}") is Action.ALLOW


@pytest.mark.parametrize("mode", ["plan", "default", "accept-edits", "auto"])
def test_foreign_tools_ask_in_every_mode_unless_a_rule_for_their_name_says_more(
    judge: Judge, mode: str
) -> None:
    access = Access(calls="mcp__git__git_push")

    def verdict(tool: str, **rules: tuple[str, ...]) -> Action:
        allow, deny = rules.get("allow", ()), rules.get("deny", ())
        return judge.permissions(mode, allow, deny).judge(tool, access).action

    for tool in ("mcp", "mcp__git__git_push"):
        assert verdict(tool) is Action.ASK
        assert verdict(tool, allow=("mcp__git__*",)) is Action.ALLOW
        assert verdict(tool, allow=("mcp__git__git_push",)) is Action.ALLOW
        assert verdict(tool, allow=("mcp__git__git_status", "mcp__other__*", "mcp")) is Action.ASK
        assert verdict(tool, allow=("mcp__git__*",), deny=("mcp__git__*_push",)) is Action.DENY
        assert rules_for(tool, access, judge.cwd) == ("mcp__git__git_push",)


@pytest.mark.parametrize(
    "mode, here, everywhere",
    [
        ("plan", Action.DENY, Action.DENY),
        ("default", Action.ASK, Action.ASK),
        ("accept-edits", Action.ALLOW, Action.ASK),
        ("auto", Action.ALLOW, Action.ASK),
    ],
)
def test_what_later_sessions_are_told(judge: Judge, mode: str, here: Action, everywhere: Action) -> None:
    for where, action in (("here", here), ("everywhere", everywhere)):
        for allow, deny, expected in (
            ((), (), action),
            (("memory",), (), Action.ALLOW),
            (("memory",), ("memory",), Action.DENY),
        ):
            verdict = judge.permissions(mode, allow, deny).judge("memory", Access(keeps=where))
            assert verdict.action is expected, (where, allow, deny)
