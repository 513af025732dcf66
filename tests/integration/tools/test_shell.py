"""`shell` and `jobs` with real processes."""

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from k3agent.tools import jobs as jobs_module
from k3agent.tools.jobs import JobTable, reap_orphans
from k3agent.tools.sandbox.none import NoSandbox
from k3agent.tools.support import processes, truncate


@pytest.fixture(autouse=True)
async def nothing_remains(ctx):
    yield
    await ctx.jobs.aclose()


def living(session: int) -> list[int]:
    return [info.pid for info in processes.members(session)]


async def test_format(ctx, call):
    assert await call("shell", command="echo out; echo err >&2; exit 3") == "out\nerr\n[exit code 3]"
    assert await call("shell", command="true") == "[exit code 0]"
    assert await call("shell", command="printf 'x \n\n'") == "x\n[exit code 0]"
    assert await call("shell", command="kill -SEGV $$") == "[exit code 139]"
    assert await call("shell", command="pwd") == f"{ctx.cwd}\n[exit code 0]"


async def test_a_run_without_tests_is_marked(ctx, call):
    said = "printf '%s\\n' 'Ran 0 tests in 0.000s' '' OK"
    assert (await call("shell", command=f"{said} # test")).endswith("\nOK\n[no tests ran]\n[exit code 0]")
    # Where the exit code tells it already nothing is added.
    assert "[no tests" not in await call("shell", command=f"{said}; exit 5 # test")
    (ctx.cwd / "test_a.py").write_text("def test_a(): pass\n")
    text = await call("shell", command=f"{sys.executable} -m unittest")
    code = 5 if sys.version_info >= (3, 12) else 0
    assert text.endswith(f"[exit code {code}]") and ("[no tests ran]" in text) == (code == 0)


async def test_r29_a_process_left_behind_does_not_hold_the_call(ctx, call):
    start = time.monotonic()
    assert await call("shell", command="sleep 600 & echo hi") == "hi\n[exit code 0]"
    assert time.monotonic() - start < 300
    session = ctx.jobs._log.records[0].session
    assert living(session)
    await ctx.jobs.aclose()
    assert not living(session)


def is_running(pid: int) -> bool:
    info = processes.process_info(pid)
    return info is not None and info.state not in "ZX"


@pytest.mark.parametrize("timeout_s", [5, 1])
async def test_what_left_its_session_ends_with_the_agent_or_the_limit(ctx, call, timeout_s):
    tail = "sleep 600" if timeout_s == 1 else "sleep 0.3"
    await call("shell", command=f"setsid sh -c 'echo $$ > pid; exec sleep 600' & {tail}", timeout_s=timeout_s)
    pid = int((ctx.cwd / "pid").read_text())
    assert is_running(pid) == (timeout_s == 5)
    await ctx.jobs.aclose()
    assert not is_running(pid)


async def test_r29_what_is_left_behind_goes_on_writing(ctx, call):
    """A server whose output pipe closes would die at its next line."""
    await call(
        "shell", command="(for i in 1 2 3 4 5 6; do sleep 0.1; echo tick; done; touch alive) & echo hi"
    )
    for _ in range(50):
        if (ctx.cwd / "alive").exists():
            return
        await asyncio.sleep(0.1)
    pytest.fail("the process left behind ended early")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "command",
    [
        "git -c user.name=a -c user.email=a@b commit --allow-empty",
        "ssh -o ConnectTimeout=3 -p 9 nobody@127.0.0.1",
        "sudo -k true",
        "passwd",
        "git ls-remote https://127.0.0.1:9/x.git",
        "read -r line && echo got $line",
        "cat < /dev/tty",
        "python3 -c 'input()'",
    ],
)
async def test_r30_whatever_asks_fails_at_once(ctx, call, command):
    await call("shell", command="git init -q .")
    text = await call("shell", command=command, timeout_s=100)
    assert "[exit code 0]" not in text and "timed out" not in text


async def test_r30_prepared_messages_are_kept(ctx, call):
    """A rebase goes on with the message that is there, without an editor."""
    name = "git -c user.name=a -c user.email=a@b"
    script = f"""git init -q -b main . && echo 1 > f && git add f && {name} commit -qm one &&
    git checkout -q -b side && echo 2 > f && {name} commit -qam two && git checkout -q main &&
    echo 3 > f && {name} commit -qam three && git checkout -q side; {name} rebase main;
    echo 4 > f && git add f && {name} rebase --continue && git log --format=%s -1"""
    assert (await call("shell", command=script)).endswith("two\n[exit code 0]")


