"""Starting from the folder above a clone named k3agent, where Python sees a package without a file."""

import os
import subprocess
import sys
from pathlib import Path

import k3agent
from k3agent import __version__

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, cwd: Path, *flags: str) -> str:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [sys.executable, *flags, "-c", code],
        cwd=cwd,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_as_a_module_it_takes_the_place_of_a_namespace(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; from importlib.machinery import ModuleSpec;"
        "from importlib.util import module_from_spec;"
        "spec = ModuleSpec('k3agent', None, is_package=True);"
        f"spec.submodule_search_locations = [{str(Path(k3agent.__file__).parent)!r}];"
        "sys.modules['k3agent'] = module_from_spec(spec);"
        "sys.argv[1:] = ['--version']; runpy.run_module('k3agent', run_name='__main__', alter_sys=True)"
    )
    assert run(code, tmp_path) == f"k3agent {__version__}\n"


def test_the_tree_of_links_is_found_before_a_folder_of_the_same_name(tmp_path: Path) -> None:
    (tmp_path / "k3agent" / "docs").mkdir(parents=True)
    site = tmp_path / "site"
    site.mkdir()
    add = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import link_tree;"
        f"from pathlib import Path;"
        f"link_tree.TREE = Path({str(tmp_path)!r}) / 'tree' / 'k3agent';"
        f"link_tree.main(); link_tree.add_to_site(Path({str(site)!r}))"
    )
    run(add, tmp_path)
    code = "import sys; sys.path[:] = [p for p in sys.path if 'k3agent' not in p and 'tree' not in p];"
    code += f"sys.path.insert(0, ''); import site; site.addsitedir({str(site)!r});"
    code += "import k3agent, k3agent.backend.errors, k3agent.tools; print(k3agent.__version__)"
    assert run(code, tmp_path, "-S", "-E") == f"{__version__}\n"
