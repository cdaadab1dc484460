"""A predicted memory snapshot is what Python and PyTorch's memory_viz take it for.

usage: check_snapshot.py PROGRAM MODEL MEMORY_VIZ FOLDER [FLAG...]

Python's own pickle must load the file; what the events say must lead to what the segments say. Where PyTorch's
torch/cuda/_memory_viz.py exists (MEMORY_VIZ; it needs no torch), its reports must be made from the file.
"""
import importlib.util
import json
import pathlib
import pickle
import subprocess
import sys


def replay(snapshot):
    """Reserved and requested bytes after all events."""
    reserved, blocks = 0, {}
    for event in snapshot["device_traces"][0]:
        action, size = event["action"], event["size"]
        if action in ("segment_alloc", "segment_map"):
            reserved += size
        elif action in ("segment_free", "segment_unmap"):
            reserved -= size
        elif action == "alloc":
            assert event["addr"] not in blocks, "two blocks at one address"
            blocks[event["addr"]] = size
        elif action == "free_completed":
            assert blocks.pop(event["addr"]) == size
    return reserved, blocks


def check(snapshot, prediction):
    segments = snapshot["segments"]
    reserved, blocks = replay(snapshot)
    assert reserved == sum(s["total_size"] for s in segments) == prediction["iterations"][-1]["peak_reserved_bytes"]
    held = {b["address"]: b["requested_size"] for s in segments for b in s["blocks"] if b["state"] != "inactive"}
    assert held == blocks
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == at, "blocks without gaps"
            at += block["size"]
        assert at == segment["address"] + segment["total_size"]
        allocated = [b["size"] for b in segment["blocks"] if b["state"] == "active_allocated"]
        assert sum(allocated) == segment["allocated_size"]
    names = {f["name"] for s in segments for b in s["blocks"] for f in b["frames"]}
    assert {"sharded_params", "optimizer_state"} <= names, names


def memory_viz(path, snapshot):
    if not pathlib.Path(path).is_file():
        print(f"memory_viz is not there ({path}): only Python's pickle was asked")
        return
    spec = importlib.util.spec_from_file_location("memory_viz", path)
    viz = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(viz)
    assert f"segments: {len(snapshot['segments'])}" in viz.segsum(snapshot)
    assert "cudaMalloc" in viz.trace(snapshot) or "segment_map" in viz.trace(snapshot)
    for plot in (viz.trace_plot, viz.segment_plot):
        assert "MemoryViz.js" in plot(snapshot)


def main():
    program, model, viz, folder, *flags = sys.argv[1:]
    path = str(pathlib.Path(folder) / ("predicted" + "".join(flags).replace("/", "_") + ".pickle"))
    done = subprocess.run([program, "simulate", model, "--json", "--snapshot", path] + flags, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with open(path, "rb") as file:
        snapshot = pickle.load(file)
    check(snapshot, json.loads(done.stdout))
    memory_viz(viz, snapshot)


main()
