"""`try`: one change after which a real command succeeds, or the file as it was."""

import asyncio
import os
import stat
import sys
import time
from pathlib import Path

import pytest

from k3agent.errors import ToolError
from k3agent.tools import trial
from k3agent.tools.support import originals, processes, textio
from k3agent.tools.support.freshness import digest
from k3agent.tools.support.mutation import Change
from k3agent.tools.trial import TrialArgs, TrialTool

ADD = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
# Python alone would look for modules beside the script only where this is not set.
PYTHON = f"env -u PYTHONSAFEPATH {sys.executable}"
PYTEST = f"env -u PYTHONSAFEPATH PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 {sys.executable} -m pytest -q"
TEST = f"{PYTHON} -c 'import a; assert a.add(1, 2) == 3'"
# Both say how often they ran.
NEVER = "echo run >> runs; exit 1"
ORDERED = [Change(2, "return a - b", f"return a {sign} b") for sign in ("*", "/", "%", "+")]


@pytest.fixture(autouse=True)
async def nothing_remains(ctx):
    yield
    await ctx.jobs.aclose()
    background = [job.output for job in ctx.jobs.background.values()]
    assert [path for path in ctx.output_dir.glob("*") if path not in background] == []


@pytest.fixture
def ordered(monkeypatch):
    """The changes that are tried, whatever is thought likely."""
    monkeypatch.setattr(TrialTool, "_variants", lambda self, view, line: ORDERED)


def runs(ctx) -> int:
    path = ctx.cwd / "runs"
    return path.read_text().count("run") if path.exists() else 0


# --- what it finds ----------------------------------------------------------------------------------------


async def test_a_change_that_helps_is_kept_and_shown(ctx, call):
    path = ctx.cwd / "a.py"
    path.write_text(f"{ADD}\n\nx = 1\n")
    path.chmod(0o640)
    output = await call.output("try", path="a.py", line=1, command=TEST)
    head, _, rest = output.text.partition("\n")
    assert head.startswith("Tried ") and head.endswith(" changes. After this one the command succeeds:")
    diff = "@@ line 1 @@\n def add(a, b):\n-    return a - b\n+    return a + b\n "
    assert rest == f"{diff}\n[exit code 0]"
    assert output.data == {"diff": diff, "added": 1, "removed": 1, "exit_code": 0}
    assert output.files == ("a.py",) and path.read_text() == f"{FIXED}\n\nx = 1\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    # What it has written it knows.
    await call("edit", path="a.py", old="x = 1", new="x = 2")


async def test_the_first_that_helps_is_the_last_that_is_tried(ctx, call, ordered):
    (ctx.cwd / "a.py").write_text(ADD)
    text = await call("try", path="a.py", line=2, command=f"echo run >> runs; {TEST}")
    assert text.startswith("Tried 4 of 4 changes. After this one") and runs(ctx) == 5
    (ctx.cwd / "a.py").write_text(ADD)
    ctx.freshness.seen.clear()
    text = await call("try", path="a.py", line=2, command="echo run >> runs; grep -q '%' a.py")
    assert text.startswith("Tried 3 of 4 changes. After this one") and runs(ctx) == 9


async def test_one_change_is_told_as_one(ctx, call, monkeypatch):
    monkeypatch.setattr(TrialTool, "_variants", lambda self, view, line: ORDERED[:1])
    (ctx.cwd / "a.py").write_text(ADD)
    text = await call("try", path="a.py", line=2, command="grep -q '*' a.py")
    assert text.startswith("Tried 1 of 1 change. After this one the command succeeds:\n@@ line 1 @@\n")
    (ctx.cwd / "b.py").write_text(ADD)
    text = await call("try", path="b.py", line=2, command="exit 3")
    assert text == "Tried 1 change: the command fails after each. b.py is as it was.\n[exit code 3]"


