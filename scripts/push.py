"""Push a trained model, windows, or the app to the Hub: one commit, with a card made from measured rows."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

EXAMPLE = """examples:
  python scripts/push.py runs/ehd somebody/ehd --rows results/*.jsonl --card dataset_cards/stackoverflow.yaml --dry-run
  python scripts/push.py runs/stackoverflow-windows somebody/stackoverflow-windows
  python scripts/push.py scripts/space somebody/why

The card's numbers are the rows of exactly these weights (scripts/paper/evaluate.py --out rows.jsonl), its words about
the data those of dataset_cards/. A token: `hf auth login`, or HF_TOKEN."""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", type=Path, help="of a trained model, of exported windows, or with an app.py")
    add("repo", metavar="REPO", help="somebody/name; made if it is not there")
    add("--rows", type=Path, nargs="+", default=[], help="files of evaluation rows, for a model's card")
    add("--card", type=Path, help="YAML with words about the data, for a model's card")
    add("--commands", nargs="+", default=[], metavar="COMMAND", help="what trained it, in order, for a model's card")
    add("--dataset", metavar="ID", help="Hub id of the data it was trained on, for a model's card")
    add("--revision", help="branch (default main); made if it is not there")
    add("--message", help="commit message")
    add("--private", action="store_true", help="make a new repository private")
    add("--dry-run", action="store_true", help="show what would be uploaded, and upload nothing")
    arguments = parser.parse_args(argv)
    from ehd_hf.hub.push import push_folder  # after the arguments, so that --help does not wait for torch

    names = ("rows", "card", "commands", "dataset", "revision", "dry_run")
    options = {name: getattr(arguments, name) for name in names} | {"private": arguments.private or None}
    options |= {"commit_message": arguments.message} if arguments.message else {}
    try:
        done = push_folder(arguments.folder, arguments.repo, **options)
    except (ValueError, OSError) as error:
        print(f"push: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    size = sum(size for _, size, state in done.files if state != "unchanged")
    print(f"{done.repo_type} {arguments.repo}, {arguments.revision or 'main'}: {size:,} bytes to upload")
    for path, size, state in done.files:
        print(f"  {state:<9}  {size:>13,}  {path}")
    print("nothing was uploaded" if done.url is None else f"committed as {done.url}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
