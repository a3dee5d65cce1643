"""`python -m nemo_rl_deadline_fix`, and the installed command of the same name."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line.

    Raises:
        SystemExit: Always. 0: fine, 1: a finding, 2: could not decide, 130: interrupted.
    """
    try:
        from nemo_rl_deadline_fix.cli import app

        app(sys.argv[1:])
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    if sys.argv[1:2] == ["run"] and not sys.flags.safe_path:
        # The current folder. What lies beside the script is the script's, and not meant by our imports.
        del sys.path[0]
    main()
