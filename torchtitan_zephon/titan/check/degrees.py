"""Which data-parallel degrees fit a job, and what a rank gets on each.

What flows in: a parsed job and the release it is for. What flows out: a ``Degree`` for each number of ranks, with
the layout's own words where it does not fit. The rules are ``Layout``'s, which the trainer uses too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import ConfigError, Problems
from ..feed import Feed, training_feed, validation_feed
from ..generations import Generation
from ..job import Job
from ..reading import Reading
from .stated import stated


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """The degrees in ``[parallelism]``; ``shard`` = -1 is what the number of GPUs leaves."""

    replicate: int
    shard: int
    tensor: int
    pipeline: int
    context: int

    @property
    def gpus(self) -> int:
        """GPUs that share one data-parallel rank's sequences."""
        return self.tensor * self.pipeline * self.context

    def refuses(self, dp: int) -> str | None:
        """Why the job does not start with ``dp`` data-parallel ranks, if so."""
        fixed = self.replicate * self.shard
        if self.shard != -1 and dp != fixed:
            return (
                f"parallelism.data_parallel_replicate_degree = {self.replicate} and data_parallel_shard_degree = "
                f"{self.shard} fix the data-parallel degree at {fixed}. Set data_parallel_shard_degree = -1 to let "
                "the number of GPUs decide."
            )
        if dp % self.replicate:
            return (
                f"parallelism.data_parallel_replicate_degree = {self.replicate} does not divide {dp} data-parallel "
                f"ranks. Use {dp - dp % self.replicate or self.replicate} ranks, or another replicate degree."
            )
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Degree:
    """One data-parallel degree: what a rank gets, or ``problem``. ``lanes``: fewest and most of any rank.

    Sizes in sequences; ``local_batches`` a step are the gradient accumulation of a training job.
    """

    dp: int
    gpus: int
    global_batch_size: int
    lanes: tuple[int, int] = (0, 0)
    sequences: int = 0
    local_batch_size: int = 0
    local_batches: int = 0
    problem: str | None = None


def mesh_of(job: Job) -> Mesh:
    """The degrees in ``[parallelism]``. Raises ``ConfigError``."""
    degrees = {}
    problems = Problems()
    for field in dataclasses.fields(Mesh):
        data = field.name in ("replicate", "shard")
        key = f"data_parallel_{field.name}_degree" if data else f"{field.name}_parallel_degree"
        with problems:
            degree = degrees[field.name] = stated(job, "parallelism", key)
            if degree < 1 and (field.name, degree) != ("shard", -1):
                raise ConfigError(f"parallelism.{key} = {degree} must be 1 or more.")
    problems.refuse()
    return Mesh(**degrees)


def default_degrees(job: Job, generation: Generation, mesh: Mesh) -> tuple[int, ...]:
    """Every degree on which the job can train, or one that says why there is none."""
    most = job.global_batch_size if job.settings.shared_lanes else job.recipe.lanes
    tried = range(1, most + 1) if mesh.shard == -1 else [mesh.replicate * mesh.shard]
    fitting = [dp for dp in tried if most % dp == 0 and training_degree(job, generation, mesh, dp).problem is None]
    return tuple(fitting or [mesh.replicate * max(1, mesh.shard)])


def training_degree(job: Job, generation: Generation, mesh: Mesh, dp: int) -> Degree:
    """What each of ``dp`` ranks gets of a training step."""
    local = stated(job, "training", "local_batch_size")
    batches = [local]
    if generation.pipeline_batch is not None and mesh.pipeline > 1:
        batches.append(stated(job, "parallelism", generation.pipeline_batch))
    return degree_of(training_feed(job), mesh, dp, batches)


def validation_degree(job: Job, generation: Generation, mesh: Mesh, dp: int) -> Degree:
    """What each of ``dp`` ranks gets of a validation step."""
    local = stated(job, "training", "local_batch_size")
    if generation.validation_sizes:
        local = stated(job, "validation", "local_batch_size", local)
    if generation.pipeline_batch is not None and mesh.pipeline > 1:
        local = stated(job, "parallelism", generation.pipeline_batch)
    feed = validation_feed(job, steps=stated(job, "validation", "steps"))
    return degree_of(feed, mesh, dp, [local])


def degree_of(feed: Feed, mesh: Mesh, dp: int, local_batches: Sequence[int]) -> Degree:
    """The first of ``local_batches`` is reported; all must divide a rank's share."""
    row = Degree(dp=dp, gpus=dp * mesh.gpus, global_batch_size=feed.global_batch_size)
    if (problem := mesh.refuses(dp)) is not None:
        return dataclasses.replace(row, problem=problem)
    try:
        layout = feed.layouts(dp, local_batches)[0]
    except ConfigError as error:
        return dataclasses.replace(row, problem=str(error))
    counts = {len(dataclasses.replace(layout, dp_rank=rank).own_lanes) for rank in range(dp)}
    return dataclasses.replace(
        row,
        global_batch_size=layout.global_batch_size,
        lanes=(min(counts), max(counts)),
        sequences=len(layout.part),
        local_batch_size=layout.local_batch_size,
        local_batches=layout.local_batches,
    )


def starving(reading: Reading, degrees: Sequence[Degree], workers: int) -> list[str]:
    """Where a rank cannot read far enough ahead to keep its workers busy: a sentence on the fewest such ranks.

    A lane reads at most to the end of the segment behind the one whose chunks come in, which may be one segment ahead.
    """
    if reading.seq_len is None or not reading.sources:
        return []
    chunks_a_token = sum(s.share * s.chunks / max(1, s.tokens) for s in reading.sources)
    segment = max(1.0, reading.recipe.flush_every_sequences * reading.seq_len * chunks_a_token)
    for row in sorted(degrees, key=lambda row: row.dp):
        if row.problem is None and row.lanes[0] * segment < workers:
            return [
                f"with {row.dp} data-parallel ranks a rank has {row.lanes[0]} of the lanes, and each reads about one "
                f"segment ahead, {segment:.1f} chunks. That is too little for workers = {workers}. Use fewer workers, "
                "smaller chunks (chunk_bytes) or longer segments (flush_every_sequences)."
            ]
    return []
