"""The scripts import one another by name, as they do when run: their folders come first."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path[:0] = [str(SCRIPTS / "paper"), str(SCRIPTS / "benchmarks")]
