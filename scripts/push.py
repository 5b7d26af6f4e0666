"""Push a trained model, windows, or the app to the Hub: one commit, with a card made from measured rows."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

EXAMPLE = """examples:
  python scripts/push.py --checkpoint runs/stackoverflow_15-40_ehd --repo somebody/stackoverflow-15-40 --dry-run
  python scripts/push.py --checkpoint runs/ehd --repo somebody/ehd --rows rows.jsonl --card my_data.yaml --private
  python scripts/push.py --windows runs/stackoverflow-windows --repo somebody/stackoverflow-windows
  python scripts/push.py --space scripts/space --repo somebody/why

The card's numbers are the rows of exactly these weights (scripts/evaluate.py --out rows.jsonl), its words about the
data those of dataset_cards/. A token: `hf auth login`, or HF_TOKEN."""
ROOT = Path(__file__).resolve().parent.parent


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--checkpoint", type=Path, help="folder of a trained distiller or point process")
    what.add_argument("--windows", type=Path, help="folder written by scripts/prepare_windows.py")
    what.add_argument("--space", type=Path, help="folder of a Gradio app: scripts/space, or a copy with another model")
    add("--repo", required=True, metavar="ID", help="somebody/name; made if it is not there")
    add("--rows", type=Path, nargs="+", help="files of evaluation rows (default: results/*.jsonl)")
    add("--card", type=Path, help="YAML with words about the data (default: dataset_cards/<data of the rows>.yaml)")
    add(
        "--configs", nargs="+", default=[], metavar="NAME", help="configs of scripts/configs that trained it, in order"
    )
    add("--dataset", metavar="ID", help="Hub id of the data it was trained on, for the card")
    add("--revision", help="branch (default main); made if it is not there")
    add("--message", help="commit message")
    add("--private", action="store_true", help="make a new repository private")
    add("--dry-run", action="store_true", help="show what would be uploaded, and upload nothing")
    return parser.parse_args(argv)


def checkpoint_files(arguments: argparse.Namespace) -> dict[str, Any]:
    """Weights, config, code, rows and card of a checkpoint."""
    import yaml
    from transformers import AutoModel
    from transformers.utils import logging

    from ehd_hf.files import read_rows
    from ehd_hf.hub.fetch import check_weights
    from ehd_hf.hub.push import model_files, rows_of

    check_weights(arguments.checkpoint)
    logging.disable_progress_bar()
    model = AutoModel.from_pretrained(arguments.checkpoint, use_safetensors=True)
    files = arguments.rows or sorted((ROOT / "results").glob("*.jsonl"))
    rows = rows_of(model, [row for file in files for row in read_rows(file)])
    data = {row["data"]: None for row in rows if row.get("checkpoint")}
    card = arguments.card or ROOT / "dataset_cards" / f"{next(iter(data), 'no-rows').replace(':', '_')}.yaml"
    if not data:
        raise ValueError(
            f"The card needs rows of these weights; {', '.join(map(str, files)) or 'results/'} has none. Measure them "
            f"with scripts/evaluate.py --model {arguments.checkpoint} --out rows.jsonl, then pass --rows rows.jsonl."
        )
    if not card.is_file():
        raise ValueError(f"The card needs words about the data; there is no {card}. Write it, or pass --card.")
    training = arguments.checkpoint / "training.json"
    return model_files(
        model,
        arguments.repo,
        rows=rows,
        data=yaml.safe_load(card.read_text("utf-8")),
        training=json.loads(training.read_text()) if training.is_file() else None,
        commands=[f"accelerate launch scripts/train.py --config scripts/configs/{c}.yaml" for c in arguments.configs],
        dataset=arguments.dataset,
    )


def space_files(folder: Path) -> dict[str, Any]:
    """A Space's own files; its card says which of them is the app."""
    files = {file.name: file for file in sorted(folder.glob("*")) if file.is_file()}
    if missing := {"app.py", "README.md", "requirements.txt"} - set(files):
        raise ValueError(f"{folder} must hold an app; it lacks {', '.join(sorted(missing))}. Pass scripts/space.")
    return files


def push(arguments: argparse.Namespace) -> None:
    from ehd_hf.hub.push import plan_upload, upload, windows_files

    folder = arguments.checkpoint or arguments.windows or arguments.space
    if arguments.checkpoint:
        kind, files = "model", checkpoint_files(arguments)
    elif arguments.windows:
        kind, files = "dataset", windows_files(folder, arguments.repo)
    else:
        kind, files = "space", space_files(folder)
    where = {"repo_type": kind, "revision": arguments.revision}
    plan = plan_upload(files, arguments.repo, **where)
    sent = [file for file in plan if file.state != "unchanged"]
    print(
        f"{kind} {arguments.repo}, {arguments.revision or 'main'}: {sum(file.size for file in sent):,} bytes to upload"
    )
    for file in plan:
        print(f"  {file.state:<9}  {file.size:>13,}  {file.path}")
    if arguments.dry_run:
        print("dry run: nothing was uploaded")
    elif not sent:
        print("nothing to upload: the repository has all of it")
    else:
        message = arguments.message or f"Upload {folder.resolve().name}"
        private = arguments.private or None
        print("committed as", upload(files, arguments.repo, private=private, commit_message=message, **where))


def main(argv: list[str] | None = None) -> int:
    arguments = parse_arguments(argv)  # before the imports, so that --help does not wait for torch
    try:
        push(arguments)
    except (ValueError, OSError) as error:
        print(f"push: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
