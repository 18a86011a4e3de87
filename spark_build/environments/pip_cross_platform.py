"""Run pip as if on another machine: python pip_cross_platform.py MARKERS-AS-JSON ARGUMENT...

pip's --platform and --python-version choose among files; requirements with markers it still judges as
on the machine that runs it, and it has no option for that. So this tells the judge, packaging's
`default_environment` inside pip, what the other machine says.
"""

from __future__ import annotations

import json
import sys


def main() -> int:
    """Return pip's exit code; 3 when this pip cannot be redirected, so that nobody trusts a wrong answer."""
    try:
        from pip._internal.cli.main import main as pip
        from pip._vendor.packaging import markers

        told = json.loads(sys.argv[1])
        setattr(markers, "default_environment", lambda: {**told, "platform_machine": "?"})  # noqa: B010 - unknown to mypy
        if not markers.Marker("platform_machine == '?'").evaluate({"extra": ""}):
            raise ImportError("its judge does not listen")
        setattr(markers, "default_environment", lambda: dict(told))  # noqa: B010 - unknown to mypy
    except (ImportError, AttributeError) as error:
        print(f"ERROR: this pip cannot resolve for another machine ({error}): pip install -U pip")
        return 3
    return pip(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
