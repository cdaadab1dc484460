#!/usr/bin/env python3
"""`foreshard trace analyse` against Meta's Holistic Trace Analysis (HTA): the same files, both answers, the difference.

trace_hta.py --foreshard build/release/bin/foreshard FILE...        (Kineto JSON, .gz, or a .tar.gz of ranks)

Needs `pip install HolisticTraceAnalysis` in the Python that runs it. Compared, in percent of the time from the first to
the last work: computing, other work, idle; in percent of communication: overlap with computing; per stream, in percent of
its idle time: waiting for the host, between kernels, other. HTA rounds times to microseconds; that is switched off here
(HTA_DISABLE_NS_ROUNDING). Exit code 1 if anything differs by more than --limit percentage points.
"""
import argparse
import contextlib
import io
import json
import logging
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import warnings

os.environ.setdefault("HTA_DISABLE_NS_ROUNDING", "1")
warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)


def rank_of(path, otherwise):
    import gzip
    opened = gzip.open if str(path).endswith(".gz") else open
    with opened(path, "rt", errors="replace") as file:
        return json.load(file).get("distributedInfo", {}).get("rank", otherwise)


def ours(program, files):
    done = subprocess.run([program, "trace", "analyse", *map(str, files), "--json", "--quiet"], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    table = {}
    for rank in json.loads(done.stdout)["ranks"]:
        length, row = rank["length_ns"], {}
        if length:
            row["compute"] = 100 * rank["compute_ns"] / length
            row["other work"] = 100 * (rank["busy_ns"] - rank["compute_ns"]) / length
            row["idle"] = 100 * rank["idle_ns"] / length
        if rank["comm_ns"]:
            row["overlap"] = 100 * rank["overlap_ns"] / rank["comm_ns"]
        for stream in rank["streams"]:
            number = stream["label"].split()[-1]
            total = sum(stream["idle"].values())
            for name, key in (("host", "host_ns"), ("kernel", "kernel_ns"), ("other", "other_ns")):
                if total:
                    row[f"stream {number} idle: {name}"] = 100 * stream["idle"][key] / total
        table[rank["rank"]] = row
    return table


def without_false_launches(analysis, rank):
    """HTA 0.5 takes the file's first event for the launch of every kernel whose launch the file lacks (its index 0 stands
    for "not there" as well): such kernels get no launch here. Returns how many they are."""
    frame = analysis.t.get_trace(rank)
    false = (frame["stream"] != -1) & (frame["index_correlation"] == 0) & (frame["correlation"] != frame["correlation"].iloc[0])
    frame.loc[false, "index_correlation"] = -1
    return int(false.sum())


def hta(files, mend=True):
    from hta.trace_analysis import TraceAnalysis
    by_rank = {rank_of(file, i): str(file) for i, file in enumerate(files)}
    with contextlib.redirect_stdout(io.StringIO()):
        analysis = TraceAnalysis(trace_files=by_rank, trace_dir="", include_last_profiler_step=True)
        table = {rank: {} for rank in by_rank}
        for _, line in analysis.get_temporal_breakdown(visualize=False).iterrows():
            length = line["kernel_time(us)"]
            table[line["rank"]] |= {"compute": 100 * line["compute_time(us)"] / length,
                                    "other work": 100 * line["non_compute_time(us)"] / length,
                                    "idle": 100 * line["idle_time(us)"] / length}
        for rank in by_rank:
            if mend:
                without_false_launches(analysis, rank)
            try:
                idle = analysis.get_idle_time_breakdown(ranks=[rank], visualize=False)[0]
            except (KeyError, ValueError):
                continue
            sums = idle.groupby("stream")["idle_time"].sum()
            for _, line in idle.iterrows():
                name = line["idle_category"].replace("_wait", "")
                if sums[line["stream"]]:
                    table[rank][f"stream {int(line['stream'])} idle: {name}"] = (
                        100 * line["idle_time"] / sums[line["stream"]])
        try:
            for _, line in analysis.get_comm_comp_overlap(visualize=False).iterrows():
                if line["comp_comm_overlap_pctg"] == line["comp_comm_overlap_pctg"]:
                    table[int(line["rank"])]["overlap"] = line["comp_comm_overlap_pctg"]
        except (KeyError, ValueError, ZeroDivisionError):
            pass  # no communication
    return table


def compare(name, files, a):
    mine, theirs = ours(a.foreshard, files), hta(files, not a.as_it_is)
    worst = 0.0
    for rank in sorted(theirs):
        keys = [key for key in theirs[rank] if key in mine.get(rank, {}) or theirs[rank][key] != 0]
        for key in keys:
            left, right = mine.get(rank, {}).get(key, 0.0), theirs[rank][key]
            worst = max(worst, abs(left - right))
            if a.verbose or abs(left - right) > a.limit:
                print(f"  {name} rank {rank} {key:28}{left:11.4f} %{right:11.4f} %{left - right:+11.4f}")
    count = sum(len(row) for row in theirs.values())
    print(f"{name:44}{len(theirs):3} ranks {count:4} numbers, largest difference {worst:8.4f} points")
    return worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--foreshard", required=True)
    parser.add_argument("--limit", type=float, default=0.1, help="percentage points")
    parser.add_argument("--verbose", action="store_true", help="every number: ours, HTA's, difference")
    parser.add_argument("--as-it-is", action="store_true", help="keep HTA's false launches (see without_false_launches)")
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    a = parser.parse_args()
    worst = 0.0
    for path in a.files:
        if ".tar" not in path.name:
            worst = max(worst, compare(path.name, [path], a))
            continue
        with tempfile.TemporaryDirectory() as folder, tarfile.open(path) as archive:
            archive.extractall(folder)
            files = [f for f in sorted(pathlib.Path(folder).rglob("*.json*")) if not f.name.startswith("._")]
            worst = max(worst, compare(path.name, files, a))
    return 1 if worst > a.limit else 0


if __name__ == "__main__":
    sys.exit(main())
