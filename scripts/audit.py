"""Asks whether the pinned packages have known vulnerabilities. Run by `make audit`.

Fails for a vulnerability that a newer version mends. Where nobody can be asked (no network, a mirror without
that service) it says so and passes: what cannot be known must not look like a fault of the change.
"""

import json
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
TIMEOUT_S = 300


def ask() -> dict[str, list[dict]]:
    """What pip-audit says; no packages where it could not be asked."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip"]
    command += ["--progress-spinner", "off", "--format", "json", "--timeout", "20"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"audit: no answer within {TIMEOUT_S} s.")
        return {"dependencies": []}
    try:
        return json.loads(done.stdout)
    except ValueError:
        print(f"audit: {(done.stderr.strip().splitlines() or ['no answer'])[-1][:300]}")
    return {"dependencies": []}


def main() -> int:
    packages = ask()["dependencies"]
    checked = [package for package in packages if "skip_reason" not in package]
    is_bad = False
    for package in checked:
        for hole in package.get("vulns", []):
            mended = ", ".join(hole.get("fix_versions", []))
            is_bad = is_bad or bool(mended)
            remedy = (
                f"mended in {mended}: change pyproject.toml, then make lock" if mended else "not mended yet"
            )
            print(f"audit: {package['name']} {package['version']}: {hole['id']}, {remedy}")
    total = sum(bool(line.strip()) for line in LOCK.read_text().splitlines())
    print(f"audit: {len(checked)} of {total} pinned packages could be looked up.")
    if not checked:
        print("audit: nothing is known from here; run it where the package index can be asked.")
    return int(is_bad)


if __name__ == "__main__":
    sys.exit(main())
