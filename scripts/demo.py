"""The first look: k3agent repairs a small repository that this script makes, offline; its changes are shown.

Everything runs on the embedded model: no key, no GPU, no download. The repository stays in build/demo.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHOP = ROOT / "build" / "demo" / "shop"

FILES = {
    "README.md": "# Shop\n\nA tiny price calculator. Run the tests with `python -m pytest -q`.\n",
    "shop/__init__.py": "",
    "shop/prices.py": '''"""Prices of the shop, in cents."""

TAX_RATE = 19
FREE_SHIPPING_FROM = 5000


def net_total(items):
    """Sum of price times quantity."""
    total = 0
    for price, quantity in items:
        total += price * quantity
    return total


def with_tax(net):
    return nett + net * TAX_RATE // 100


def shipping(net):
    if net >= FREE_SHIPPING_FROM:
        return 0
    return 490
''',
    "shop/receipt.py": """from shop.prices import net_total, shipping, with_tax


def receipt(items):
    net = net_total(items)
    return {"net": net, "shipping": shipping(net), "total": with_tax(net + shipping(net))}
""",
    "tests/test_prices.py": """from shop.prices import net_total, shipping, with_tax


def test_net_total():
    assert net_total([(250, 4), (100, 1)]) == 1100


def test_with_tax():
    assert with_tax(1000) == 1190


def test_shipping():
    assert shipping(6000) == 0
    assert shipping(100) == 490
""",
    "conftest.py": "",
    # The repository lies inside that of k3agent, whose own pytest settings are not meant for it.
    "pytest.ini": "[pytest]\naddopts = -p no:asyncio\n",
}

TASKS = (
    "Run the tests and fix what fails.",
    "Rename with_tax to gross_total in all files.",
    "Where is FREE_SHIPPING_FROM defined?",
)


def make_repository() -> None:
    """Write the sample files and commit them."""
    shutil.rmtree(SHOP, ignore_errors=True)
    for name, text in FILES.items():
        path = SHOP / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (SHOP / ".gitignore").write_text("__pycache__/\n.pytest_cache/\n")
    git("init", "--quiet", "--initial-branch=main")
    git("add", "--all")
    git(
        "-c",
        "user.name=demo",
        "-c",
        "user.email=demo@localhost",
        "commit",
        "--quiet",
        "-m",
        "A shop with a bug",
    )


def git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=SHOP, check=True)


def heading(text: str) -> None:
    print(f"\n\x1b[1m== {text}\x1b[0m" if sys.stdout.isatty() else f"\n== {text}", flush=True)


def main() -> None:
    bin_folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{bin_folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    make_repository()
    print(
        f"A sample repository with a bug, made in {SHOP.relative_to(ROOT)}. The embedded model, nano, gets"
        f" {len(TASKS)} tasks in one session: --continue goes on with it. --provider bundled keeps it on this"
        " machine, also where a key is set. The first task waits for the model to load.",
        flush=True,
    )
    failed = 0
    for number, task in enumerate(TASKS):
        flags = ["--provider", "bundled", *(["--continue"] if number else [])]
        heading(f'k3agent run {" ".join(flags)} "{task}"')
        command = [sys.executable, "-P", "-m", "k3agent.cli", "run", *flags, task]
        failed += subprocess.run(command, cwd=SHOP, env=environment, check=False).returncode != 0
    heading("what changed (git diff)")
    git("--no-pager", "diff", "--stat")
    git("--no-pager", "diff", "--unified=1")
    heading("the tests, run by this script")
    tests = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=SHOP,
        env=environment,
        check=False,
    )
    if failed or tests.returncode:
        sys.exit(f"\n{failed} of {len(TASKS)} tasks failed; tests exited with {tests.returncode}.")
    print(f'\nDone. Try your own: cd into a repository and run  {bin_folder / "k3agent"} run "..."')
    print("The engine stays loaded for three minutes after a run; k3agent doctor says how to end it at once.")


if __name__ == "__main__":
    main()
