"""Greedy answers of the model in training, many at a time; `galago bench quality` scores a finished one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from galago.bench.pictures import Fonts
from train import batches, tasks, tokenizer
from train.model import TinyVL


@dataclass(slots=True)
class Answerer:
    """A model that answers freely: every token is its own greedy choice."""

    model: TinyVL
    together: int = 64

    @classmethod
    def of(cls, model: TinyVL, weights: dict[str, Tensor] | None = None) -> Answerer:
        """The model itself, or a copy of it with other weights (slot head entries are passed over)."""
        if weights is None:
            return cls(model)
        other = copy.deepcopy(model)
        other.load_state_dict({n: w for n, w in weights.items() if not n.startswith("slot_head.")})
        return cls(other)

    @torch.inference_mode()
    def answers(self, samples: Sequence[tasks.Sample], fonts: Fonts) -> list[str]:
        """One answer per sample, in order. Conversations of similar answer length run together.

        An answer that grows much longer than the right one is cut, since it is wrong already.
        """
        order = sorted(range(len(samples)), key=lambda n: len(tokenizer.encode(samples[n].answer)))
        out = [""] * len(samples)
        for start in range(0, len(order), self.together):
            chosen = order[start : start + self.together]
            got = batches.conversation_batch([samples[n] for n in chosen], fonts, answers=False)
            visual, taps = self.model.model.visual([torch.from_numpy(s) for s in got.pictures.stacks])
            limit = 12 + len(tokenizer.encode(samples[chosen[-1]].answer))
            for part in got.parts:
                for member, answer in zip(part.members, self._write(part, visual, taps, limit), strict=True):
                    out[chosen[member]] = answer
        return out

    def _write(self, part: batches.Part, visual: Tensor, taps: list[Tensor], limit: int) -> list[str]:
        """Greedy answers of one part: the whole rows are run again for every token, which is fast enough here."""
        take = torch.from_numpy(part.take)
        visual, taps = visual[take], [t[take] for t in taps]
        b, width = part.ids.shape
        whole = width + limit
        ids = np.concatenate([part.ids, np.full((b, limit), tokenizer.control("<|endoftext|>"))], 1)
        positions = np.concatenate([part.positions, part.positions[:, :, -1:] + 1 + np.arange(limit)], 2)
        where = torch.from_numpy(part.where // width * whole + part.where % width)
        length, alive = part.lengths.copy(), np.ones(b, bool)
        for _ in range(limit):
            used = int(length.max())
            seen, places = torch.from_numpy(ids[:, :used]), torch.from_numpy(positions[:, :, :used])
            hidden = self.model.hidden(seen, places, visual, taps, where // whole * used + where % whole)
            best = self.model.logits(hidden[torch.arange(b), torch.from_numpy(length - 1)]).argmax(-1).numpy()
            alive &= (best != tokenizer.control("<|im_end|>")) & (best != tokenizer.control("<|endoftext|>"))
            if not alive.any():
                break
            ids[alive, length[alive]] = best[alive]
            length[alive] += 1
        return [tokenizer.decode(ids[n, part.lengths[n] : length[n]].tolist()) for n in range(b)]
