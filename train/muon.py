"""Muon: momentum, then the nearest orthogonal matrix, for the weight matrices of a network.

Source: Keller Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024), Newton-Schulz
coefficients of the reference. Matrices of one shape are orthogonalised together, in bfloat16.
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
        x = torch.baddbmm(x, torch.baddbmm(m, m, m, beta=-4.7750, alpha=2.0315), x, beta=3.4445)
    return x.mT if g.size(1) > g.size(2) else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum 0.95, decoupled weight decay, step scaled by sqrt(rows / columns) where rows > columns.

    Orthogonalising dominates for large matrices of so small a network: those of more than `large` entries take turns,
    each moves every second step on the momentum of both.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.01,
                 large: int = 300_000) -> None:  # fmt: skip
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.large = large
        self.turn = 0

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        assert closure is None, "Muon takes no closure"
        self.turn += 1
        for group in self.param_groups:
            same: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    same[p.shape].append(p)
            for shape, tensors in same.items():
                self._remember(tensors, group["momentum"])
                due = tensors if shape.numel() <= self.large else tensors[self.turn % 2 :: 2] or tensors
                self._move(due, group)

    def _remember(self, tensors: list[Tensor], momentum: float) -> None:
        kept = [self.state[p].setdefault("momentum", torch.zeros_like(p)) for p in tensors]
        torch._foreach_mul_(kept, momentum)
        torch._foreach_add_(kept, [p.grad for p in tensors])

    def _move(self, tensors: list[Tensor], group: dict[str, float]) -> None:
        updates = torch.stack([p.grad + group["momentum"] * self.state[p]["momentum"] for p in tensors])
        rows, columns = tensors[0].shape
        scale = max(1.0, rows / columns) ** 0.5
        torch._foreach_mul_(tensors, 1 - group["weight_decay"] * group["lr"])
        torch._foreach_add_(tensors, list(orthogonalise(updates).float().unbind()), alpha=-group["lr"] * scale)
