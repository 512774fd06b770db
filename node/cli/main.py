"""Where the `panal` command begins: from here on Ctrl-C ends it quietly. All else is `node.cli.frame`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from node import sigint


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse's own exits (--help, usage) raise SystemExit.

    Args:
        argv: None for this process's own, whose end is then the end of the process.
    """
    sigint.arm()
    try:
        from node.cli.frame import run_command  # only now: importing it is most of what --help takes

        return run_command(argv)
    except KeyboardInterrupt:
        return sigint.EXIT_INTERRUPTED
    finally:
        sigint.disarm(ending=argv is None)


if __name__ == "__main__":
    sys.exit(main())
