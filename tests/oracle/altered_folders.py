#!/usr/bin/env python3
"""The comparison program must see every alteration of what is no file of rows: folders of models and of invalid inputs, tables of
published numbers. Rows of training too, whose models lie beside them.

    altered_folders.py ORACLE KIND SOURCE     (KIND: models, invalid, published, collectives, training)

Copies SOURCE, alters what it states one place at a time, and demands that the program fails each alteration and passes SOURCE
unaltered. What is left out, and why, stands where it is left out. 77: SOURCE is not there.
"""
import csv
import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from altered_rows import altered, at, kind_of_place, places  # noqa: E402


def verdicts(oracle, kind, *files, only=()):
    done = subprocess.run([oracle, kind, *map(str, files), *only, "--json"], capture_output=True, text=True)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return done, {row["id"]: row["verdict"] for row in rows}


def read_json(path):
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def write_json(path, value):
    text = json.dumps(value).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)


# Of a model's truth: names of what was recorded and of its versions; counts of tensors and storages, which a report of bytes does
# not have; which module keeps what outside the blocks is summed (recordings name inputs beside what was made), and buffers and
# parameters that are saved are there anyway; "numel" and the shared groups follow from the parameters, "storage" numbers from aliases.
MODEL_LABELS = re.compile(
    r"^/(name|versions|model_type|class|attn_implementation|experts_implementation|use_cache|training|notes|batch|seq|dtype|attention|"
    r"device|storages|attention_kernels|output|shared_groups|parameter_dtype_as_built|common_prefix_ops|forward_ops_without_loss|"
    r"parameter_tensors|block_class)(/|$)|"
    r"/(saved_tensors|saved_storages|saved_buffer_bytes|saved_param_bytes|output_bytes_not_saved|batch|seq|dtype_|attention|loss|"
    r"checkpoint_blocks|error|storage|alias)$|/storage(/|$)")


def model_alterations(folder):
    """(file, part of the comparison, place, changed document)"""
    files = {"structure.json.gz": "structure", "memory.json.gz": "memory", "ops.cuda.bf16.json.gz": "cuda.bf16",
             "ops.cpu.f32.json.gz": "cpu.f32", "ops.loss_tail.bf16.json.gz": "loss_tail"}
    for name, part in files.items():
        document = read_json(folder / name)
        seen = set()
        used = set()
        if name.startswith("ops."):
            used = {str(t) for op in document["ops"] if "phase" not in op for t in op.get("out", []) if isinstance(t, int)}
        for path in places(document):
            place = "/" + "/".join(map(str, path))
            group = kind_of_place(path)
            if not path or group in seen or MODEL_LABELS.search(place):
                continue
            if part == "structure" and path[0] in ("parameters", "modules", "buffers", "blocks") and len(path) > 1 and path[1] != 0:
                continue
            if path[0] == "tensors" and (len(path) < 3 or str(path[1]) not in used or path[2] not in ("shape", "dtype")):
                continue  # of tensors that results are; others are known by what makes them
            if path[0] == "rows" and len(path) < 3:
                continue  # a row left out states nothing
            if path[0] == "blocks" and part == "memory":
                continue  # names; the structure's are compared
            if path[0] == "rows" and path[2] in ("outside_blocks", "dtype"):
                continue
            if path[0] == "ops" and (len(path) < 3 or path[-1] in ("args", "kwargs", "out") or path[2] == "phase" or "phase" in document["ops"][path[1]]):
                continue
            value = at(document, path)
            if path[0] == "ops" and path[2] == "out" or (isinstance(value, dict)):
                continue  # numbers of tensors are the recording's own
            if path[0] == "ops" and path[-1] == "t":
                continue
            seen.add(group)
            changed = json.loads(json.dumps(document))
            at(changed, path[:-1])[path[-1]] = altered(value, place)[0]
            yield name, part, place, changed


def try_models(oracle, source):
    source = Path(source)
    done, rows = verdicts(oracle, "models", source)
    if done.returncode != 0 or "fail" in rows.values():
        return None, [f"the folder itself fails: {done.stdout[:400]}"]
    unseen, tried = [], 0
    with tempfile.TemporaryDirectory() as work:
        copy = Path(work) / source.name
        shutil.copytree(source, copy)
        for name, part, place, changed in model_alterations(source):
            tried += 1
            write_json(copy / name, changed)
            done, rows = verdicts(oracle, "models", copy, only=("--only", f"{source.name}/{part}"))
            if rows.get(f"{source.name}/{part}") != "fail" or done.returncode != 1:
                unseen.append(f"{name} {place}: {rows}")
            shutil.copy(source / name, copy / name)
        summary = read_json(source / "summary.json")
        for route in ("meta_math", "cuda"):
            for key in ("forward", "backward"):
                tried += 1
                changed = json.loads(json.dumps(summary))
                changed["flops"][0][route][key] += 1
                write_json(copy / "summary.json", changed)
                done, rows = verdicts(oracle, "models", copy, only=("--only", f"{source.name}/flops"))
                if rows.get(f"{source.name}/flops") != "fail":
                    unseen.append(f"summary.json flops {route} {key}")
    return tried, unseen


