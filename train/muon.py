"""Muon: momentum, then the nearest orthogonal matrix, for the weight matrices of a network.

Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), Newton-Schulz coefficients of
the reference. Matrices of one shape are orthogonalised together, in bfloat16.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """[n, rows, columns] -> bfloat16 of the same shape with singular values near 1."""
    x = g.mT if g.size(1) > g.size(2) else g
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(steps):
        m = x @ x.mT
        x = 3.4445 * x + (-4.7750 * m + 2.0315 * (m @ m)) @ x
    return x.mT if g.size(1) > g.size(2) else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum 0.95, decoupled weight decay, step scaled by sqrt(rows / columns) where rows > columns."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        assert closure is None, "Muon takes no closure"
        for group in self.param_groups:
            same: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    same[p.shape].append(p)
            for tensors in same.values():
                self._step(tensors, group)

    def _step(self, tensors: list[Tensor], group: dict[str, float]) -> None:
        updates = []
        for p in tensors:
            m = self.state[p].setdefault("momentum", torch.zeros_like(p))
            m.mul_(group["momentum"]).add_(p.grad)
            updates.append(p.grad + group["momentum"] * m)
        rows, columns = tensors[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        for p, u in zip(tensors, orthogonalise(torch.stack(updates)), strict=True):
            p.mul_(1 - group["weight_decay"] * group["lr"]).add_(u.float(), alpha=-group["lr"] * scale)
