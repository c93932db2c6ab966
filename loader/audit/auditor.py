"""Audits a copy of a table in two looks, so that lag is not mistaken for loss.

The first look compares checksums of buckets, and then the keys of buckets that differ. The second
look, after a pause, compares these keys again, in a new snapshot of the source and with the copy's
current rows. A difference counts only if both looks find it and the source's row is the same in
both. A difference in a row whose cursor is above the copy's highest cursor, or not far below it,
counts as lag: the tool has not loaded that far yet, or may still read late rows.

Nothing is written to the source or to the copy.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f

from loader.audit.copied_table import CopiedTable
from loader.audit.copy_comparison import VALUES, CopyComparison, find_kind
from loader.audit.findings import KINDS, LAG, LOST, STALE, Audit, Example
from loader.reconcile.comparison import KIND, SOURCE_CHECKSUM
from loader.reconcile.differences import materialize, narrow_share
from loader.rows.cursor import CursorType
from loader.rows.version_order import quote_name
from loader.rows.window import CursorField, Window
from loader.sources.checksum import HashedColumn
from loader.sources.contents import CHECKSUM, KEY, KeySelection
from loader.sources.interface import Source, SourceTable

_NOW = "_cq_now"
_ROW = "_cq_row"
_AT = "_cq_at"
_DIFFERING = "_cq_differing"
_KEY_TEXT = "_cq_key_text"
_FIRST_KIND = "_cq_first_kind"
_JSON = ("json", "jsonb")
_TIMES = ("time", "timetz")
_ALMOST_ALL = 0.9
_FEWEST_REWRITTEN = 10


@dataclass(frozen=True)
class Effort:
    """The thoroughness of an audit.

    Attributes:
        buckets: the number of groups into which keys are divided.
        share: the share of the groups that is compared, from 0 to 1.
        pause: the number of seconds between the two looks.
        grace: rows whose cursors are at most this many seconds below the copy's highest cursor may
            differ because of lag.
        max_lag: the age, in seconds, at which a row that the copy lacks becomes an error.
        examples: the number of rows to name for each kind of difference.
    """

    buckets: int = 256
    share: float = 1.0
    pause: float = 30.0
    grace: float = 3600.0
    max_lag: float = 86400.0
    examples: int = 10
    wait: Callable[[float], object] = time.sleep

    def choose_buckets(self) -> KeySelection:
        """Returns the buckets to compare, chosen at random."""
        if self.share >= 1:
            return KeySelection(self.buckets)
        count = max(1, round(self.buckets * self.share))
        return KeySelection(self.buckets, tuple(sorted(random.sample(range(self.buckets), count))))


@dataclass(frozen=True)
class Auditor:
    """Compares a table with its copy.

    Attributes:
        table: the source's table, with only the columns that are compared.
        key: the columns that identify a row.
        unique: whether the source has only one row for each key. Otherwise, the row with the
            highest cursor is compared.
        cursor: the column that dates rows; None if there is none.
        report: called with the name of each step that begins.
    """

    spark: SparkSession
    source: Source
    table: SourceTable
    key: tuple[str, ...]
    unique: bool
    cursor: str | None
    copy: CopiedTable
    effort: Effort = Effort()
    report: Callable[[str], object] = field(default=lambda _: None)

    def run(self) -> Audit:
        """Runs both looks, and returns what differs. Errors of Spark are raised untranslated."""
        began = time.monotonic()
        selected = self.effort.choose_buckets()
        self.report("comparing checksums")
        with self._look() as look:
            counts, share = look.compare_buckets(selected)
            result = self._begin_audit(look, counts, selected)
            if share is not None:
                self.report("comparing keys")
                candidates = materialize(look.compare_keys(share))
                share = narrow_share(candidates, share)
        paused = 0.0
        if share is not None:
            if self.effort.pause:
                self.report("waiting before the second look")
                paused = self.effort.pause
                self.effort.wait(paused)
            self.report("comparing the differing keys again")
            with self._look() as look:
                result = self._look_again(look, share, candidates, result)
        return replace(result, seconds=time.monotonic() - began - paused)

    @contextmanager
    def _look(self) -> Iterator[CopyComparison]:
        """Opens the source, and then the copy, which may therefore be newer than the source."""
        with self.source.snapshot([self.table]) as snapshot, self.copy.open() as rows:
            contents = snapshot.contents(
                self.spark, self.table, self.key, Window(self._cursor_field()), self.unique
            )
            yield CopyComparison(contents, rows, self.copy, self.table, self.cursor)

    def _begin_audit(
        self, look: CopyComparison, counts: tuple[int, int], selected: KeySelection
    ) -> Audit:
        compared = selected.of if selected.buckets is None else len(selected.buckets)
        return Audit(
            self.table.ref.name,
            self.copy.name,
            self.copy.tool,
            self.key,
            self.cursor,
            *counts,
            share=compared / selected.of,
            not_compared={
                **self.copy.not_compared,
                **dict.fromkeys(look.contents.left_out, "the database cannot compute its checksum"),
            },
            additional=self.copy.additional,
            compared=len(look.contents.checksum_columns),
        )

    def _look_again(
        self, look: CopyComparison, share: KeySelection, candidates: DataFrame, first: Audit
    ) -> Audit:
        highest = look.find_highest()
        found = materialize(self._explain(look, share, candidates, highest))
        rewritten = _find_rewritten(found, min(first.rows_source, first.rows_copy))
        found = _leave_out(found, [name for name, _ in rewritten])
        counts = {row[KIND]: row["count"] for row in found.groupBy(KIND).count().collect()}
        wrong = found.where(f.col(KIND) != LAG)
        return replace(
            first,
            counts={kind: counts.get(kind, 0) for kind in KINDS},
            lag=counts.get(LAG, 0),
            days=self._count_by_day(wrong),
            columns=_count_columns(wrong.where(f.col(KIND) == STALE)),
            rewritten=rewritten,
            examples=self._list_examples(wrong),
            highest=highest,
            **self._measure_lag(found, highest),
        )

    def _measure_lag(self, found: DataFrame, highest: str | None) -> dict[str, Any]:
        """Returns how far behind the copy is, as the attributes `behind`, `oldest` and `age`."""
        cursor = self._cursor_field()
        if highest is None or cursor is None:
            return {}
        at = f.col(_AT)
        limit = f.lit(highest).cast(self.table.schema[cursor.name].dataType)
        age = f.lit(None).cast("double")
        if cursor.type.is_time:
            oldest = f.min(at).cast("timestamp")
            age = f.current_timestamp().cast("double") - oldest.cast("double")
        newer = found.where((f.col(KIND) == LAG) & (at > limit))
        [row] = newer.select(f.count(at), f.min(at).cast("string"), age).collect()
        return {"behind": row[0], "oldest": row[1], "age": row[2], "max_lag": self.effort.max_lag}

    def _explain(
        self,
        look: CopyComparison,
        share: KeySelection,
        candidates: DataFrame,
        highest: str | None,
    ) -> DataFrame:
        """Returns KIND, _AT, _DIFFERING and _KEY_TEXT for the keys that differed in the first look.

        KIND is LAG if the difference is gone or may be due to lag. Rows are left out if their
        values are equal, although their checksums differ.
        """
        fields, contents = self.table.schema.names, look.contents
        rows = contents.hashed_rows(share).select(
            KEY,
            f.col(CHECKSUM).alias(_NOW),
            f.struct(*(f.col(quote_name(name)) for name in fields)).alias(_ROW),
        )
        joined = (
            candidates.withColumnRenamed(KIND, _FIRST_KIND)
            .join(rows, KEY, "left")
            .join(look.copied_rows(share), KEY, "left")
        )
        differs = {
            part.name: ~_normalize(part, _field(_ROW, part.name)).eqNullSafe(
                _normalize(part, _field(VALUES, part.name))
            )
            for part in contents.checksum_columns
        }
        differing = f.filter(
            f.array(*(f.when(differs[name], f.lit(name)) for name in differs)),
            lambda name: name.isNotNull(),
        )
        kind = find_kind(f.col(_NOW))
        # Equal rows can have different checksums: the copy may store JSON in another form, and only
        # the database can format some times. A checksum of -1 marks a value that does not fit the
        # source's type.
        is_equal = (kind == STALE) & (f.size(differing) == 0) & (f.col(CHECKSUM) != -1)
        is_changed = ~f.col(SOURCE_CHECKSUM).eqNullSafe(f.col(_NOW))
        at = f.lit(None).cast("string")
        is_recent = f.lit(False)
        if self.cursor is not None:
            at = f.coalesce(_field(_ROW, self.cursor), _field(VALUES, self.cursor))
            is_recent = self._is_recent(_field(_ROW, self.cursor), highest)
        verdict = (
            f.when(is_equal & (f.col(_FIRST_KIND) == STALE), f.lit(None))
            .when(kind.isNull() | is_equal | is_changed, f.lit(LAG))
            .when(kind.isin(LOST, STALE) & is_recent, f.lit(LAG))
            .otherwise(kind)
        )
        texts = [self._format_key(name) for name in self.key]
        return joined.select(
            verdict.alias(KIND),
            at.alias(_AT),
            f.when(kind == STALE, differing).alias(_DIFFERING),
            f.concat_ws(", ", *texts).alias(_KEY_TEXT),
        ).where(f.col(KIND).isNotNull())

    def _cursor_field(self) -> CursorField | None:
        if self.cursor is None:
            return None
        type_ = CursorType.of(self.table.schema[self.cursor].dataType)
        return CursorField(self.cursor, type_) if type_ is not None else None

    def _is_recent(self, at: Column, highest: str | None) -> Column:
        """Returns whether a row is so new that the copy need not contain it yet."""
        cursor = self._cursor_field()
        if highest is None or cursor is None:
            return f.lit(False)  # the copy has no row with a cursor
        limit = f.lit(highest).cast(self.table.schema[cursor.name].dataType)
        if cursor.type.is_time:
            limit = limit - f.expr(f"interval {float(self.effort.grace):f} seconds")
        return f.coalesce(at > limit, f.lit(False))

    def _format_key(self, name: str) -> Column:
        value = f.coalesce(_field(_ROW, name), _field(VALUES, name))
        if self.table.schema[name].dataType.typeName() == "binary":
            value = f.lower(f.hex(value))
        return f.concat(f.lit(f"{name}="), f.coalesce(value.cast("string"), f.lit("null")))

    def _count_by_day(self, wrong: DataFrame) -> tuple[tuple[str, dict[str, int]], ...]:
        cursor = self._cursor_field()
        if cursor is None or not cursor.type.is_time:
            return ()
        day = f.coalesce(f.to_date(f.col(_AT)).cast("string"), f.lit("none"))
        days: dict[str, dict[str, int]] = {}
        for row in wrong.groupBy(day.alias("day"), KIND).count().orderBy("day").collect():
            days.setdefault(row["day"], dict.fromkeys(KINDS, 0))[row[KIND]] = row["count"]
        return tuple(days.items())

    def _list_examples(self, wrong: DataFrame) -> tuple[Example, ...]:
        found: list[Example] = []
        for kind in KINDS:
            rows = wrong.where(f.col(KIND) == kind).orderBy(_AT, _KEY_TEXT)
            for row in rows.select(
                _KEY_TEXT, f.col(_AT).cast("string").alias(_AT), _DIFFERING
            ).take(self.effort.examples):
                found.append(Example(kind, row[_KEY_TEXT], row[_AT], tuple(row[_DIFFERING] or ())))
        return tuple(found)


def _count_columns(found: DataFrame) -> tuple[tuple[str, int], ...]:
    """Returns the columns that differ, each with the number of rows in which it differs."""
    names = found.select(f.explode(_DIFFERING).alias("name"))
    counts = names.groupBy("name").count().orderBy(f.desc("count"), "name")
    return tuple((row[0], row[1]) for row in counts.collect())


def _find_rewritten(found: DataFrame, rows: int) -> tuple[tuple[str, int], ...]:
    """Returns the columns that differ in almost all of the rows that both tables can have."""
    least = max(_FEWEST_REWRITTEN, _ALMOST_ALL * rows)
    return tuple((name, count) for name, count in _count_columns(found) if count >= least)


def _leave_out(found: DataFrame, columns: Sequence[str]) -> DataFrame:
    """Removes columns from the differences, and rows that differ in no other column."""
    if not columns:
        return found
    rest = f.array_except(_DIFFERING, f.array(*map(f.lit, columns)))
    differs = (f.size(rest) > 0) | (f.size(_DIFFERING) == 0)
    found = found.where(f.col(_DIFFERING).isNull() | differs)
    return found.withColumn(_DIFFERING, rest)


def _field(struct: str, name: str) -> Column:
    return f.col(struct).getField(name)


def _normalize(part: HashedColumn, value: Column) -> Column:
    """Returns a value in a form that does not depend on the tool that stored it.

    JSON values and times of day are strings in Spark. A tool may store the same JSON with different
    whitespace, and the same time without trailing zeros. All other values are returned unchanged.
    """
    if part.stored in _JSON:
        return f.coalesce(f.get_json_object(value, "$"), value)
    if part.stored in _TIMES:
        value = f.regexp_replace(value, r"^(\d\d:\d\d)(?=$|[-+Z])", "$1:00")
        value = f.regexp_replace(value, r"(\.\d*?)0+(?=$|[-+Z])", "$1")
        value = f.regexp_replace(value, r"\.(?=$|[-+Z])", "")
        value = f.regexp_replace(value, "Z$", "+00")
        return f.regexp_replace(value, r"([-+]\d\d):?00$", "$1")
    return value
