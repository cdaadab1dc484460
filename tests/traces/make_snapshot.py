"""Writes tests/data/traces/snapshot.pickle: the structure that torch.cuda.memory._dump_snapshot documents, by hand.

Two allocations of 1000 and 500 bytes in a segment of 4096, the first freed, an out-of-memory; an allocation of 200 bytes that
is older than the history. usage: make_snapshot.py FILE
"""
import pickle
import sys

BASE = 1_700_000_000_000_000
FRAME = {"filename": "train/model.py", "line": 12, "name": "forward"}
CPP = {"filename": "??", "line": 0, "name": "c10::cuda::malloc"}


def event(action, address, size, after_us, frames=()):
    return {"action": action, "addr": address, "size": size, "stream": 0, "frames": list(frames), "time_us": BASE + after_us}


SNAPSHOT = {
    "segments": [
        {"device": 0, "address": 4096, "total_size": 4096, "stream": 0, "segment_type": "small", "allocated_size": 700,
         "active_size": 700, "requested_size": 700,
         "blocks": [{"size": 700, "requested_size": 700, "address": 4096, "state": "active_allocated", "frames": []}]}
    ],
    "device_traces": [[
        event("segment_alloc", 4096, 4096, 0),
        event("alloc", 4096, 1000, 10, [CPP, FRAME]),
        event("alloc", 5096, 500, 30, [CPP]),
        event("free_requested", 4096, 1000, 40),
        event("free_completed", 4096, 1000, 45),
        event("oom", 0, 9999999, 50),
    ], []],
    "allocator_settings": {"expandable_segments": False},
}

if __name__ == "__main__":
    with open(sys.argv[1], "wb") as file:
        pickle.dump(SNAPSHOT, file, protocol=4)
