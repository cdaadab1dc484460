"""The model of the recordings beside this file: three linear layers, a branch, and numbers that any language can make."""
import math, torch

SIZE, ROWS = 8, 4


def numbers(count, phase):
    return torch.tensor([math.sin(0.37 * (i + 1) + phase) / 3 for i in range(count)], dtype=torch.float64).float()


class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = (torch.nn.Linear(SIZE, SIZE) for _ in range(3))
        for k, p in enumerate(self.parameters()):
            p.data.copy_(numbers(p.numel(), k).view(p.shape))

    def forward(self, x):
        h = torch.relu(self.a(x))
        y = self.b(h)
        return self.c(y + h + x)