async def test_r30_no_controlling_terminal(call):
    code = "import os; print(os.getsid(0) == os.getpid() or os.getsid(0)); os.open('/dev/tty', os.O_RDWR)"
    text = await call("shell", command=f'exec {sys.executable} -c "{code}"')
    assert text.startswith("True\n") and "No such device or address" in text


async def test_r31_no_pager_and_no_shared_shell(ctx, call):
    (ctx.cwd / "long.txt").write_text("line\n" * 300)
    await call("shell", command="git init -q . && git add . && cd / && X=1")
    text = await call(
        "shell", command="git -c core.pager=less diff --cached; echo $PAGER $GIT_PAGER $MANPAGER"
    )
    assert text.count("+line") == 300 and text.endswith("cat cat cat\n[exit code 0]")
    assert await call("shell", command="pwd; echo $X") == f"{ctx.cwd}\n[exit code 0]"


async def test_timeout_kills_the_whole_group(ctx, call):
    start = time.monotonic()
    text = await call("shell", command="sleep 601 & (sleep 602 & sleep 603) ; wait", timeout_s=1)
    assert text == "[timed out after 1 s; killed]"
    assert time.monotonic() - start < 300
    assert not ctx.jobs._log.records
    assert await call("shell", command="pgrep -x sleep -a | grep 'sleep 60[123]'") == "[exit code 1]"


async def test_timeout_ends_what_ignores_the_signal_and_keeps_the_output(call):
    text = await call("shell", command="trap '' TERM; echo begun; while :; do sleep 0.1; done", timeout_s=1)
    assert text == "begun\n[timed out after 1 s; killed]"


async def test_cancelling_kills_the_whole_group(ctx, call):
    task = asyncio.create_task(call("shell", command="sleep 611 & sleep 612"))
    await asyncio.sleep(0.3)
    session = ctx.jobs._log.records[0].session
    assert len(living(session)) >= 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not living(session)


async def test_no_zombies(ctx, call):
    for _ in range(5):
        await call("shell", command="true")
    text = await call("shell", command=f"ps -o stat= --ppid {os.getpid()}")
    assert "Z" not in text and "[exit code 0]" in text


async def test_background_job(ctx, call):
    assert await call("shell", command="echo begun; sleep 620", background=True) == "[job j1 started]"
    await asyncio.sleep(0.2)
    assert (await call("jobs", action="list")).startswith("j1 running 0 s: echo begun")
    assert await call("jobs", action="output", job="j1") == "begun\n[job j1 running 0 s]"
    assert await call("jobs", action="kill", job="j1") == "Killed job j1."
    assert not living(ctx.jobs.background["j1"].session)
    assert await call("jobs", action="output", job="j1") == "begun\n[job j1 killed]"
    assert await call("jobs", action="kill", job="j1") == "Job j1 had ended already: killed."
    assert await call.error("jobs", action="kill", job="j7") == "There is no job j7. Jobs: j1."
    assert await call.error("jobs", action="output") == "Pass job. Jobs: j1."


async def test_job_that_ends_is_reported(ctx, call):
    await call("shell", command="exit 4", background=True)
    await asyncio.sleep(0.3)
    assert ctx.jobs.take_notices() == ["Job j1 has ended: exit code 4."]
    assert ctx.jobs.take_notices() == []
    assert await call("jobs", action="output", job="j1") == "[job j1 exit code 4]"


async def test_r32_background_input_is_empty(ctx, call):
    await call("shell", command="cat; echo over", background=True)
    await asyncio.sleep(0.3)
    assert await call("jobs", action="output", job="j1") == "over\n[job j1 exit code 0]"


async def test_r32_stalled_job_is_flagged(ctx, call):
    ctx.jobs = JobTable(ctx.output_dir, stall_s=0.5, sample_s=0.1)
    await call("shell", command="sleep 630", background=True)
    await call("shell", command="while :; do echo x; sleep 0.1; done", background=True)
    await call("shell", command="while :; do :; done", background=True)
    await asyncio.sleep(1.5)
    rows = (await call("jobs", action="list")).split("\n")
    assert rows[0] == "j1 running 1 s, stalled: no output and no CPU use for 1 s: sleep 630"
    assert "stalled" not in rows[1] and "stalled" not in rows[2]
    (notice,) = ctx.jobs.take_notices()
    assert notice.startswith("Job j1 is stalled")


