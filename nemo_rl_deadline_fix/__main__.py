"""`python -m nemo_rl_deadline_fix`, and the installed command of the same name."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> None:
    """Run the command line.

    `run` is taken out before the rest: the script's arguments are its own, and the libraries of the
    other commands stay out of a training process.

    Args:
        arguments: The command's arguments, without the program's name; by default `sys.argv[1:]`.

    Raises:
        SystemExit: Always, unless `run`'s script ends by itself. 0: fine, 1: a finding, 2: could not decide.
    """
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["run"] and given[1:] not in (["--help"], ["-h"]):
        from nemo_rl_deadline_fix import launching
        from nemo_rl_deadline_fix.errors import DeadlineFixError

        try:
            script = launching.read(given[1:])
        except DeadlineFixError as error:
            print(f"nemo-rl-deadline-fix: {error}", file=sys.stderr)
            raise SystemExit(2) from None
        # Outside of the `try`: what the script raises is the script's, also where it is an error of ours.
        launching.run(script)
        return
    from nemo_rl_deadline_fix.cli import app

    app(given)


if __name__ == "__main__":
    main()
