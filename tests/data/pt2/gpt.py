"""What logits_and_loss.pt2, tied_head.pt2 and no_stacks.pt2 were exported from, with PyTorch 2.11: a small GPT with a tied head. Afterwards
the paths of libraries were cut from their stack traces and the archives packed again."""
import torch
import torch.nn as nn
import torch.nn.functional as F
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
    def forward(self, x):
        y = self.fc(x)
        z = y * 2
        z = torch.relu(z)
        return self.norm(z + x)
class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(16, 8)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
    def forward(self, idx, targets):
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        loss = F.cross_entropy(logits.view(-1, 16), targets.view(-1))
        return logits, loss
ids = torch.zeros(2, 4, dtype=torch.long)
with torch.device("meta"):
    model = Gpt()
ep = torch.export.export(model, (ids.to("meta"), ids.to("meta")), strict=False)
torch.export.save(ep, "logits_and_loss.pt2")
class Plain(Gpt):
    def forward(self, idx):
        x = self.embed(idx)
        for block in self.blocks:
            x = block(x)
        return self.head(x)
with torch.device("meta"):
    model = Plain()
ep = torch.export.export(model, (ids.to("meta"),), strict=False)
torch.export.save(ep, "tied_head.pt2")
for n in ep.graph.nodes:
    n.meta.pop("nn_module_stack", None); n.meta.pop("stack_trace", None)
torch.export.save(ep, "no_stacks.pt2")
