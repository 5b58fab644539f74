"""`starrocks-txn-sink demo`: exit code 0 if everything was right, 1 if not, 130 after Ctrl-C."""

from __future__ import annotations

import argparse
import sys

from starrocks_demo.choices import DemoOptions, add_arguments

__all__ = ["add_arguments", "run"]


def run(args: argparse.Namespace) -> int:
    """Run the demo with the options of `add_arguments` and return the process's exit code."""
    # Spark and rich are imported here, so that `--help` needs neither.
    from starrocks_demo.display import display
    from starrocks_demo.interruption import Interrupted, interruption
    from starrocks_demo.run import DemoRun
    from starrocks_demo.status import save_picture
    from starrocks_demo.summary import Summary
    from starrocks_demo.workspace import Workspace
    from starrocks_txn_sink.clock import SystemClock

    options = DemoOptions.of(args)
    out = sys.stderr if options.json else sys.stdout
    space = Workspace.open(options.data_dir, keep=options.keep)
    summary: Summary | None = None
    try:
        with interruption() as signals, display(out, quiet=options.quiet) as shown:
            demo = DemoRun(options, space, shown, SystemClock())
            summary = demo.play(signals)
            if options.picture is not None:
                save_picture(demo.last_writing, options.picture)
    except Interrupted as interrupted:
        sys.stderr.write(f"Ended by {interrupted}.\n")
        return interrupted.exit_code
    except Exception:
        space.lasting = True  # its logs tell more
        raise
    finally:
        if summary is not None and not summary.verdict.right:
            space.lasting = True
        space.close()
        if space.lasting:
            out.write(f"Data and logs: {space.root}\n")
    out.write("\n".join(summary.as_lines()) + "\n")
    if options.json:
        sys.stdout.write(summary.as_json() + "\n")
    return 0 if summary.verdict.right else 1
