"""A ``Report`` in words and tables of at most 100 columns; long values and paths are never cut.

What flows in: a report. What flows out: text, the same for the same job, files and checkpoint.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from ..errors import StateError
from ..read.files import shared_files
from ..state import FORMAT, NEW_STREAM
from . import Report
from .degrees import Degree, Mesh
from .resume import Resume
from .sources import Reading, assets_of

WIDTH = 100
LONGEST_NAME = 28


def check_text(report: Report) -> str:
    """The whole report; its last line is the answer."""
    train, validation, mesh = report.train, report.validation, report.mesh
    notes = "share: of tokens; a lane: chunks a lane and epoch; tokens: of one epoch, estimated from a sample"
    if any(s.format == "parquet" for s in train.sources):
        notes += "; bytes: of Parquet, the text column's, unpacked"
    parts = [_head(report), f"{_sources('sources', train)}\n{_wrapped(notes, '  ')}"]
    parts.append(_degrees(train.degrees, mesh, "accumulation", "data-parallel ranks (dp)"))
    if validation is not None:
        parts.append(_sources("validation sources", validation))
        told = tuple(d.problem for d in train.degrees)
        parts.append(_degrees(validation.degrees, mesh, "batches/step", "validation on data-parallel ranks (dp)", told))
    elif report.job.validation is not None:
        parts.append("validation\n  not checked: validation.enable is not true, so its sources are not read.")
    parts.append(_files(report))
    if report.resume is not None:
        parts.append(_resume(report.resume))
    elif report.would_load is not None:
        parts.append(_would_load(report))
    return "\n\n".join([*parts, _answer(report)])


def _head(report: Report) -> str:
    job, program = report.job, report.train.program
    recipe, tokenize, version = job.recipe, program.tokenize, report.release.version
    if report.release.unchecked is None:
        against = f"{version}, installed; the job's other sections fit it"
    else:
        against = f"{version} assumed ({report.release.unchecked}): its label_shift; other sections are not checked"
    tokens = job.global_batch_size * program.seq_len
    batch = f"{job.global_batch_size:,} sequences of {program.seq_len:,} tokens, {tokens:,} tokens a step"
    shared = ", which ranks may share" if job.settings.shared_lanes else ""
    spec = tokenize.spec
    vocabulary = f" (the model has {report.vocab_size:,} entries)" if report.vocab_size else ""
    rows = {
        "job": str(job.config_file),
        "TorchTitan": against,
        "global batch": batch,
        "stream": f"{recipe.lanes} lanes{shared}; seed {recipe.seed}; pack {recipe.pack}, labels within each "
        f"{recipe.label_shift}; {'repeating' if recipe.repeat else 'one pass'}",
        "tokenizer": f"{assets_of(job)}: ids up to {tokenize.largest_id():,}{vocabulary}; BOS {_added(spec.add_bos)}, "
        f"EOS {_added(spec.add_eos)}; by {tokenize.backend_text}",
    }
    return "\n".join(_wrapped(text, f"{name:14}", " " * 14) for name, text in rows.items())


def _added(token: int | None) -> str:
    return "not added" if token is None else f"{token} added"


def _sources(title: str, reading: Reading) -> str:
    header = ("source", "share", "format", "shards", "bytes", "chunks", "a lane", "tokens/byte", "tokens")
    rows = [
        (
            s.name if len(s.name) <= LONGEST_NAME else s.name[: LONGEST_NAME - 3] + "...",
            f"{s.share:.1%}",
            s.format,
            f"{s.shards:,}",
            _short(s.num_bytes),
            _short(s.chunks),
            _short(s.lane_chunks),
            f"{s.tokens_per_mib / 2**20:.3f}",
            _short(s.tokens),
        )
        for s in reading.sources
    ]
    return f"{title}\n{_table(header, rows, left=(0, 2))}"


def _files(report: Report) -> str:
    """Which files are read of each source, and which names were left out and why."""
    validation = report.validation.program.sources if report.validation else ()
    manifests = [(repr(source.name), source.reader.manifest) for source in report.train.program.sources]
    manifests += [(f"{source.name!r} of the validation", source.reader.manifest) for source in validation]
    lines = ["files"]
    for name, manifest in manifests:
        read, *left_out = manifest.files_text().splitlines()
        lines += [_wrapped(f"{name} is {read}", "  ", "      ")]
        lines += [_wrapped(text, "    ", "      ") for text in left_out]
    lines += [_wrapped(text, "  ", "      ") for text in shared_files(manifests)]
    return "\n".join(lines)


def _degrees(degrees: Sequence[Degree], mesh: Mesh, batches: str, title: str, told: Sequence[str | None] = ()) -> str:
    """A row a degree; below it the reason why it does not fit, unless it was ``told`` before."""
    if mesh.gpus > 1:
        title += f"; GPUs = dp x {mesh.tensor} (tensor) x {mesh.pipeline} (pipeline) x {mesh.context} (context)"
    header = ("dp", "GPUs", "global batch", "sequences/rank", "lanes/rank", "local batch", batches, "")
    table = _table(header, [_row(d) for d in degrees], left=(7,)).splitlines()
    lines = [title, table[0]]
    for line, degree in zip(table[1:], degrees, strict=True):
        lines.append(line)
        if degree.problem is not None:
            lines.append(_wrapped("as above" if degree.problem in told else degree.problem, " " * 8))
    return "\n".join(lines)


def _row(d: Degree) -> tuple[str, ...]:
    if d.problem is not None:
        return (str(d.dp), str(d.gpus), *("",) * 5, "does not fit:")
    fewest, most = d.lanes
    return (
        str(d.dp),
        str(d.gpus),
        f"{d.global_batch_size:,}",
        f"{d.sequences:,}",
        f"{most}" if fewest == most else f"{fewest} to {most}",
        f"{d.local_batch_size:,}",
        f"{d.local_batches:,}",
        "fits",
    )


def _resume(resume: Resume) -> str:
    lines = [f"checkpoint {resume.path}"]
    if resume.step is not None:
        lines.append(
            f"  behind step {resume.step}, {resume.lanes} lanes, global batch {resume.global_batch_size}, "
            f"state format {FORMAT}"
        )
    if resume.changes:
        lines.append("  the job is not the one that made it (field: checkpoint -> now):")
        lines += [_change(change) for change in resume.changes]
        lines.append(_wrapped(f"Put these back to continue the same stream. {NEW_STREAM}", "  "))
        if any(change.startswith("global_batch_size:") for change in resume.changes):
            way = 'zephon.allow_changes = ["global_batch_size"]'
            lines.append(_wrapped(f"To go on with the same sequences in batches of another size: {way}.", "  "))
    lines += [_wrapped(text, "  ") for text in (*resume.problems, *resume.notes)]
    lines.append("  the job can resume from it" if resume.possible else "  the job cannot resume from it")
    return "\n".join(lines)


def _change(change: str) -> str:
    """One changed field; on three lines if it is too long for one, such as two hashes."""
    line = f"    {change}"
    name, _, values = change.partition(": ")
    before, arrow, now = values.rpartition(" -> ")
    return line if len(line) <= WIDTH or not arrow else f"    {name}:\n        {before}\n     -> {now}"


def _would_load(report: Report) -> str:
    path = report.would_load
    if isinstance(path, StateError):
        return "checkpoint\n" + _wrapped(str(path), "  ")
    return f"checkpoint\n  the job would load {path}; to check that too, add\n  --checkpoint {path}"


def _answer(report: Report) -> str:
    rows = [*report.train.degrees, *(report.validation.degrees if report.validation else ())]
    failing = sorted({d.dp for d in rows if d.problem is not None})
    fitting = sorted({d.dp for d in rows} - set(failing))
    answers = [f"fits on {', '.join(map(str, fitting))} data-parallel ranks"] if fitting else []
    answers += [f"does not fit on {', '.join(map(str, failing))}"] if failing else []
    if report.resume is not None:
        answers.append(f"{'can' if report.resume.possible else 'cannot'} resume")
    elif isinstance(report.would_load, StateError):
        answers.append("cannot load its checkpoint")
    return _wrapped("; ".join(answers), f"{'yes' if report.good else 'no'}: ", "    ")


def _short(number: float) -> str:
    """About three digits: 12.3, 1,234, 5.67 M, 15.0 T."""
    for power, unit in ((12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            value = number / 10**power
            return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
    return f"{number:,.0f}" if isinstance(number, int) or number >= 100 else f"{number:.1f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int]) -> str:
    """Columns as wide as their longest cell, two spaces apart, to the right but for those in ``left``."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  "
        + "  ".join(
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (header, *rows)
    )


def _wrapped(text: str, first: str, rest: str | None = None) -> str:
    """``text`` at ``WIDTH`` columns; words, such as paths, stay whole, and indented lines as they are."""
    rest = first if rest is None else rest
    fill = textwrap.TextWrapper(WIDTH, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for line in text.splitlines():
        fill.initial_indent = rest if lines else first
        lines.append(fill.initial_indent + line if line.startswith("    ") else fill.fill(line))
    return "\n".join(lines)