FORMS = {
    "plain": ADD.encode(),
    "no line end": ADD.encode().rstrip(b"\n"),
    "CRLF": ADD.replace("\n", "\r\n").encode(),
    "mixed": b"x = 1\r" + ADD.encode() + b"y = 2\r\n",
    "BOM": b"\xef\xbb\xbf" + ADD.encode(),
    "latin-1": b"# -*- coding: latin-1 -*- caf\xe9\n" + ADD.encode(),
    "tabs and blanks": ADD.replace("    return a - b", "\treturn a - b  ").encode(),
}


@pytest.mark.parametrize("form", FORMS)
async def test_nothing_but_the_change_is_changed(ctx, call, monkeypatch, form):
    path, data = ctx.cwd / "a.py", FORMS[form]
    line = textio.decode(data, "a.py").view.split("return")[0].count("\n") + 1
    changes = [Change(line, "return a - b", f"return a {sign} b") for sign in "*+"]
    monkeypatch.setattr(TrialTool, "_variants", lambda self, view, line: changes)
    path.write_bytes(data)
    path.chmod(0o751)
    text = await call("try", path="a.py", line=line, command=NEVER)
    assert text == "Tried 2 changes: the command fails after each. a.py is as it was.\n[exit code 1]"
    assert path.read_bytes() == data and stat.S_IMODE(path.stat().st_mode) == 0o751
    assert runs(ctx) == 3
    await call("try", path="a.py", line=line, command="grep -q 'a + b' a.py")
    assert path.read_bytes() == data.replace(b"a - b", b"a + b")


async def test_what_does_not_parse_is_not_run(ctx, call, monkeypatch):
    changes = [Change(2, "return a - b", new) for new in ("return a - (b", "return b - a", "return a - b")]
    monkeypatch.setattr(TrialTool, "_variants", lambda self, view, line: changes)
    (ctx.cwd / "a.py").write_text(ADD)
    text = await call("try", path="a.py", line=2, command=NEVER)
    assert text.startswith("Tried 1 change: ") and runs(ctx) == 2
    monkeypatch.setattr(TrialTool, "_variants", lambda self, view, line: changes[:1])
    error = await call.error("try", path="a.py", line=2, command=NEVER)
    assert error == "there is nothing to try at line 2 of a.py. Change it with edit." and runs(ctx) == 2


async def test_long_files_are_looked_through_elsewhere(ctx, call, ordered):
    text = ADD + "# a comment that makes it long\n" * 2000
    (ctx.cwd / "a.py").write_text(text)
    await call("try", path="a.py", line=2, command=TEST)
    assert (ctx.cwd / "a.py").read_text() == text.replace("a - b", "a + b")


async def test_tests_that_are_not_found_any_more_have_not_passed(ctx, call, monkeypatch):
    changes = [Change(1, "def test_a():", new) for new in ("def tests():", "def test_a(x=1):")]
    monkeypatch.setattr(TrialTool, "_variants", lambda self, view, line: changes)
    (ctx.cwd / "a.py").write_text("def test_a():\n    assert False\n")
    said = "echo 'Ran 0 tests in 0.000s'; grep -q tests a.py # test"
    text = await call("try", path="a.py", line=1, command=f"grep -q tests a.py || exit 1; {said}")
    assert text == "Tried 2 changes: the command fails after each. a.py is as it was.\n[exit code 1]"


# --- bytecode ---------------------------------------------------------------------------------------------


async def test_no_state_of_the_file_is_taken_for_another(ctx, call, ordered):
    """Python knows them by the second of the change and by the size; none of these differ in size."""
    path = ctx.cwd / "a.py"
    path.write_text(ADD)
    states = [path.stat()]
    seen = ctx.cwd / "seen"
    await call("try", path="a.py", line=2, command=f"stat -c '%Y %s' a.py >> {seen}; exit 1")
    states.append(path.stat())
    told = [tuple(map(int, line.split())) for line in seen.read_text().splitlines()]
    assert told[0] == (int(states[0].st_mtime), states[0].st_size)
    everything = [*told, (int(states[1].st_mtime), states[1].st_size)]
    assert len(everything) == 6 and len(set(everything)) == 6 and len({size for _, size in told}) == 1


