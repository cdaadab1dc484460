"""Recurrent networks: an LSTM language model, a GRU classifier."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from . import case, ids


class LstmLm(nn.Module):
    def __init__(self, v=1000, d=128):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.lstm = nn.LSTM(d, d, num_layers=2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(d, v)

    def forward(self, x):
        y, _ = self.lstm(self.embed(x))
        return self.head(y)


@case("lstm", ["LSTM"], precisions=["float32"])
class _:
    make = LstmLm
    batch = staticmethod(lambda device: (ids(1000, 64, 48, device=device), ids(1000, 64, 48, device=device)))

    @staticmethod
    def forward(model, x, y):
        out = model(x)
        return F.nll_loss(F.log_softmax(out.view(-1, out.shape[-1]), -1), y.view(-1))


class GruClassifier(nn.Module):
    def __init__(self, v=1000, d=128):
        super().__init__()
        self.embed = nn.Embedding(v, d)
        self.gru = nn.GRU(d, d, bidirectional=True, batch_first=True)
        self.head = nn.Sequential(nn.Linear(4 * d, d), nn.Tanh(), nn.Linear(d, 1))

    def forward(self, x):
        y, _ = self.gru(self.embed(x))
        pooled = torch.cat([y.mean(1), y.max(1).values], -1)
        return self.head(pooled).squeeze(-1)


@case("gru", ["GRU"], precisions=["float32"])
class _:
    make = GruClassifier
    batch = staticmethod(lambda device: (ids(1000, 64, 48, device=device), torch.rand(64, device=device)))

    @staticmethod
    def forward(model, x, y):
        return F.binary_cross_entropy_with_logits(model(x), y)
