"""The functions of the package: jobs in, answers as objects out. The work is done by the program's own verbs, in process.

A job is a dictionary with the keys of a job file (docs/formats/job.md), nested or flat ("fsdp.runtime"), or the path of
a job file; a model is what `capture` gives, or the path of a config.json, a folder that holds one, a .pt2 archive or a
model.json. Each function gives what the verb of its name prints with --json, byte for byte (`answer.text`).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from typing import Any, Iterable, Mapping, Sequence

from ._output import whole_file
from ._parts import run_methods, run_parts
from ._picture import draw, lanes_of
from ._verbs import kept as _kept
from ._verbs import run as _run
from ._verbs import verb as _verb
from .errors import Error

Model = Any  # CapturedModel | str | os.PathLike[str]
Job = Any  # Mapping[str, Any] | str | os.PathLike[str] | None


# --------------------------------------------------------------------------------------------------------------- jobs


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (str, os.PathLike)):
        return json.dumps(os.fspath(value), ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(str(k))} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Iterable):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    raise Error({
        "code": "wrong_type", "message": "a job holds no such value",
        "expected": "texts, numbers, booleans, lists and dictionaries", "got": repr(type(value)),
    })  # fmt: skip


def _settings(job: Mapping[str, Any]) -> list[str]:
    """ "section.key=value" for every key; sections may be nested dictionaries."""
    out = []
    for key, value in job.items():
        if isinstance(value, Mapping) and "." not in key:
            out += [f"{key}.{inner}={_toml(v)}" for inner, v in value.items()]
        else:
            out.append(f"{key}={_toml(value)}")
    return out


def _written(model: Any) -> str:
    """The file of a captured model: named by what is in it, so that every process that is sent the model has the same."""
    text = model.to_json()
    return _kept(hashlib.sha256(text.encode()).hexdigest()[:16], text)


def _source(model: Model) -> str:
    if isinstance(model, (str, os.PathLike)):
        path = os.fspath(model)
        return path if path.startswith("timm:") else os.path.abspath(path)
    if hasattr(model, "to_json"):
        return _written(model)
    raise Error({
        "code": "wrong_type", "message": "this is no model",
        "expected": "what foreshard.capture gives, or the path of a model", "got": repr(type(model)),
        "hint": "a module is captured first: foreshard.capture(module, *args)",
    })  # fmt: skip


def _job(model: Model, job: Job) -> list[str]:
    """The arguments of a verb that say what the job is."""
    if isinstance(model, (str, os.PathLike)) and os.fspath(model).endswith(".toml"):
        file, settings = os.path.abspath(os.fspath(model)), []  # a job file names its model itself
    elif isinstance(job, (str, os.PathLike)):
        return [os.path.abspath(os.fspath(job)), "--set", f"model.source={_toml(_source(model))}"]
    else:
        file, settings = _source(model), []
    if job is not None and not isinstance(job, Mapping):
        raise Error({
            "code": "wrong_type", "message": "this is no job", "expected": "a dictionary, or the path of a job file",
            "got": repr(type(job)),
        })  # fmt: skip
    for setting in _settings(job or {}):
        settings += ["--set", setting]
    return [file, *settings]


# ----------------------------------------------------------------------------------------------------------- answers


def _amount(value: float, units: tuple[tuple[float, str], ...]) -> str:
    for size, unit in units:
        if abs(value) >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} {units[-1][1]}"


def _time(ns: float) -> str:
    return _amount(ns, ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1, "ns")))


def _bytes(value: float) -> str:
    return _amount(value, ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B")))


class Answer:
    """What a verb says.

    Attributes:
        text: the JSON, byte for byte what the program prints with --json; document: the same, parsed.
        notes: what it remarks beside, a line each.
        exit_code: of the verb: 0, or 4 where nothing fits, 5 where the answer is a part of one.
    """

    def __init__(self, arguments: Sequence[str], answer: tuple[int, str, str] | None = None):
        self._arguments = list(arguments)
        self.exit_code, self.text, notes = answer or _verb(arguments)
        self.notes: list[str] = notes.splitlines()
        self.document: dict[str, Any] = json.loads(self.text)

    def __getitem__(self, key: str) -> Any:
        return self.document[key]

    def __repr__(self) -> str:
        shown = {k: v for k, v in self.document.items() if isinstance(v, (int, float, str))}
        return f"<{type(self).__name__} {shown}>"


class Prediction(Answer):
    """What a training step will take (docs/formats/prediction.md in `document`)."""

    @property
    def fits(self) -> bool:
        """Whether the card's memory is enough."""
        return self.document["fits"]

    @property
    def step_time(self) -> float:
        """Seconds of the steady step."""
        return self.document["step_time_ns"]["value"] * 1e-9

    @property
    def step_time_interval(self) -> tuple[float, float]:
        """Seconds between which nine of ten real runs should lie."""
        step = self.document["step_time_ns"]
        return step["low"] * 1e-9, step["high"] * 1e-9

    @property
    def peak_allocated(self) -> int:
        """Bytes."""
        return self.document["memory"]["peak_allocated_bytes"]

    @property
    def peak_reserved(self) -> int:
        """Bytes that PyTorch's allocator takes from the card."""
        return self.document["memory"]["peak_reserved_bytes"]

    @property
    def tokens_per_second(self) -> float | None:
        """Of all ranks; None for models without tokens."""
        rate = self.document.get("tokens_per_s")
        return rate["value"] if rate else None

    @property
    def mfu(self) -> float | None:
        """Share of the card's peak that the model's own products use."""
        share = self.document.get("mfu")
        return share["value"] if share else None

    def explain(self) -> str:
        """Who holds what at the peak, why communication is exposed, which change removes how much: as text."""
        _, text, notes = _run([self._arguments[0], "--explain", *self._arguments[1:]])
        return text or notes

    def save_timeline(self, path: str | os.PathLike[str]) -> str:
        """Writes the timeline, a span a kernel: .fst, or .json and .json.gz for Perfetto. Returns the path."""
        path = os.path.abspath(os.fspath(path))
        flag = "--timeline" if path.endswith(".fst") else "--trace"
        _verb([self._arguments[0], flag, path, *self._arguments[1:]])
        return path

    def picture(self) -> str:
        """The steady step as SVG: what ran when, on which stream."""
        with tempfile.TemporaryDirectory(prefix="foreshard-") as folder:
            trace = os.path.join(folder, "step.json")
            _verb([self._arguments[0], "--per-unit", "--trace", trace, *self._arguments[1:]])
            with open(trace, encoding="utf-8") as file:
                events = json.load(file)
        return draw(lanes_of(events, self.document["step_time_ns"]["value"]), self._headline())

    def _headline(self) -> str:
        verdict = "fits" if self.fits else "does not fit"
        return f"{verdict}, {_bytes(self.peak_reserved)} reserved, {_time(self.step_time * 1e9)} a step"

    def _repr_html_(self) -> str:
        return self.picture()

    def __repr__(self) -> str:
        return f"<Prediction {self._headline()}>"