async def test_bytecode_of_one_change_is_not_used_for_the_next(ctx, call, ordered):
    (ctx.cwd / "a.py").write_text(ADD)
    # Also where a command writes it all the same.
    text = await call("try", path="a.py", line=2, command=f"env -u PYTHONDONTWRITEBYTECODE {TEST}")
    assert text.startswith("Tried 4 of 4 changes. After this one")
    assert list((ctx.cwd / "__pycache__").glob("a.*.pyc"))


async def test_commands_leave_no_bytecode(ctx, call, ordered):
    (ctx.cwd / "a.py").write_text(ADD)
    await call("try", path="a.py", line=2, command=TEST)
    assert not (ctx.cwd / "__pycache__").exists()


# --- what cannot be tried ---------------------------------------------------------------------------------


async def test_places(ctx, call):
    (ctx.cwd / "a.py").write_text(ADD)
    (ctx.cwd / "b.bin").write_bytes(b"\0\1")
    (ctx.cwd / "big.py").write_text("x = 1\n" * 200_000)

    async def error(path, line=1):
        return await call.error("try", path=path, line=line, command=NEVER)

    assert await error("aa.py") == "aa.py does not exist. Similar: a.py"
    assert await error(".") == ". is a folder. Name a file in it."
    assert await error("b.bin") == "b.bin is a binary file."
    assert await error("big.py") == "big.py is too large to try changes in it (1.2 MB). Use edit."
    assert await error("a.py", 3) == (
        "a.py has 2 lines, so none is 3. Name a line of the function that is wrong."
    )
    os.mkfifo(ctx.cwd / "pipe")
    assert "is a fifo" in await error("pipe")
    assert runs(ctx) == 0


TEST_FILES = (
    "test_a.py", "a_test.py", "tests.py", "conftest.py", "a.test.js", "a.spec.ts", "a.test.mjs", "a.spec.tsx",
    "a_test.go", "a_spec.rb", "ATest.java", "a.bats",
)  # fmt: skip


@pytest.mark.parametrize("name", TEST_FILES)
async def test_tests_are_not_changed(ctx, call, ordered, name):
    (ctx.cwd / name).write_text(ADD)
    (ctx.cwd / "link.py").symlink_to(name)
    error = await call.error("try", path=name, line=2, command=NEVER)
    assert error == f"{name} is a test file, which is not changed here: give the code that it tests."
    assert "is a test file" in await call.error("try", path="link.py", line=2, command=NEVER)
    assert (ctx.cwd / name).read_text() == ADD and runs(ctx) == 0


@pytest.mark.parametrize("name", ["testing.py", "latest.py", "contest.py", "a.inspect.js", "Attest.go"])
async def test_what_is_only_named_like_a_test_is_changed(ctx, call, ordered, name):
    (ctx.cwd / name).write_text(ADD)
    assert "Tried 4 changes" in await call("try", path=name, line=2, command=NEVER)


async def test_two_sessions_do_not_take_the_change_of_the_other_for_the_file(ctx, call, ordered):
    path = ctx.cwd / "a.py"
    path.write_text(ADD)
    with originals.alone(path, "a.py"):
        error = await call.error("try", path="a.py", line=2, command=NEVER)
    assert error == (
        "another session is trying changes in the folder of a.py. Wait until it has ended, or use edit."
    )
    assert path.read_text() == ADD and runs(ctx) == 0
    # A process that was forked meanwhile and lives on holds nothing.
    begin, end = os.pipe()
    with originals.alone(path, "a.py"):
        child = os.fork()
        if not child:
            os.close(end)
            os.read(begin, 1)
            os._exit(0)
    try:
        assert "Tried 4 of 4" in await call("try", path="a.py", line=2, command=TEST)
    finally:
        os.close(begin)
        os.close(end)
        os.waitpid(child, 0)  # noqa: ASYNC222 - it ends at once


