"""A run as one HTML page: its sections put into the template, the table of all keys embedded beside them."""

from __future__ import annotations

import dataclasses
import html
import importlib.resources
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from group_models.errors import GroupModelsError, PlatformError
from group_models.ports import Tables
from group_models.reporting.page import columns, fleet, sections
from group_models.reporting.page.closeups import CloseUp, Figure, Observed, close_up, moment_text
from group_models.reporting.page.drawing import Artist
from group_models.reporting.page.fleet import percent, sensible, signed
from group_models.reporting.page.reading import PageData, read_histories, read_page
from group_models.tables import utc_now
from group_models.texts import duration_text


@dataclasses.dataclass(frozen=True)
class Page:
    """A run as a self-contained HTML page; a notebook shows it as it is."""

    title: str
    html: str

    def write(self, path: str | Path) -> Path:
        """Write the page to a file and return its path.

        Raises
        ------
        GroupModelsError
            It cannot be written there.
        """
        file = Path(path)
        try:
            file.write_text(self.html, encoding="utf-8")
        except OSError as e:
            raise GroupModelsError(f"cannot write {file}: {e.strerror}; name a file in a folder that is there") from e
        return file

    def _repr_html_(self) -> str:
        # In a frame of its own: neither the notebook's styles nor ours reach the other.
        source, title = html.escape(self.html), html.escape(self.title)
        style = "width:100%;height:80vh;min-height:480px;border:0"
        return f'<iframe title="{title}" srcdoc="{source}" sandbox="allow-scripts" style="{style}"></iframe>'


def worst_keys(data: PageData, count: int) -> list[str]:
    """Return the ids of the keys with the highest errors, worst first."""
    own = data.own
    places, _ = fleet.ranked(fleet.values_of(own["metrics"], data.metric), count)
    return [str(key_id) for key_id in own["key_id"].to_numpy()[places]]


def close_ups(
    data: PageData, key_ids: Sequence[str], histories: Mapping[str, pd.DataFrame], observed: Mapping[str, Observed]
) -> list[CloseUp]:
    """Return the sections of these keys."""
    rows = data.keys.set_index("key_id", drop=False).loc[list(key_ids)].to_dict("records")
    told = {"metric": data.metric, "target": str(data.spec.get("target", "")), "is_refit": bool(data.spec.get("refit"))}
    return [close_up(r, histories[r["key_id"]], observed.get(r["key_id"], Observed()), **told) for r in rows]  # type: ignore[arg-type]


def run_page(tables: Tables, model_set: str, run_id: str, *, worst: int = 5) -> Page:
    """Return the page of a run as its tables alone tell it: the source is not read.

    Raises
    ------
    StateError
        There is no such run, it has written no manifest yet, or a clean has removed rows of it.
    PlatformError
        A library of the `report` extra is not installed.
    """
    check_installed()
    data = read_page(tables, model_set, run_id)
    wanted = worst_keys(data, worst)
    return render(data, close_ups(data, wanted, read_histories(tables, model_set, wanted), {}))


def check_installed() -> None:
    """Refuse to start where a library of the `report` extra is not installed.

    Raises
    ------
    PlatformError
        It names what to install.
    """
    lacking = [name for name in ("jinja2", "vl_convert") if importlib.util.find_spec(name) is None]
    if lacking:
        raise PlatformError(f"the report needs {' and '.join(lacking)}; install group-models[report]")


def render(data: PageData, ups: Sequence[CloseUp] = ()) -> Page:
    """Return the page of a run; the libraries of the `report` extra must be there (`check_installed`)."""
    pays, changed = sections.paid(data), sections.changes(data)
    title = f"{data.model_set} \N{MIDDLE DOT} {data.run_id}"
    told = {
        "title": title,
        "data": data,
        "own": data.own,
        "outcome": sections.outcome(data),
        "headline": sections.headline(data),
        "pays": pays,
        "tiles": sections.tiles(data, pays),
        "statuses": fleet.status_counts(data.own),
        "levels": sections.level_lines(data),
        "errors": sections.errors(data),
        "timing": data.timing.facts() if data.timing else {},
        "time_figures": sections.time_figures(data),
        "changes": changed,
        "changed_figure": sections.changed_figure(changed, data) if changed else None,
        "typical": sections.typical_error(data),
        "causes": fleet.causes(data.own),
        "close_ups": ups,
        "run_facts": sections.run_facts(data),
        "spec": sections.spec_text(data),
        "table": _table(data, ups),
        "made": moment_text(utc_now()),
    }
    return Page(title, _template().render(told))


def _table(data: PageData, ups: Sequence[CloseUp]) -> str:
    found = [column.as_dict() for column in columns.table_columns(data)]
    rows = min(len(data.keys), columns.MAX_ROWS)
    return columns.embedded({"rows": rows, "of": len(data.keys), "columns": found, "close": [u.key_id for u in ups]})


def _template() -> Any:
    import jinja2
    import markupsafe

    # Whatever comes from data is escaped; only our own files and the charts, whose texts Vega escapes, are not.
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    artist = Artist()

    def drawn(figure: Figure) -> markupsafe.Markup:
        return markupsafe.Markup(artist.draw(figure.chart, figure.title))  # noqa: S704

    environment.filters |= {"drawn": drawn, "num": sensible, "pct": percent, "signed": signed, "dur": duration_text}
    environment.filters["raw"] = markupsafe.Markup
    environment.globals |= {"css": _file("page.css"), "js": _file("page.js")}
    return environment.from_string(_file("page.html"))


def _file(name: str) -> str:
    return importlib.resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