class Plan(Answer):
    """What each rank will do, instruction by instruction (docs/formats/plan.md in `document`)."""

    @property
    def units(self) -> list[dict[str, Any]]:
        return self.document["units"]

    @property
    def counts(self) -> dict[str, int]:
        """Collectives and copies of one iteration."""
        return self.document["counts"]

    def __repr__(self) -> str:
        return f"<Plan {len(self.units)} units, {self.counts}>"


class Sweep(Answer):
    """Points of a grid of jobs (docs/formats/sweep.md in `document`)."""

    @property
    def points(self) -> list[dict[str, Any]]:
        return self.document["points"]

    @property
    def front(self) -> list[dict[str, Any]]:
        """Points that no other beats in both time and memory, the fastest first."""
        return sorted((p for p in self.points if p["pareto"]), key=lambda p: p["step_time_ns"])

    def __repr__(self) -> str:
        lines = [f"<Sweep {len(self.points)} points, {len(self.front)} on the front>"]
        for point in self.front:
            settings = ", ".join(f"{k}={v}" for k, v in point["set"].items())
            lines.append(f"  {_time(point['step_time_ns'])}  {_bytes(point['peak_reserved_bytes'])}  {settings}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        keys = list(self.points[0]["set"]) if self.points else []
        head = "".join(f"<th>{k}</th>" for k in ["step", "reserved", *keys])
        rows = "".join(
            f"<tr><td>{_time(p['step_time_ns'])}</td><td>{_bytes(p['peak_reserved_bytes'])}</td>"
            + "".join(f"<td>{p['set'][k]}</td>" for k in keys)
            + "</tr>"
            for p in self.front
        )
        return f"<table><tr>{head}</tr>{rows}</table>"


class Comparison(Answer):
    """Two timelines side by side (docs/compare.md in `document`)."""


class Schedule(Answer):
    """What is gathered, kept and reduced when (foreshard.schedule/1 in `document`); `apply` sets it on a module."""

    @property
    def units(self) -> list[dict[str, Any]]:
        return self.document["units"]


class Fit(Answer):
    """The jobs that train a model fastest on some GPUs (foreshard.fit/1 in `document`)."""

    @property
    def choices(self) -> list[dict[str, Any]]:
        """Best first, of each method; `set` holds the settings that make the job, `files` what was written."""
        return self.document["choices"]

    @property
    def fits(self) -> bool:
        """Whether any job does."""
        return bool(self.choices)

    def longest_context(self, method: str = "full") -> int | None:
        """Tokens of the longest sequence that fits; None where the method could not be planned."""
        found = [entry["tokens"] for entry in self.document["longest_context"] if entry["method"] == method]
        return found[0] if found else None

    def __repr__(self) -> str:
        lines = [f"<Fit {len(self.choices)} choices on {self.document['gpus']}>"]
        for c in self.choices:
            lines.append(
                f"  {c['method']}  {c['tokens_per_s']:,.0f} tokens/s  {_bytes(c['peak_reserved_bytes'])}  "
                f"{c['layout']}; {c['recomputation']}"
            )
        return "\n".join(lines)


class Export(Answer):
    """A job as other programs' configurations (foreshard.export/1 in `document`)."""

    @property
    def files(self) -> dict[str, str]:
        """Text by name."""
        return {file["name"]: file["text"] for tool in self.document["exports"] for file in tool["files"]}

    @property
    def untold(self) -> dict[str, list[str]]:
        """By file: what of the job it cannot say."""
        return {file["name"]: file["untold"] for tool in self.document["exports"] for file in tool["files"]}


# --------------------------------------------------------------------------------------------------------- functions


def simulate(model: Model, job: Job = None) -> Prediction:
    """Plans a job and simulates its training step, in process; other threads run on meanwhile.

    Args:
        model: what `capture` gives, or the path of a model; or a job file (.toml), which names its model.
        job: keys of a job, e.g. {"fsdp": {"runtime": "fsdp2"}, "cluster.world_size": 64}; or the path of a job file.

    Raises:
        Error: with the fields of the verb's error.
    """
    return Prediction(["simulate", *_job(model, job)])


def plan(model: Model, job: Job = None) -> Plan:
    """The plan of a job: units, layouts, execution order, every instruction. Arguments and errors as of `simulate`."""
    return Plan(["plan", *_job(model, job)])


def sweep(
    model: Model,
    job: Job = None,
    over: Mapping[str, Iterable[Any]] | None = None,
    *,
    auto: bool = False,
    budget: str = "",
    executor: Any = None,
    parts: int = 0,
    threads: int = 0,
) -> Sweep:
    """Every combination of `over` planned and simulated.

    Args:
        model, job: as of `simulate`.
        over: key of the job to the values that it takes; auto: more of them, chosen by model and card.
        budget: memory of one card in place of the profile's ("72GiB").
        executor: any concurrent.futures.Executor (a process pool, Dask's, Ray's). The grid is cut into `parts`, sent as
            text (a captured model with it; another model's path must be there for the workers too) and merged as
            `foreshard sweep merge` does. What a worker that dies was working on is done again.
        parts: into how many; 0: four for each worker the executor tells of, at least 8.
        threads: of each part; 0: one a core, with an executor one.
    """
    arguments = ["sweep", *_job(model, job)]
    for key, values in (over or {}).items():
        arguments += ["--over", f"{key}={_axis(values)}"]
    if auto:
        arguments.append("--auto")
    if budget:
        arguments += ["--budget", budget]
    if executor is None:
        return Sweep([*arguments, "--threads", str(threads)])
    return Sweep(arguments, run_parts(arguments, model, executor, parts, threads or 1))


def _axis(values: Iterable[Any]) -> str:
    return ",".join(v if isinstance(v, str) else _toml(v) for v in values)


def schedule(model: Model, job: Job = None, *, budget: str = "") -> Schedule:
    """The fastest schedule within a budget of memory: `foreshard schedule JOB --budget 72GiB`.

    Raises:
        Error: also where the budget is less than can work; its hint names the least that does.
    """
    return Schedule(["schedule", *_job(model, job), *(["--budget", budget] if budget else [])])


def fit(
    model: Model,
    gpus: str,
    job: Job = None,
    *,
    methods: Iterable[str] = ("full",),
    context: int | str = "",
    tokens_per_step: int = 0,
    emit: Iterable[str] = (),
    out: str | os.PathLike[str] = "",
    threads: int = 0,
    executor: Any = None,
) -> Fit:
    """The jobs that train a model fastest on some GPUs: `foreshard fit MODEL --gpus 8xh100-sxm-80`.

    Args:
        model, job: as of `simulate`; what the search decides (layout, recomputation, batch) is not taken from the job.
        gpus: "8xh100-sxm-80", "2x8xa100-sxm-80" for two nodes, or with the path of a calibrated profile.
        methods: "full", "lora".
        context: tokens in a sequence; "max": the longest that fits.
        tokens_per_step: of all ranks, by accumulation; 0: as many as fit.
        emit: programs whose files are written ("torchtitan", "accelerate", "transformers", "trl"); only jobs that all
            of them can be told are choices. Needs `out`, the folder for the files.
        threads: 0: one a core.
        executor: as of `sweep`: a part each method, done again where its worker dies. It writes no files (`export` does).
    """
    methods = [methods] if isinstance(methods, str) else list(methods)
    arguments = ["fit", *_job(model, job), "--gpus", gpus, "--threads", str(threads)]
    for flag, value in (("--context", context), ("--tokens-per-step", tokens_per_step or ""),
                        ("--emit", ",".join(emit)), ("--out", os.fspath(out))):  # fmt: skip
        if value != "":
            arguments += [flag, str(value)]
    if executor is None:
        return Fit([*arguments, "--method", ",".join(methods)])
    if os.fspath(out):
        raise Error({
            "code": "contradiction", "message": "files of a fit are not written by an executor's workers", "place": "out",
            "expected": "executor or out", "got": "both", "hint": "export the choice that you take: foreshard.export",
        })  # fmt: skip
    return Fit(arguments, run_methods(arguments, model, executor, methods))


def export(model: Model, job: Job = None, *, tools: Iterable[str], out: str | os.PathLike[str] = "") -> Export:
    """A job as the files that start it elsewhere: `foreshard export JOB --as torchtitan,accelerate,transformers,trl`.

    Args:
        model, job: as of `simulate`.
        tools: the programs; out: the folder to write to, else the files are in the answer alone.
    """
    where = ["--out", os.fspath(out)] if os.fspath(out) else []
    return Export(["export", *_job(model, job), "--as", ",".join(tools), *where])


def compare(a: Any, b: Any, *, force: bool = False) -> Comparison:
    """Two timelines: predictions or paths (.fst, Chrome traces, memory snapshots, job files), as `foreshard compare`."""
    with tempfile.TemporaryDirectory(prefix="foreshard-") as folder:
        files = []
        for name, side in (("a", a), ("b", b)):
            is_prediction = isinstance(side, Prediction)
            files.append(side.save_timeline(os.path.join(folder, f"{name}.fst")) if is_prediction else os.fspath(side))
        return Comparison(["compare", *files, *(["--force"] if force else [])])


def view(prediction: Prediction, path: str | os.PathLike[str] = "") -> str:
    """Writes the prediction's picture (SVG) and returns its path; a temporary file where none is named."""
    if not path:
        handle, path = tempfile.mkstemp(suffix=".svg", prefix="foreshard-")
        os.close(handle)
    picture = prediction.picture()
    with whole_file(path) as file:
        file.write(picture)
    return os.fspath(path)