async def test_a_change_that_cannot_be_put_back_is_not_taken_for_the_file(ctx, call, ordered, monkeypatch):
    path = ctx.cwd / "a.py"
    left = ADD.replace("-", "*").encode()
    originals.keep(ctx.output_dir, path, ADD.encode(), 0o640, [digest(left)])
    path.write_bytes(left)

    def fail(*args):
        raise ToolError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(textio, "write_atomic", fail)
        error = await call.error("try", path="a.py", line=2, command=NEVER)
    assert error.startswith("a.py may hold a change that an earlier call tried, and cannot be put back.")
    assert originals.bring_back(ctx.output_dir, path) == "back" and path.read_text() == ADD


async def test_a_file_that_changed_since_it_was_read(ctx, call):
    (ctx.cwd / "a.py").write_text(ADD)
    await call("read", path="a.py")
    (ctx.cwd / "a.py").write_text(f"{ADD}x = 1\n")
    error = await call.error("try", path="a.py", line=2, command=NEVER)
    assert error == "a.py changed since it was read. Read it again." and runs(ctx) == 0


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("true", "the command succeeds as it is: nothing to try."),
        ("no-such-program x", "the command cannot run: give one that does (exit code 127)."),
        ("./a.py", "the command cannot run: give one that does (exit code 126)."),
        (f"{PYTHON} no.py", "the command cannot run: give one that does (exit code 2)."),
        (f"{PYTHON} -m no_such_module", "the command cannot run: give one that does (exit code 1)."),
        ("pytest -q no.py", "the command runs no tests: give one that does (exit code 4)."),
        ("pytest -q a.py::no", "the command runs no tests: give one that does (exit code 4)."),
        ("pytest -q --no-such-option", "the command runs no tests: give one that does (exit code 4)."),
        ("pytest -q a.py -k nothing", "the command runs no tests: give one that does (exit code 5)."),
    ],
)
async def test_commands_that_tell_nothing(ctx, call, ordered, command, problem):
    (ctx.cwd / "a.py").write_text(ADD)
    if command.startswith("pytest"):
        command = command.replace("pytest -q", f"{PYTEST} -p no:cacheprovider")
    error = await call.error("try", path="a.py", line=2, command=command)
    assert error.split("\n")[0] == problem
    assert command == "true" or error.count("\n") > 0, "what it printed is told"
    assert (ctx.cwd / "a.py").read_text() == ADD


@pytest.mark.parametrize("named", ["test_it.py", "test_it.py::test_add"])
async def test_a_bug_that_breaks_the_import_of_a_test_can_be_mended(ctx, call, ordered, named):
    (ctx.cwd / "a.py").write_text(f"{ADD}\n\nassert add(1, 2) == 3\n")
    (ctx.cwd / "test_it.py").write_text("import a\n\n\ndef test_add():\n    assert a.add(2, 2) == 4\n")
    command = f"{PYTEST} -p no:cacheprovider {named}"
    assert "Tried 4 of 4" in await call("try", path="a.py", line=2, command=command)


async def test_a_command_that_does_not_end(ctx, call, ordered, monkeypatch):
    monkeypatch.setattr(trial, "FIRST_S", 0.3)
    (ctx.cwd / "a.py").write_text(ADD)
    error = await call.error("try", path="a.py", line=2, command="echo on; sleep 600")
    assert error == (
        "the command does not end by itself. Give a quicker test.\non\n[timed out after 0.3 s; killed]"
    )
    assert (ctx.cwd / "a.py").read_text() == ADD


# --- how long it takes ------------------------------------------------------------------------------------


async def test_a_change_that_loops_for_ever_is_ended(ctx, call, ordered, monkeypatch):
    monkeypatch.setattr(trial, "LEAST_S", 0.3)
    monkeypatch.setattr(trial, "EXTRA_S", 0.3)
    (ctx.cwd / "a.py").write_text(ADD)
    start = time.monotonic()
    command = "if grep -q '[*/]' a.py; then sleep 600; fi; grep -q '+' a.py"
    assert "Tried 4 of 4 changes." in await call("try", path="a.py", line=2, command=command)
    assert time.monotonic() - start < 60


