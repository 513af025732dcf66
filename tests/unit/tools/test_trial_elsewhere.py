"""`try` goes on with what the named function calls in other files of the workspace."""

import os
import sys

import pytest

from k3agent.errors import ToolError
from k3agent.tools import trial
from k3agent.tools.support import opening, originals
from k3agent.tools.support.freshness import digest
from k3agent.tools.support.mutation import changes_in
from k3agent.tools.trial import TrialArgs, TrialTool

PYTHON = f"env -u PYTHONSAFEPATH {sys.executable}"
NEVER = "echo run >> runs; exit 1"
# From the named file to the one with the bug.
APP, WEB = "from app import shop", "from app.web import shop"
LAYOUTS = {
    "flat": ("shop.py", "import rates as r", "r.net(", "rates.py", "import shop"),
    "package": ("app/shop.py", "from app.rates import net", "net(", "app/rates.py", APP),
    "relative": ("app/shop.py", "from . import rates", "rates.net(", "app/rates.py", APP),
    "up": ("app/web/shop.py", "from ..rates import net", "net(", "app/rates.py", WEB),
    "src": ("src/app/shop.py", "from app.rates import net", "net(", "src/app/rates.py", APP),
}
GROSS = "def gross(price, rate):\n    return {}price, rate) + price\n"
NET = "def net(price, rate):\n    return price {} rate\n"


def write(ctx, files):
    for name, text in files.items():
        path = ctx.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def shop(ctx, layout="flat"):
    """Named file, line, file with the bug, command that succeeds without it."""
    named, imported, called, other, how = LAYOUTS[layout]
    write(ctx, {named: f"{imported}\n\n\n{GROSS.format(called)}", other: NET.format("-")})
    asserted = "shop.gross(5, 3) == 20 and shop.gross(2, 4) == 10"
    code = f"import sys; sys.path.insert(0, 'src'); {how}; assert {asserted}"
    return named, 5, other, f'{PYTHON} -c "{code}"'


def state(ctx):
    return {
        str(path.relative_to(ctx.cwd)): (path.read_bytes(), path.stat().st_mode)
        for path in ctx.cwd.rglob("*.py")
    }


@pytest.fixture(autouse=True)
async def nothing_remains(ctx):
    yield
    await ctx.jobs.aclose()
    assert not list(ctx.output_dir.glob("*.original"))


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_bug_in_what_it_calls_is_found(ctx, call, layout):
    named, line, other, command = shop(ctx, layout)
    before = state(ctx)
    output = await call.output("try", path=named, line=line, command=command)
    head, _, rest = output.text.partition("\n")
    first = len(changes_in((ctx.cwd / named).read_text(), line))
    assert head.endswith(f" changes. After this one in {other} the command succeeds:")
    count, _, total = head.removeprefix("Tried ").split()[:3]
    assert first < int(count) <= int(total) <= trial.MAX_IN_ALL
    assert "-    return price - rate\n+    return price * rate\n" in rest and rest.endswith("[exit code 0]")
    assert output.files == (other,) and "price * rate" in output.data["diff"]
    assert (ctx.cwd / other).read_text() == NET.format("*")
    assert state(ctx)[named] == before[named]
    # What it has written it knows.
    await call("edit", path=other, old="price * rate", new="rate * price")


async def test_where_nothing_helps_all_is_as_before(ctx, call):
    named, line, other, _ = shop(ctx)
    (ctx.cwd / other).chmod(0o640)
    before = state(ctx)
    text = await call("try", path=named, line=line, command=NEVER)
    assert state(ctx) == before
    runs = (ctx.cwd / "runs").read_text().count("run")
    assert (
        text
        == f"Tried {runs - 1} changes: the command fails after each. {named} is as it was.\n[exit code 1]"
    )
    assert runs - 1 > len(changes_in((ctx.cwd / named).read_text(), line))


