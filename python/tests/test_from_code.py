"""Models captured by their own code: by name, at one size, and at sizes that are worked out from others."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.environ.get("FORESHARD_PACKAGE", os.path.dirname(HERE))
sys.path[:0] = [PACKAGE, HERE]

from foreshard.code_server import Models
from foreshard.sized_texts import SizedTexts

OWN = '''
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    """Attention over a window: beyond it there is a mask, and beside it a padding to whole chunks."""
    def __init__(self, d, window, chunk):
        super().__init__()
        self.window, self.chunk = window, chunk
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = (t.view(b, s, 4, d // 4).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        mask = None
        if s > self.window:
            at = torch.arange(s, device=x.device)
            mask = (at[:, None] - at[None, :] < self.window) & (at[:, None] >= at[None, :])
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(y.transpose(1, 2).reshape(b, s, d))
        if self.chunk and s % self.chunk:
            x = F.pad(x, (0, 0, 0, self.chunk - s % self.chunk))[:, :s]
        return x

class Net(nn.Module):
    def __init__(self, window, chunk):
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.blocks = nn.ModuleList(Block(32, window, chunk) for _ in range(2))
        self.head = nn.Linear(32, 100)

    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

def ids(batch, seq):
    return torch.empty(batch, seq, dtype=torch.long)

def plain(batch, seq=64):
    return Net(1 << 20, 0), (ids(batch, seq), ids(batch, seq))

def windowed(batch, seq=64):
    return Net(128, 0), (ids(batch, seq), ids(batch, seq))

def chunked(batch, seq=64):
    return Net(1 << 20, 96), (ids(batch, seq), ids(batch, seq))

class Limited(Net):
    """Beyond so many tokens the blocks run again."""
    def forward(self, ids, labels):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if ids.numel() > 2048 else block(x)
        return F.cross_entropy(self.head(x).flatten(0, 1), labels.flatten())

def limited(batch, seq=64):
    return Limited(1 << 20, 0), (ids(batch, seq), ids(batch, seq))

def fixed():
    return Net(1 << 20, 0), (ids(2, 24), ids(2, 24))

class Logits(nn.Linear):
    pass

def with_loss(batch):
    return Logits(8, 4), (torch.empty(batch, 8),), {}, lambda out: out.square().mean()

def with_batch(batch):
    return Logits(8, 4), (torch.empty(batch, 8),), {}, lambda out, x: (out.sum(1) * x[:, 0]).mean()

def broken():
    raise RuntimeError("no such data set")
'''


class Own(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.file = os.path.join(cls.folder.name, "own_net.py")
        with open(cls.file, "w") as file:
            file.write(OWN)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def text(self, models, function, batch, seq):
        return models.text([f"{self.file}:{function}", "--batch", str(batch), "--seq", str(seq)])


class Sizes(Own):
    def asked(self, function, sizes):
        """Texts at these sizes by one server, each equal to what a fresh capture gives; and how many were captured on the way."""
        models = Models()
        captures = []
        for batch, seq in sizes:
            text = self.text(models, function, batch, seq)
            (held,) = models._sizes.values()
            if not captures:
                plain = held._capture
                held._capture = lambda b, s: captures.append((b, s)) or plain(b, s)
            self.assertEqual(text, self.text(Models(), function, batch, seq), f"{function} at {batch} x {seq}")
        return captures

    def test_between_sizes_that_were_captured_nothing_is_captured_again(self):
        corners = [(2, 512), (4, 512), (16, 2048), (2, 576), (3, 1088), (5, 512)]
        draw = random.Random(3)
        inside = [(draw.randint(2, 16), 64 * draw.randint(8, 32)) for _ in range(6)]
        self.assertTrue(set(self.asked("plain", corners + inside)).isdisjoint(set(inside) - set(corners)))

    def test_a_window_and_chunks_are_never_worked_out_wrongly(self):
        draw = random.Random(4)
        for function in ("windowed", "chunked"):
            self.asked(function, [(draw.choice([1, 2]), 8 * draw.randint(2, 40)) for _ in range(8)])
        self.asked("chunked", [(2, 768), (2, 1536), (2, 3072), (2, 800), (2, 1024), (2, 608)])
        self.asked("limited", [(2, 256), (4, 256), (8, 256), (2, 1024), (3, 512), (8, 1024), (6, 512)])

    def test_a_number_that_is_no_polynomial_is_captured(self):
        def text(batch, seq):
            return f"{batch} {seq} {seq // 48} {batch * seq}"

        draw = random.Random(5)
        sizes = SizedTexts(text)
        for _ in range(200):
            batch, seq = draw.randint(1, 9), 16 * draw.randint(1, 64)
            self.assertEqual(sizes.at(batch, seq), text(batch, seq))


class Names(Own):
    def test_a_function_without_sizes_has_its_own(self):
        models = Models()
        self.assertEqual(self.text(models, "fixed", 1, 0), self.text(models, "fixed", 5, 64))

    def test_the_loss_may_be_a_function_of_what_is_returned(self):
        document = json.loads(self.text(Models(), "with_loss", 3, 0))
        self.assertTrue(document["has_loss"])
        self.assertEqual(document["inputs"][0]["shape"], [3, 8])
        document = json.loads(self.text(Models(), "with_batch", 3, 0))
        self.assertEqual([each["shape"] for each in document["inputs"]], [[3, 8]], "what the loss takes of the batch is the batch")

    def test_functions_of_two_files_do_not_meet(self):
        models = Models()
        sizes = []
        for name, width in (("one", 64), ("two", 512), ("one", 128)):
            folder = os.path.join(self.folder.name, name)
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "layers.py"), "w") as file:
                file.write(f"WIDTH = {width}\n")
            with open(os.path.join(folder, "net.py"), "w") as file:
                file.write("import torch\nfrom layers import WIDTH\ndef build(batch):\n    torch.set_default_dtype(torch.float64)\n"
                           "    return torch.nn.Linear(WIDTH, 4), (torch.empty(batch, WIDTH),), {}, lambda out: out.sum()\n")
            sizes.append(json.loads(Models().text([os.path.join(folder, "net.py:build"), "--batch", "2"]))["params"][0]["shape"])
            import torch
            self.assertEqual(torch.get_default_dtype(), torch.float32)
        self.assertEqual(sizes, [[4, 64], [4, 512], [4, 128]])

    def ask(self, *questions):
        lines = "".join(json.dumps(each) + "\n" for each in questions)
        program = "import sys; sys.path[0] = sys.argv[1]; from foreshard.code_server import serve; serve()"
        run = subprocess.run([sys.executable, "-c", program, PACKAGE], input=lines, capture_output=True, text=True)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertEqual(run.stderr, "")
        return [json.loads(line) for line in run.stdout.splitlines()]

    def test_the_server_answers_line_by_line_and_outlives_what_fails(self):
        out = os.path.join(self.folder.name, "m.json")
        good = {"words": [f"{self.file}:plain", "--batch", "2", "--seq", "16"], "output": out}
        broken, absent, usage, again = self.ask(
            {**good, "words": [f"{self.file}:broken"]}, {**good, "words": [f"{self.file}:nothing"]}, {**good, "words": ["x", "--bad"]}, good
        )
        self.assertIn("no such data set", broken["error"]["message"])
        self.assertIn("nothing", absent["error"]["message"])
        self.assertIn("error", usage)
        self.assertEqual(again, {"notes": [], "worked_out": False})
        with open(out) as file:
            self.assertEqual(json.load(file)["inputs"][0]["shape"], [2, 16])


if __name__ == "__main__":
    unittest.main()