class Alone(TrialTool):
    """Without an event loop: the command is a function of the file, a run takes a given time."""

    def __init__(self, path: Path, takes_s: float = 1.0) -> None:
        self.path, self.takes_s, self.now, self.limits = path, takes_s, 0.0, []

    def _variants(self, view, line):
        return ORDERED

    def _now(self):
        return self.now

    async def _code(self, command, limit_s, ctx):
        self.now += min(self.takes_s, limit_s)
        self.limits.append(limit_s)
        return (0 if command in self.path.read_text() else 2), ""


def alone(tool, ctx, command):
    args = TrialArgs(path="a.py", line=2, command=command)
    with pytest.raises(StopIteration) as ended:
        tool.run(args, ctx).send(None)
    return ended.value.value.text


def test_it_needs_no_event_loop_but_for_the_command(ctx):
    path = ctx.cwd / "a.py"
    path.write_text(ADD)
    tool = Alone(path)
    text = alone(tool, ctx, "a ^ b")
    assert text == "Tried 4 changes: the command fails after each. a.py is as it was.\n[exit code 2]"
    assert tool.limits == [60, 10, 10, 10, 10] and path.read_text() == ADD
    assert alone(Alone(path), ctx, "a % b").startswith("Tried 3 of 4 changes. After this one")


def test_the_time_for_all_of_it_is_limited(ctx):
    path = ctx.cwd / "a.py"
    path.write_text(ADD)
    tool = Alone(path, takes_s=50)
    told = []
    ctx.emit = told.append
    text = alone(tool, ctx, "a + b")
    assert text == (
        "Tried 3 of 4 changes in 180 s: the command fails after each. a.py is as it was.\n[exit code 2]"
    )
    assert tool.limits == [60, 130, 80, 30] and path.read_text() == ADD
    assert told == ["1 of 4 changes tried\n", "2 of 4 changes tried\n"]


# --- whatever happens -------------------------------------------------------------------------------------


async def until(path: Path) -> None:
    async with asyncio.timeout(60):
        while not path.exists():  # noqa: ASYNC110, ASYNC240 - a file has no event
            await asyncio.sleep(0.02)


async def test_a_call_that_is_cancelled(ctx, call, ordered):
    path, begun = ctx.cwd / "a.py", ctx.cwd / "begun"
    path.write_text(ADD)
    command = f"grep -q 'a - b' a.py && exit 1; touch {begun}; sleep 600"
    task = asyncio.create_task(call("try", path="a.py", line=2, command=command))
    await until(begun)
    assert path.read_text() != ADD and list(ctx.output_dir.glob("*.original"))
    session = ctx.jobs._log.records[0].session
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert path.read_text() == ADD and not processes.members(session)


async def test_a_failure_in_the_middle(ctx, call, ordered, monkeypatch):
    (ctx.cwd / "a.py").write_text(ADD)
    start = trial.commands.start

    async def no_more(command, ctx):
        if "a - b" not in (ctx.cwd / "a.py").read_text():
            raise RuntimeError("nothing can be started")
        return await start(command, ctx)

    monkeypatch.setattr(trial.commands, "start", no_more)
    with pytest.raises(RuntimeError):
        await call("try", path="a.py", line=2, command=NEVER)
    assert (ctx.cwd / "a.py").read_text() == ADD


@pytest.mark.parametrize("harm", ["rm a.py", "echo x > a.py", "chmod 600 a.py", "mv a.py b.py"])
async def test_what_the_command_does_to_the_file_is_put_back(ctx, call, ordered, harm):
    path = ctx.cwd / "a.py"
    path.write_text(ADD)
    path.chmod(0o644)
    text = await call("try", path="a.py", line=2, command=f"grep -q 'a - b' a.py || {harm}; exit 1")
    assert text.startswith("Tried 4 changes: ") and path.read_text() == ADD
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


async def test_what_the_command_makes_of_the_change_is_what_is_known(ctx, call, ordered):
    (ctx.cwd / "a.py").write_text(ADD)
    command = "grep -q '+' a.py || exit 1; echo 'x = 1' >> a.py"
    text = await call("try", path="a.py", line=2, command=command)
    assert text.endswith("-    return a - b\n+    return a + b\n+x = 1\n[exit code 0]")
    await call("edit", path="a.py", old="x = 1", new="x = 2")