async def test_the_named_file_comes_first(ctx, call):
    named, line, other, _ = shop(ctx)
    before = state(ctx)
    text = await call(
        "try", path=named, line=line, command=f"grep -q ' - price' {named} || grep -q '[*]' {other}"
    )
    assert "After this one the command succeeds:" in text and state(ctx)[other] == before[other]


async def test_what_has_nothing_to_try_leads_on_to_what_it_calls(ctx, call):
    write(ctx, {"a.py": "from b import f\n\n\nclass A:\n    f()\n", "b.py": "def f():\n    return 1\n"})
    text = await call("try", path="a.py", line=4, command="grep -q 'return 2' b.py")
    assert "After this one in b.py the command succeeds:" in text
    write(ctx, {"b.py": "def g():\n    return 1\n"})
    assert "there is nothing" in await call.error("try", path="a.py", line=4, command=NEVER)


async def test_what_could_do_harm_or_changed_since_it_was_read_is_left_out(ctx, call):
    named, line, other, command = shop(ctx)
    path = ctx.cwd / other
    path.write_text(f"import os\n\n\n{NET.format('-')}    os.remove('x')\n")
    assert "the command fails after each" in await call("try", path=named, line=line, command=command)
    path.write_text(NET.format("-"))
    await call("read", path=other)
    path.write_text(f"{NET.format('-')}\n\nx = 1\n")
    assert "the command fails after each" in await call("try", path=named, line=line, command=command)
    assert "price - rate" in path.read_text()


async def test_so_many_changes_of_others_are_enough(ctx, call, monkeypatch):
    monkeypatch.setattr(trial, "MAX_ELSEWHERE", 2)
    named, line, _, _ = shop(ctx)
    own = len(changes_in((ctx.cwd / named).read_text(), line))
    assert f"Tried {own + 2} changes:" in await call("try", path=named, line=line, command=NEVER)
    monkeypatch.setattr(trial, "MAX_IN_ALL", own + 1)
    assert f"Tried {own + 1} changes:" in await call("try", path=named, line=line, command=NEVER)


async def test_it_is_told_before_which_files_may_change_and_no_others_do(ctx, call):
    named, line, other, command = shop(ctx, "up")
    args = TrialArgs(path=named, line=line, command=command)
    access = TrialTool().access(args, ctx)
    assert (access.writes, access.more) == ((ctx.cwd / named,), (ctx.cwd / other,))
    before = state(ctx)
    with opening.only(access.writes):
        assert "the command fails after each" in await call("try", path=named, line=line, command=command)
    assert state(ctx) == before
    missing = TrialTool().access(TrialArgs(path="no.py", line=1, command="x"), ctx)
    assert (missing.writes, missing.more) == ((ctx.cwd / "no.py",), ())


async def test_a_folder_in_which_another_session_tries_changes_is_left_out(ctx, call):
    named, line, other, command = shop(ctx, "up")
    with originals.alone(ctx.cwd / other, other):
        assert "the command fails after each" in await call("try", path=named, line=line, command=command)
    assert f"in {other} the command succeeds" in await call("try", path=named, line=line, command=command)


async def test_what_a_killed_call_left_elsewhere_is_put_back_by_the_next(ctx, call):
    named, line, other, _ = shop(ctx)
    path, data = ctx.cwd / other, NET.format("-").encode()
    left = NET.format("//").encode()
    originals.keep(ctx.output_dir, path, data, 0o640, [digest(left)])
    path.write_bytes(left)
    await call("try", path=named, line=line, command=NEVER)
    assert path.read_bytes() == data and path.stat().st_mode & 0o777 == 0o640


async def test_what_cannot_be_put_back_is_told_by_its_name(ctx, call):
    named, line, other, _ = shop(ctx)
    command = f"test -f {other} && grep -q 'price - rate' {other} || {{ rm {other}; mkdir {other}; }}; exit 1"
    with pytest.raises(ToolError, match=f"^{other} may hold a change that was tried"):
        await call("try", path=named, line=line, command=command)
    os.rmdir(ctx.cwd / other)  # noqa: PTH106
    originals.copy_of(ctx.output_dir, ctx.cwd / other).unlink()