def try_invalid(oracle, source):
    """Inputs that are refused, one that is taken: another exit code, another word that must be named."""
    source = Path(source)
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        (work / "not_an_object.json").write_text("[1, 2]\n")
        (work / "cut.json").write_text('{"model_type": "llama", ')
        (work / "unknown.json").write_text('{"model_type": "no_such_family"}\n')
        shutil.copy(source / "config.json", work / "fine.json")
        expect = [
            {"file": "not_an_object.json", "exit_code": 3, "must_name": ["object"]},
            {"file": "cut.json", "exit_code": 3, "must_name": ["line|position|offset"]},
            {"file": "unknown.json", "exit_code": 3, "must_name": ["no_such_family", "model_type"]},
            {"file": "fine.json", "exit_code": 0, "must_name": []},
        ]
        write_json(work / "expect.json", expect)
        done, rows = verdicts(oracle, "invalid", work)
        if done.returncode != 0:
            return None, [f"the rows themselves fail: {done.stdout[:400]}"]
        tried, unseen = 0, []
        for k, row in enumerate(expect):
            for place, value in [("exit_code", 0 if row["exit_code"] else 3), ("exit_code", row["exit_code"] + 1),
                                 ("must_name", row["must_name"] + ["nobody names this"])]:
                tried += 1
                changed = json.loads(json.dumps(expect))
                changed[k][place] = value
                write_json(work / "expect.json", changed)
                done, rows = verdicts(oracle, "invalid", work)
                if done.returncode != 1 or rows[row["file"]] != "fail" or list(rows.values()).count("fail") != 1:
                    unseen.append(f"{row['file']} {place}={value!r}: {rows}")
        return tried, unseen


def try_table(oracle, kind, source):
    """Numbers of rows that count: a third of each is outside of every bound and interval. Texts and configurations are no facts."""
    facts = {"published": ["peak_allocated_gib", "peak_active_gib", "peak_reserved_gib", "step_time_s", "tokens_per_s_per_gpu"],
             "collectives": ["time_us", "bus_gb_per_s"]}[kind]
    with open(source, newline="") as file:
        header, *rows = list(csv.reader(file))
    done, before = verdicts(oracle, kind, source)
    told = {json.loads(line)["id"]: json.loads(line)["detail"] for line in done.stdout.splitlines() if line.startswith("{")}
    changed, tried = [list(row) for row in rows], []
    each = dict.fromkeys(facts, 0)
    for row in changed:
        if before.get(row[0]) != "pass":
            continue
        for fact in facts:
            if fact not in header or not row[header.index(fact)] or each[fact] >= 4:
                continue
            if fact == "tokens_per_s_per_gpu" and row[header.index("step_time_s")]:
                continue  # one follows from the other, and the time is read
            quantity = "time_us" if kind == "collectives" else fact
            other = {"tokens_per_s_per_gpu": "step_time_s"}.get(fact, fact)
            name = next((q for q in (quantity, fact, other) if re.search(rf"(^|  ){q} ", told[row[0]])), None)
            if name is None or re.search(rf"(^|  ){name} [^(]*\([^)]*\)( inside| outside)? not counted", told[row[0]]):
                continue
            each[fact] += 1
            at_ = header.index(fact)
            tried.append((row[0], fact))
            row[at_] = str(float(row[at_]) / 3)
            break
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / "table.csv"
        out = io.StringIO()
        csv.writer(out, lineterminator="\n").writerows([header, *changed])
        path.write_text(out.getvalue())
        done, after = verdicts(oracle, kind, path)
        unseen = [f"{row} {fact}: {after.get(row)}" for row, fact in tried if after.get(row) != "fail"]
        path.write_text(",".join(header) + "\n")
        if subprocess.run([oracle, kind, str(path)], capture_output=True).returncode == 0:
            unseen.append("a table without rows")
    return len(tried), unseen


def try_training(oracle, source):
    """A row of a model whose weights and data lie beside it: losses, norms, and what each parameter ends with."""
    source = Path(source)
    rows = [json.loads(line) for line in gzip.open(source, "rt")]
    row = next(r for r in rows if r["world"] == 1 and not r["settings"].get("lora"))
    row["id"] = "row"
    tried, unseen, altered_rows, names = 0, [], [row], ["itself"]
    key_bias = re.compile(r"(k_proj|\.key|\.k)\.bias$")  # no gradient but noise: not compared
    seen = set()
    for key in ("loss", "grad_norm", "final"):
        for path in places(row[key], (key,)):
            group = kind_of_place(path)
            if group in seen or len(path) == 1 or (key == "final" and (len(path) < 3 or key_bias.search(path[1]))):
                continue
            seen.add(group)
            changed = json.loads(json.dumps(row))
            changed["id"] = f"row {len(altered_rows)}"
            at(changed, path[:-1])[path[-1]] = altered(at(row, path))[0]
            altered_rows.append(changed)
            names.append("/".join(map(str, path)))
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "training"
        folder.mkdir()
        os.symlink(source.resolve().parent / row["model"], folder / row["model"])
        path = folder / "rows.jsonl"
        for changed, name in zip(altered_rows, names):  # each alone: what rows of one run differ by widens the bounds
            path.write_text(json.dumps(changed) + "\n")
            done, rows = verdicts(oracle, "training", path)
            if name == "itself" and rows.get("row") != "pass":
                return None, [f"the row itself fails: {done.stdout[:400]} {done.stderr[:300]}"]
            if name != "itself":
                tried += 1
                if rows.get(changed["id"]) != "fail":
                    unseen.append(f"{name}: {rows}")
    return tried, unseen


def main():
    oracle, kind, source = sys.argv[1:4]
    if not Path(source).exists():
        print(f"skipped: {source} is not there")
        return 77
    tried, unseen = (try_models(oracle, source) if kind == "models" else try_invalid(oracle, source) if kind == "invalid"
                     else try_training(oracle, source) if kind == "training" else try_table(oracle, kind, source))
    for line in unseen[:30]:
        print("not seen:", line)
    print(f"{tried} altered, {len(unseen)} not seen")
    return 0 if tried and not unseen else 1


if __name__ == "__main__":
    sys.exit(main())