async def test_a_file_that_cannot_be_put_back(ctx, call, ordered):
    path = ctx.cwd / "a.py"
    path.write_text(ADD)
    command = "test -f a.py && grep -q 'a - b' a.py || { rm a.py; mkdir a.py; }; exit 1"
    error = await call.error("try", path="a.py", line=2, command=command)
    assert error == (
        "a.py may hold a change that was tried, and cannot be put back: a.py is a folder and cannot be "
        "written. Tell the user: k3agent undo brings it back."
    )
    copy = originals.copy_of(ctx.output_dir, path)
    assert copy.exists()
    copy.unlink()


async def test_processes_of_a_command_end_with_it_and_no_others(ctx, call, ordered):
    (ctx.cwd / "a.py").write_text(ADD)
    await call("shell", command="sleep 600", background=True)
    job = ctx.jobs.background["j1"]
    text = await call("try", path="a.py", line=2, command="sleep 601 & exit 1")
    assert text.startswith("Tried 4 changes: ")
    assert [record.session for record in ctx.jobs._log.records] == [job.session]
    assert job.status.startswith("running")


async def test_what_a_killed_call_left_is_put_back_by_the_next(ctx, call, ordered):
    path = ctx.cwd / "a.py"
    left = ADD.replace("-", "*").encode()
    originals.keep(ctx.output_dir, path, ADD.encode(), 0o640, [digest(left)])
    path.write_bytes(left)
    assert "Tried 4 of 4" in await call("try", path="a.py", line=2, command=TEST)
    assert path.read_text() == FIXED and stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize(
    ("content", "outcome", "after"),
    [("x = 2\n", "back", "x = 1\n"), ("x = 1\n", "same", "x = 1\n"), ("x = 9\n", "other", "x = 9\n")],
)
def test_only_a_change_that_was_tried_is_written_over(tmp_path, content, outcome, after):
    path, folder = tmp_path / "a.py", tmp_path / "out"
    path.write_text(content)
    assert originals.bring_back(folder, path) == "none"
    originals.keep(folder, path, b"x = 1\n", 0o600, [digest(b"x = 2\n")])
    assert originals.bring_back(folder, path) == outcome
    assert path.read_text() == after and originals.bring_back(folder, path) == "none"


def test_a_damaged_copy_is_no_copy(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("x = 1\n")
    originals.copy_of(tmp_path, path).write_text("{}")
    assert originals.bring_back(tmp_path, path) == "none"


# --- what it would touch ----------------------------------------------------------------------------------


async def test_a_link_stays_and_what_it_leads_to_is_changed(ctx, call, ordered, tmp_path):
    (ctx.cwd / "real.py").write_text(ADD)
    (ctx.cwd / "a.py").symlink_to("real.py")
    assert "Tried 4 of 4" in await call("try", path="a.py", line=2, command=TEST)
    assert (ctx.cwd / "a.py").is_symlink() and (ctx.cwd / "real.py").read_text() == FIXED
    outside = tmp_path.resolve() / "outside.py"
    (ctx.cwd / "out.py").symlink_to(outside)
    args = TrialArgs(path="out.py", line=2, command="make test")
    access = TrialTool().access(args, ctx)
    assert (access.writes, access.runs) == ((outside,), "make test")


def test_it_is_told_on_one_line():
    args = TrialArgs(path="shop/a.py", line=12, command="python -m pytest -q")
    assert TrialTool().describe(args) == "try changes at shop/a.py:12 until: python -m pytest -q"
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        TrialArgs(path="a.py", line=0, command="x")
    with pytest.raises(ValueError, match="at least 1 character"):
        TrialArgs(path="a.py", line=1, command="")


def test_a_change_in_harmful_code_is_refused(ctx):
    (ctx.cwd / "a.py").write_text("import os\n\n\ndef f(a):\n    os.remove(a)\n")
    args = TrialArgs(path="a.py", line=5, command="exit 1")
    with pytest.raises(ToolError, match=r"os\.remove"):
        TrialTool().run(args, ctx).send(None)
