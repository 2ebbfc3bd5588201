"""The verdict on giants-hermite: its frames, point by point, against those of the reference build (rubric.json beside this file)."""

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from frames import validate_frames


def validate(reference_dirs, candidate_dirs):
    """Both map each deck's id to its folder of frames. Returns {"passed", "outcome", "frames_ok", "frames_scored", ...}."""
    return validate_frames(json.loads((HERE / "rubric.json").read_text()), reference_dirs, candidate_dirs)
