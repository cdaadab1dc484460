"""One card, no torch.distributed: a model that is called by the name of its argument."""
import torch
import torch.nn.functional as F
from torch import nn

WIDTH, WORDS = 512, 4096


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks, self.head = nn.Embedding(WORDS, WIDTH), nn.ModuleList(Block() for _ in range(6)), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids=None):
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


model = Model().cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(4):
    ids = torch.randint(0, WORDS, (2, 256), device="cuda")
    F.cross_entropy(model(ids=ids).flatten(0, 1), ids.flatten()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
