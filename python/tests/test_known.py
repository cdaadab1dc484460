"""Values of the batch decide sizes and branches of a capture; what parameters have a part in is known to nobody."""

from __future__ import annotations

import os
import sys
import types
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.environ.get("FORESHARD_PACKAGE", os.path.dirname(HERE)), HERE]

import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from foreshard._autograd import python_apply
from foreshard.capture import CaptureError, capture
from foreshard.capture.known import LARGEST, beside_a_script, carry

IDS = torch.tensor([[5, 7, 7, 2, 0, 0], [1, 2, 3, 4, 5, 0], [9, 0, 0, 0, 0, 0]])
LABELS = torch.where(IDS > 4, IDS, -100)  # five are chosen


class Counted(dict):
    """A class method that is in C, as autograd.Function's `apply` since PyTorch 2.15."""

    apply = dict.__dict__["fromkeys"]


class ApplyOfFunctions(unittest.TestCase):
    def test_one_in_c_gets_one_in_python_that_takes_the_class(self):
        apply = python_apply(Counted)
        self.assertIsInstance(apply, types.FunctionType)
        self.assertIs(python_apply(Counted), apply)
        self.assertEqual(Counted.apply("ab", 1), {"a": 1, "b": 1})
        self.assertIsInstance(type("Sub", (Counted,), {}).apply("a"), Counted)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(10, 8), nn.Linear(8, 10)
        self.register_buffer("threshold", torch.tensor(4))


def shapes(model, name):
    return [[o["shape"] for o in op["out"] if o] for op in model.document["ops"] if op["op"].startswith(name)]


def captured(forward, *batch, **more):
    kind = type("Case", (Body,), {"forward": forward})
    return capture(kind(), *(batch or (IDS, LABELS)), loss=lambda out: out.float().sum(), **more)


