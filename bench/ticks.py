"""What a script that runs inside an arm tells while it measures, for whoever watches."""

from __future__ import annotations

import contextlib
import json
import os
import select

MARK = "@tick "
STDOUT = 1


def tell(case: str, part: str, seconds: float, rate: float) -> None:
    """One line on stdout: the rate of a tick, and for how many seconds `part` of `case` has run.

    Never waits: where the reader is slow or gone the line is lost, because a measurement must not stand
    still for who looks on. A pipe that takes something takes a line as short as this one whole.
    """
    fields = {"case": case, "part": part, "seconds": round(seconds, 3), "rate": rate}
    with contextlib.suppress(OSError, ValueError):
        if select.select([], [STDOUT], [], 0)[1]:
            os.write(STDOUT, f"{MARK}{json.dumps(fields)}\n".encode())