AGENT = """
import asyncio, os, sys
from pathlib import Path
from k3agent.tools.jobs import JobTable
from k3agent.tools.support import processes

async def main():
    table = JobTable(Path(sys.argv[1]))
    for command in ("sleep 641 & sleep 642", "sleep 643 & echo done"):
        job = await table.start(processes.shell_argv(command), command, Path("/"), dict(os.environ))
        if "done" not in command:
            table.keep(job)
        else:
            await job.process.wait()
            table.finish(job)
        print(job.session, flush=True)
    if sys.argv[2] == "exit":
        await table.aclose()
    elif sys.argv[2] == "now":
        table.close_now()
    else:
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("way", ["exit", "now"])
def test_r33_nothing_survives_the_end_of_the_agent(tmp_path, way):
    done = subprocess.run(
        [sys.executable, "-c", AGENT, str(tmp_path), way], stdout=subprocess.PIPE, timeout=20
    )
    sessions = [int(line) for line in done.stdout.split()]
    assert len(sessions) == 2
    assert not any(living(session) for session in sessions)
    assert not list(tmp_path.glob("processes-*"))


def test_r33_orphans_of_a_killed_agent_end_at_the_next_start(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", AGENT, str(tmp_path), "wait"], stdout=subprocess.PIPE
    ) as agent:
        assert agent.stdout is not None
        sessions = [int(agent.stdout.readline()) for _ in range(2)]
        assert reap_orphans(tmp_path) == []  # its owner lives
        assert all(living(session) for session in sessions)
        agent.send_signal(signal.SIGKILL)
    assert all(living(session) for session in sessions)
    found = reap_orphans(tmp_path)
    assert [orphan.command for orphan in found] == ["sleep 641 & sleep 642", "sleep 643 & echo done"]
    assert all(orphan.was_running for orphan in found)
    assert not any(living(session) for session in sessions)
    assert reap_orphans(tmp_path) == []


def test_r33_a_reused_number_is_not_killed(tmp_path):
    """The noted session id now belongs to somebody else: neither start time nor mark fit."""
    with subprocess.Popen(["sleep", "650"], start_new_session=True) as other:
        log = processes.SessionLog(tmp_path)
        log._owner["pid"] = 999_999_999
        log._records[other.pid] = processes.SessionRecord(other.pid, 1, "0123456789abcdef", "sleep 650")
        log._save()
        assert [orphan.was_running for orphan in reap_orphans(tmp_path)] == [False]
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("name", ["session", "started", "mark", "command", "seen"])
@pytest.mark.parametrize(
    "value", [None, "", "x", "**", "../x", -1, 1e300, 2**70, [], {}, [[1]], "\ud800", True]
)
def test_r33_a_damaged_register_ends_nothing_and_stops_no_start(tmp_path, name, value):
    row = {"session": 999_999_999, "started": 1, "mark": "0123abcd", "command": "x", "seen": [], name: value}
    owner = {"pid": 999_999_999, "started": 1, "boot": processes._boot_id()}
    path = tmp_path / "processes-1-1.json"
    path.write_text(json.dumps({"owner": owner, "sessions": [row]}))
    assert not any(orphan.was_running for orphan in reap_orphans(tmp_path))
    assert not path.exists()


def test_r33_a_process_without_the_mark_is_known_by_its_start(ctx, tmp_path):
    code = AGENT.replace("sleep 643 & echo done", "env -i sleep 644 & echo done")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "now"], stdout=subprocess.PIPE, timeout=20
    )
    assert not any(living(int(line)) for line in done.stdout.split())


async def test_what_is_left_behind_may_not_print_for_ever(ctx, call, monkeypatch):
    monkeypatch.setattr(jobs_module, "SIZE_SAMPLE_S", 0.05)
    monkeypatch.setattr(jobs_module, "MAX_OUTPUT_BYTES", 1 << 20)
    await call("shell", command="yes & echo hi")
    await call("shell", command="yes", background=True)
    for _ in range(60):
        await asyncio.sleep(0.1)
        if not ctx.jobs._log.records:
            break
    assert not ctx.jobs._log.records
    assert (await call("jobs", action="list")).startswith("j1 killed: too much output")


def test_a_broken_log_is_no_obstacle(tmp_path):
    (tmp_path / "processes-1-1.json").write_text("{")
    assert reap_orphans(tmp_path) == []
    assert not list(tmp_path.glob("processes-*"))


def rss_mb() -> float:
    text = Path("/proc/self/statm").read_text()
    return int(text.split()[1]) * resource.getpagesize() / 1e6


@pytest.mark.timeout(120)
async def test_r34_memory_does_not_grow_with_output(ctx, call):
    command = "head -c 10000000 /dev/zero | tr '\\0' 'x' | fold -w 99"
    for _ in range(3):
        await call("shell", command=command)
    before, text = rss_mb(), ""
    for _ in range(int(os.environ.get("K3AGENT_TEST_COMMANDS", "15"))):
        text = await call("shell", command=command)
        assert 30_000 < len(text) < 30_400
    assert rss_mb() - before < 100 * 15 / 1000 + 8
    full = text.split("full output: ")[1].split("]")[0]
    assert os.stat(full).st_size > 10_000_000  # noqa: PTH116 - in an async test


async def test_old_outputs_go_when_there_are_too_many(ctx, call, monkeypatch):
    monkeypatch.setattr(jobs_module, "MAX_KEPT_BYTES", 300_000)
    for _ in range(50):
        await call("shell", command="yes | head -c 40000")
    assert sum(path.stat().st_size for path in ctx.output_dir.glob("output-*")) <= 340_000


async def test_endless_output_is_stopped(ctx, call, monkeypatch):
    monkeypatch.setattr("k3agent.tools.support.commands.MAX_OUTPUT_BYTES", 3 << 20)
    text = await call("shell", command="yes", timeout_s=30)
    assert text.endswith("\n[more than 3 MB of output; killed]")


async def test_head_and_tail(ctx, call):
    text = await call("shell", command="seq 1 20000")
    head, _, tail = text.partition("\n[... ")
    assert head.startswith("1\n2\n3\n") and tail.endswith("\n19999\n20000\n[exit code 0]")
    note = tail.split("\n")[0]
    assert note.startswith("78894 characters cut; full output: /") and note.endswith("]")
    assert len(text) < truncate.MAX_CHARS + 300


async def test_progress_is_reported_while_it_runs(ctx, call):
    seen = []
    ctx.emit = seen.append
    await call("shell", command="echo first; sleep 0.4; echo second; sleep 0.4")
    assert "".join(seen).split() == ["first", "second"]


async def test_strange_bytes(call):
    script = r"printf 'a\x00b\xff \033[31mred\033[0m \033]0;title\007x\r\n10%%\r50%%\r100%%\nok\x08K\n'"
    assert await call("shell", command=script) == "ab\ufffd red x\n100%\noK\n[exit code 0]"


async def test_sandbox_wraps_the_command(ctx, call):
    class Echo(NoSandbox):
        name = "echo"

        def wrap(self, argv, cwd, writable):
            assert cwd == ctx.cwd and writable == (ctx.cwd,)
            return ["/bin/echo", "guarded", *argv]

    ctx.sandbox = Echo()
    assert (await call("shell", command="ls")).startswith("guarded /")


async def test_program_that_is_not_there(ctx, call):
    class Broken(NoSandbox):
        name = "broken"

        def wrap(self, argv, cwd, writable):
            return ["/no/such/program", *argv]

    ctx.sandbox = Broken()
    error = await call.error("shell", command="ls")
    assert error == "The command could not be started: No such file or directory."


async def test_a_job_that_was_stopped_is_explained(ctx, call):
    class Telling(NoSandbox):
        def explain(self, output, cwd, writable):
            return "[sandbox: told]" if "denied" in output else ""

    ctx.sandbox = Telling()
    await call("shell", command="echo denied; exit 1", background=True)
    text = ""
    for _ in range(100):
        text = await call("jobs", action="output", job="j1")
        if "exit code" in text:
            break
        await asyncio.sleep(0.1)
    assert text == "denied\n[sandbox: told]\n[job j1 exit code 1]"
