"""A ``Report`` in words and tables of at most 100 columns; long values and paths are never cut.

What flows in: a report. What flows out: text, the same for the same job, files and checkpoint.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from ... import __version__
from ...identity import STREAM_FORMAT
from ...ops.tokenize import Tokenize
from ...program import unended
from ...read.files import shared_files
from ...state import FORMAT
from . import Part, Report
from .degrees import Degree, Mesh, starving
from .resume import ResumeReport
from .sources import assets_of

WIDTH = 100
LONGEST_NAME = 22


def check_text(report: Report) -> str:
    """The whole report: what is known, all problems, numbered, and the answer as its last line."""
    train, validation, mesh = report.train, report.validation, report.mesh
    parts = [_head(report)]
    if train.reading.sources:
        notes = "share: of tokens; a lane: chunks a lane and epoch; tokens: of one epoch, estimated from a sample"
        if any(s.manifest.format == "parquet" for s in train.reading.sources):
            notes += "; bytes: of Parquet, the text column's, unpacked"
        warnings = _warnings(train, starving(train.reading, train.degrees, report.job.settings.workers))
        parts.append(f"{_sources('sources', train)}\n{_wrapped(notes, '  ')}{_unpacked(train)}{warnings}")
    if mesh is not None and train.degrees:
        parts.append(_degrees(train, mesh, "accumulation", "data-parallel ranks (dp)"))
    if validation is not None:
        if validation.reading.sources:
            parts.append(f"{_sources('validation sources', validation)}{_unpacked(validation)}{_warnings(validation)}")
        if mesh is not None and validation.degrees:
            title = "validation on data-parallel ranks (dp)"
            parts.append(_degrees(validation, mesh, "batches/step", title))
    elif report.job.validation is not None:
        parts.append("validation\n  not checked: validation.enable is not true, so its sources are not read.")
    if text := _files(report):
        parts.append(text)
    if text := _checkpoint(report):
        parts.append(text)
    if report.problems:
        parts.append(_problems(report.problems))
    return "\n\n".join([*parts, _answer(report)])


def _head(report: Report) -> str:
    job, recipe, release, tokenize = report.job, report.job.recipe, report.release, report.train.reading.tokenize
    version = release.generation.version
    if release.unchecked is not None:
        against = f"{version} assumed ({release.unchecked}): its label_shift; other sections are not checked"
    elif release.fits:
        against = f"{version}, installed; the job's other sections fit it"
    else:
        against = f"{version}, installed; the job's other sections do not fit it, see below"
    shared = ", which ranks may share" if job.settings.shared_lanes else ""
    rows = {
        "job": str(job.config_file),
        "zephon": f"{__version__}, stream format {STREAM_FORMAT}, state format {FORMAT}",
        "TorchTitan": against,
        "global batch": _global_batch(report),
        "stream": f"{recipe.lanes} lanes{shared}; seed {recipe.seed}; pack {recipe.pack}, labels within each "
        f"{recipe.label_shift}; {'repeating' if recipe.repeat else 'one pass'}",
        "tokenizer": "not known, see below" if tokenize is None else _tokenizer(report, tokenize),
        "a document": "not known, see below" if tokenize is None else _document(tokenize),
    }
    return "\n".join(_wrapped(text, f"{name:14}", " " * 14) for name, text in rows.items())


def _document(tokenize: Tokenize) -> str:
    return f"is read as  {tokenize.document}  ({tokenize.spec.roles})"


def _global_batch(report: Report) -> str:
    size, seq_len = report.job.sections.get("training", {}).get("global_batch_size"), report.train.reading.seq_len
    if not isinstance(size, int) or seq_len is None:
        return "not known, see below"
    return f"{size:,} sequences of {seq_len:,} tokens, {size * seq_len:,} tokens a step"


def _tokenizer(report: Report, tokenize: Tokenize) -> str:
    vocabulary = f" (the model has {report.vocab_size:,} entries)" if report.vocab_size else ""
    return f"{assets_of(report.job)}: ids up to {tokenize.largest_id():,}{vocabulary}; by {tokenize.backend_text}"


def _sources(title: str, part: Part) -> str:
    header = ("source", "share", "format", "shards", "bytes", "chunks", "a lane", "tokens/byte", "+-", "tokens")
    rows = [
        (
            s.name if len(s.name) <= LONGEST_NAME else s.name[: LONGEST_NAME - 3] + "...",
            f"{s.share:.1%}",
            s.manifest.format,
            f"{len(s.manifest.shards):,}",
            _short(s.num_bytes),
            _short(s.chunks),
            _short(s.lane_chunks),
            f"{s.estimate.tokens_per_mib / 2**20:.3f}",
            f"{s.estimate.error:.1%}",
            _short(s.tokens),
        )
        for s in part.reading.sources
    ]
    return f"{title}\n{_table(header, rows, left=(0, 2))}"


def _unpacked(part: Part) -> str:
    """What sources cost that are read from the front, a paragraph each."""
    texts = [s.unpacked.text(s.name) for s in part.reading.sources if s.unpacked is not None]
    return "".join(f"\n{_wrapped(text, '  ')}" for text in texts)


def _warnings(part: Part, more: Sequence[str] = ()) -> str:
    """What is likely not meant, a paragraph each."""
    texts = [] if part.reading.tokenize is None else unended(part.reading.recipe, part.reading.tokenize)
    texts += [*(text for s in part.reading.sources for text in s.estimate.warnings(s.name)), *more]
    return "".join(f"\n{_wrapped(f'Warning: {text}', '  ')}" for text in texts)


def _files(report: Report) -> str:
    """Which files are read of each source, and which names were left out and why."""
    validation = report.validation.reading.sources if report.validation else ()
    manifests = [(repr(source.name), source.manifest) for source in report.train.reading.sources]
    manifests += [(f"{source.name!r} of the validation", source.manifest) for source in validation]
    if not manifests:
        return ""
    lines = ["files"]
    for name, manifest in manifests:
        read, *left_out = manifest.files_text().splitlines()
        lines += [_wrapped(f"{name} is {read}", "  ", "      ")]
        lines += [_wrapped(text, "    ", "      ") for text in left_out]
    lines += [_wrapped(text, "  ", "      ") for text in shared_files(manifests)]
    return "\n".join(lines)


def _degrees(part: Part, mesh: Mesh, batches: str, title: str) -> str:
    """A row a degree; where it does not fit, with the number of the problem."""
    if mesh.gpus > 1:
        title += f"; GPUs = dp x {mesh.tensor} (tensor) x {mesh.pipeline} (pipeline) x {mesh.context} (context)"
    header = ("dp", "GPUs", "global batch", "sequences/rank", "lanes/rank", "local batch", batches, "")
    return f"{title}\n{_table(header, [_row(d, part.misfits) for d in part.degrees], left=(7,))}"


def _row(d: Degree, misfits: Mapping[int, int]) -> tuple[str, ...]:
    if d.problem is not None:
        return (str(d.dp), str(d.gpus), *("",) * 5, f"no: problem {misfits[d.dp]}")
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


def _checkpoint(report: Report) -> str:
    """What the job would continue from; empty where that is not in question."""
    checkpoint = report.checkpoint
    if checkpoint.resume is not None:
        return _resume(checkpoint.resume)
    if checkpoint.found is not None:
        return f"checkpoint {checkpoint.found}\n  not compared, see below"
    lines = []
    if checkpoint.empty:
        lines.append("  nothing complete is saved there, so there is nothing to resume from")
    if checkpoint.new_stream:
        lines.append("  the job begins a new stream")
    if checkpoint.would_load is not None:
        lines += [f"  the job would load {checkpoint.would_load}; to check that too, add"]
        lines += [f"  --checkpoint {checkpoint.would_load}"]
    return "\n".join([f"checkpoint {checkpoint.asked or ''}".rstrip(), *lines]) if lines else ""


def _resume(resume: ResumeReport) -> str:
    lines = [f"checkpoint {resume.path}"]
    if resume.step is not None and not resume.new_stream:
        lines.append(
            f"  behind step {resume.step}, {resume.lanes} lanes, global batch {resume.global_batch_size}, "
            f"state format {FORMAT}"
        )
    lines += [_wrapped(text, "  ") for text in resume.notes]
    if resume.new_stream:
        lines.append("  the job begins a new stream")
    else:
        lines.append(
            "  the job can resume from it" if resume.possible else "  the job cannot resume from it, see below"
        )
    return "\n".join(lines)


def _problems(problems: Sequence[str]) -> str:
    indent = " " * 4
    title = "there is 1 problem" if len(problems) == 1 else f"there are {len(problems)} problems"
    return "\n".join([title, *(_wrapped(text, f"{n:2}. ", indent) for n, text in enumerate(problems, 1))])


def _answer(report: Report) -> str:
    rows = [*report.train.degrees, *(report.validation.degrees if report.validation else ())]
    failing = sorted({d.dp for d in rows if d.problem is not None})
    fitting = sorted({d.dp for d in rows} - set(failing))
    answers = [f"fits on {', '.join(map(str, fitting))} data-parallel ranks"] if fitting else []
    answers += [f"does not fit on {', '.join(map(str, failing))}"] if failing else []
    if report.checkpoint.new_stream:
        answers.append("begins a new stream")
    elif report.resume is not None:
        answers.append(f"{'can' if report.resume.possible else 'cannot'} resume")
    if report.problems:
        answers.append("1 problem" if len(report.problems) == 1 else f"{len(report.problems)} problems")
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
