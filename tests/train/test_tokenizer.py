"""The shipped tokenizer is the one that the training code builds.

Guards: a changed word list shifts token ids under weights trained on the old ones, and nothing else would say so.
"""

from __future__ import annotations

import json

from galago.models.hub import bundled_folder
from train import tokenizer


def test_the_shipped_vocabulary_is_the_trained_one() -> None:
    shipped = json.loads((bundled_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    assert json.loads(tokenizer.build().to_str()) == shipped