class Sizes(unittest.TestCase):
    def test_a_mask_of_labels_chooses_as_many_rows(self):
        def forward(self, ids, labels):
            chosen = labels != -100
            return F.cross_entropy(self.head(self.table(ids)[chosen]), labels[chosen])

        model = captured(forward)
        self.assertEqual(shapes(model, "aten.index.Tensor"), [[[5, 8]], [[5]]])
        self.assertTrue(any("hang on the values of this batch, in the root module" in note for note in model.notes), model.notes)
        self.assertEqual(model.allocator if model.device == "virtual" else {}, {})  # the device would choose nothing

    def test_a_library_that_leaves_fake_tensors_alone_asks_for_values_that_are_known(self):
        """As Transformers does before it drops a mask that masks nothing."""
        library = types.ModuleType("transformers.utils.import_utils")
        library.is_fake_tensor = asks = lambda tensor: isinstance(tensor, FakeTensor)

        def forward(self, ids, labels):
            mask = ids >= 0
            x = self.table(ids)
            return x if not library.is_fake_tensor(mask) and mask.all() else x * mask[..., None]

        with mock.patch.dict(sys.modules, {library.__name__: library}):
            self.assertEqual(shapes(captured(forward, device="fake"), "aten.mul"), [])
            unknown = [torch.empty_like(t, device="meta") for t in (IDS, LABELS)]
            self.assertEqual(len(shapes(captured(forward, *unknown, device="fake"), "aten.mul")), 1)
        self.assertIs(library.is_fake_tensor, asks)

    def test_beside_a_script_masks_of_the_batch_choose_all(self):
        """As where the script runs; lengths that it has read are those that it says."""

        def forward(self, ids, labels, ends):
            chosen = self.table(ids)[labels != -100]
            return chosen.sum() + sum(part.sum() for part in self.table(ids).flatten(0, 1).split(ends.tolist()))

        values = {}
        batch = [torch.empty_like(t, device="meta") for t in (IDS, LABELS)] + [torch.empty(2, dtype=torch.int64, device="meta")]
        for stand_in, tensor in zip(batch, (IDS, LABELS, torch.tensor([7, 11]))):
            values[id(stand_in)] = tensor
            carry(stand_in, tensor)
        with beside_a_script(lambda tensor: values.get(id(tensor))):
            model = captured(forward, *batch, device="fake", strict=False)
        self.assertEqual(shapes(model, "aten.index.Tensor"), [[[18, 8]]])
        self.assertEqual(shapes(model, "aten.split_with_sizes"), [[[7, 8], [11, 8]]])
        self.assertEqual(shapes(captured(forward, IDS, LABELS, torch.tensor([7, 11])), "aten.index.Tensor"), [[[5, 8]]])

    def test_places_repeats_and_distinct_numbers(self):
        def forward(self, ids, labels):
            x = self.table(ids)
            row, column = torch.where(labels != -100)
            repeated = torch.repeat_interleave(x[:, 0], (labels != -100).sum(1), dim=0)
            return x[row, column].sum() + repeated.sum() + self.table(torch.unique(ids)).sum()

        model = captured(forward)
        self.assertEqual(shapes(model, "aten.nonzero"), [[[5, 2]]])
        self.assertEqual(shapes(model, "aten._unique2")[0][0], [8])
        self.assertIn([[5, 8]], shapes(model, "aten.index_select"))

    def test_masked_select_and_a_mask_within_an_index(self):
        def forward(self, ids, labels):
            x = self.table(ids)
            chosen = torch.masked_select(x, (labels != -100)[..., None].expand_as(x))
            return chosen.sum() + x.transpose(0, 2)[:, (labels != -100).t()].sum()

        model = captured(forward)
        self.assertEqual(shapes(model, "aten.masked_select"), [[[40]]])
        self.assertEqual(shapes(model, "aten.index.Tensor"), [[[8, 5]]])

    def test_a_mask_that_was_filled_in_place(self):
        def forward(self, ids):
            mask = torch.empty(ids.shape, dtype=torch.bool, device=ids.device).fill_(False)
            mask[:, :2] = True
            mask[0].logical_not_()
            return self.head(self.table(ids)[mask])

        self.assertEqual(shapes(captured(forward, IDS), "aten.index.Tensor"), [[[4 + 2 + 2, 8]]])

    def test_random_masks_are_drawn_and_the_scripts_numbers_stay(self):
        states = []

        def forward(self, ids):
            states.append(torch.get_rng_state())
            mask = torch.rand(64, device=ids.device) < 0.5
            states.append(torch.get_rng_state())
            return self.head(self.table(ids)).mean() * self.table(torch.arange(64, device=ids.device)[mask] % 10).sum()

        rows = shapes(captured(forward, IDS, device="fake"), "aten.index.Tensor")[0][0][0]
        self.assertTrue(16 < rows < 48, rows)
        self.assertTrue(torch.equal(*states))


    def test_copies_of_what_is_gone_go(self):
        def forward(self, ids):
            wide = torch.zeros(1 << 20, dtype=torch.int64, device=ids.device)
            for turn in range(100):  # 8 MiB each
                wide = wide + turn
            return self.table(ids[:, : int(wide.max()) // 4950 * 2])

        self.assertEqual(shapes(captured(forward, IDS), "aten.embedding"), [[[3, 2, 8]]])


class Branches(unittest.TestCase):
    def test_the_longest_row_and_a_buffers_number(self):
        def forward(self, ids, labels):
            longest = int(ids.ne(0).sum(1).max())
            x = self.table(ids[:, :longest])
            if (labels > self.threshold).any() and not bool((ids > 9).any()):
                x = self.head(x)
            return x

        model = captured(forward)
        self.assertEqual(shapes(model, "aten.embedding"), [[[3, 5, 8]]])
        self.assertEqual(len(shapes(model, "aten.addmm")), 1)

    def test_lists_are_copied_at_once_on_both_devices(self):
        def forward(self, ids, labels):
            x = self.table(ids)
            return sum(x[row, :length].sum() for row, length in enumerate(ids.ne(0).sum(1).tolist()))

        model = captured(forward)
        self.assertIn("hang on the values", model.notes[0])
        self.assertEqual([rows[0][0] for rows in shapes(model, "aten.slice.Tensor") if rows[0][-1:] == [8]], [4, 5, 1])
        self.assertEqual([note for note in model.notes if "differ" in note], [])

    def test_constants_are_no_matter_of_the_batch(self):
        def forward(self, ids):
            places = torch.arange(6, device=ids.device)
            return self.table(ids[:, places > 2] if bool((places.diff() == 1).all()) else ids)

        model = captured(forward, IDS.to("meta"))
        self.assertEqual(shapes(model, "aten.embedding"), [[[3, 3, 8]]])
        self.assertEqual([note for note in model.notes if "values" in note], [])

    def test_packed_rows_are_as_long_as_their_lengths(self):
        class Reads(Body):
            def __init__(self):
                super().__init__()
                self.lstm = nn.LSTM(8, 8, batch_first=True)

            def forward(self, ids):
                lengths = ids.ne(0).sum(1).cpu()
                rows = nn.utils.rnn.pack_padded_sequence(self.table(ids), lengths, batch_first=True, enforce_sorted=False)
                return self.lstm(rows)[0].data

        model = capture(Reads(), IDS, loss=lambda out: out.sum(), device="fake")
        self.assertEqual([note for note in model.notes if "counts as full" in note], [])


class Guessed(unittest.TestCase):
    def test_experts_take_their_share_of_the_tokens(self):
        class Experts(Body):
            def __init__(self):
                super().__init__()
                self.router = nn.Linear(8, 4)
                self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

            def forward(self, ids):
                x = self.table(ids).flatten(0, 1)
                weight, choice = self.router(x).softmax(-1).topk(2)
                out = torch.zeros_like(x)
                for number, expert in enumerate(self.experts):
                    row, place = torch.where(choice == number)
                    out.index_add_(0, row, expert(x[row]) * weight[row, place, None])
                return out

        model = capture(Experts(), IDS, loss=lambda out: out.sum(), strict=False, chosen=1 / 4)
        rows = [op["out"][0]["shape"] for op in model.document["ops"] if op["op"] == "aten.addmm.default"]
        self.assertEqual(rows, [[18, 4], *[[9, 8]] * 4])  # 18 tokens, two experts each
        self.assertTrue(any("choose 0.25 of their elements" in note for note in model.notes), model.notes)

    def test_routing_is_balanced_where_no_share_is_told(self):
        """Whatever counts, sorts and splits what is chosen; other ranks send what this one sends itself."""

        class Experts(Body):
            def __init__(self):
                super().__init__()
                self.router = nn.Linear(8, 4)
                self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

            def forward(self, ids, count):
                x = self.table(ids).flatten(0, 1)
                choice = self.router(x).topk(2).indices.flatten()
                sizes = count(choice)
                order = choice.argsort()
                return torch.cat([expert(part) for expert, part in zip(self.experts, x[order // 2].split(sizes.tolist()))])

        def ends(choice):
            return torch.searchsorted(choice.sort().values, torch.arange(5, device=choice.device)).diff()

        counts = {
            "bincount": lambda choice: torch.bincount(choice, minlength=4), "ends": ends,
            "histc": lambda choice: torch.histc(choice.float(), bins=4, min=0, max=3).int(),
            "on the device": lambda choice: torch.histc(choice, bins=4, min=0, max=3),
            "one_hot": lambda choice: nn.functional.one_hot(choice, 4).sum(0),
            "masks": lambda choice: torch.stack([(choice == number).sum() for number in range(4)]),
            "scatter_add": lambda choice: torch.zeros(4, dtype=torch.long, device=choice.device).scatter_add_(0, choice, torch.ones_like(choice)),
        }  # fmt: skip
        for name, count in counts.items():
            with self.subTest(name):
                model = capture(Experts(), IDS[:, :5], count, loss=lambda out: out.sum(), strict=False)
                rows = [op["out"][0]["shape"][0] for op in model.document["ops"] if op["op"] == "aten.addmm.default"]
                self.assertEqual(rows, [15, 8, 7, 8, 7])  # 15 tokens, two experts each: the two more lie apart
                self.assertTrue(any("balanced" in note for note in model.notes), model.notes)
        with self.assertRaisesRegex(CaptureError, "needs the values"):
            capture(Experts(), IDS, counts["bincount"], loss=lambda out: out.sum())

    def test_a_share_of_more_than_all(self):
        with self.assertRaisesRegex(CaptureError, "no share"):
            captured(lambda self, ids: self.table(ids), IDS, chosen=2)


class Unknown(unittest.TestCase):
    def refused(self, forward, *batch):
        with self.assertRaisesRegex(CaptureError, "needs the values") as told:
            captured(forward, *batch)
        return told.exception

    def test_sizes_alone_have_no_values(self):
        error = self.refused(lambda self, ids: self.table(ids)[ids > 0], IDS.to("meta"))
        self.assertIn("lies on the CPU", error.hint)

    def test_what_parameters_have_a_part_in(self):
        self.refused(lambda self, ids: self.table(ids)[self.table(ids)[..., 0] > 0], IDS)

    def test_a_known_tensor_that_is_written_over(self):
        def forward(self, ids):
            mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
            mask[:, :] = self.table(ids)[..., 0] > 0
            return self.table(ids)[mask]

        self.refused(forward, IDS)

    def test_what_is_too_large(self):
        def forward(self, ids):
            wide = ids.view(-1, 1).expand(-1, LARGEST).ne(0)
            return self.table(wide.sum(0).clone().new_zeros(3, dtype=torch.long)).sum() * self.table(ids)[wide[:, :6].clone()[:3] | (wide.all())].sum()

        self.refused(forward, IDS)


if __name__ == "__main__":
    unittest.main()
