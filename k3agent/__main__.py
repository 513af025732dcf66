"""`python -m k3agent`: the same as the program `k3agent`, also in the folder above a clone named k3agent."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def _own_package() -> None:
    """In the folder above a clone Python takes the clone, which is no package, for a namespace `k3agent`; an
    editable installation is asked only after that. The real package takes its place.
    """
    folder = Path(__file__).resolve().parent
    spec = spec_from_file_location(
        "k3agent", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["k3agent"] = module
    spec.loader.exec_module(module)


if getattr(sys.modules.get("k3agent"), "__file__", None) is None:
    _own_package()

from k3agent.cli import main  # noqa: E402 - the package has to be there

sys.exit(main())
