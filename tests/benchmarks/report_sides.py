"""The side of the report: how long the page of a run takes, and how large it is."""

from __future__ import annotations

from tests.benchmarks.sides import Job, Outcome, measured


def write_report(job: Job) -> Outcome:
    """Write the page of the second of two made-up nights of so many keys; the worst are looked at closely."""
    from group_models import reports
    from group_models.adapters.path_tables import PathTables
    from tests.pages import SET, add_nights

    add_nights(PathTables(job.out, SET.rpartition(".")[0]), job.workload.keys)
    file = job.out.parent / f"{job.out.name}.html"
    with measured() as outcome:
        reports.report(SET, warehouse=str(job.out), output=file)
    outcome.values = {"size, MB": file.stat().st_size / 1e6}
    return outcome
