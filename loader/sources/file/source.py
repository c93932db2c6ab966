"""The `file` connector, which reads folders of files in any format that Spark supports.

By default, the cursor is the file's modification time, so a sync reads new and rewritten files.
A column in the files can be the cursor instead.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.types import StringType, StructField, StructType, TimestampType

from loader.errors import LoaderError, TableError
from loader.names import literal_path
from loader.sources.file.file_checks import check_entries, check_masks, show_name
from loader.sources.file.lines import WIDE_ENCODING, limiting_options
from loader.sources.file.listing import (
    MODIFIED,
    PATH,
    RECURSIVE,
    files,
    find_stored_columns,
    list_files,
)
from loader.sources.file.options import FileOptions, FileTableOptions, ReaderOptions
from loader.sources.file.read_errors import explain_read_error
from loader.sources.file.rows import apply_types, partition_columns, read_columns
from loader.sources.file.snapshot import FileSnapshot
from loader.sources.interface import Source, SourceTable, TableRef
from loader.spec.options import options_for

_DEFAULTS = {
    # FAILFAST rejects lines that have missing or extra columns, for example in a half-written file.
    # Quotes in quoted values are doubled (RFC 4180).
    "csv": {"header": "true", "mode": "FAILFAST", "escape": '"'},
    # FAILFAST rejects incomplete lines, and values that do not fit the type in the spec.
    "json": {"mode": "FAILFAST"},
    # Without mergeSchema, Spark would omit columns that some files do not have.
    "parquet": {"mergeSchema": "true"},
    "orc": {"mergeSchema": "true"},
}


class FileSource(Source):
    options_model = FileOptions
    can_mask = True
    can_mask_typed_columns = True
    selects_columns = True
    options: FileOptions

    _marks: Callable[[str], Sequence[Mapping[str, Any]]] | None = None

    def use_marks(self, marks: Callable[[str], Sequence[Mapping[str, Any]]]) -> None:
        self._marks = marks

    @property
    def base(self) -> str:
        """The absolute path of the source's folder."""
        if urlparse(self.options.path).scheme:
            return self.options.path.rstrip("/")
        return str((self.folder / self.options.path).resolve())

    def tables(self) -> list[TableRef]:
        # Table names are case-insensitive, as in the lake.
        named: dict[str, tuple[str, list[str]]] = {}
        for entry in sorted(self._list_paths()):
            name = show_name(entry.split(".")[0])
            named.setdefault(name.lower(), (name, []))[1].append(entry)
        for name, options in self.options.table_options.items():
            if options.path is not None:
                named[name.lower()] = (name, [options.path])
        tables = []
        for name, (first, *others) in sorted(named.values()):
            native = replace(self._native(name, first), rivals=tuple(others))
            tables.append(TableRef(name, native))
        return tables

    def _list_paths(self) -> list[str]:
        jvm: Any = self.spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(self.base)
        system = path.getFileSystem(self.spark.sparkContext._jsc.hadoopConfiguration())
        if not system.exists(path):
            raise TableError(
                f"there is no folder {self.base}",
                where=f"source {self.name}, path",
                remedy="Create it, or correct the source's path (relative to the spec)",
            )
        if system.getUri().getScheme() == "file":
            names = os.listdir(path.toUri().getPath())  # Java omits names that it cannot decode
        else:
            names = [status.getPath().getName() for status in system.listStatus(path)]
        # Spark also skips these names.
        return [name for name in names if not name.startswith((".", "_"))]

    def _native(self, name: str, path: str) -> ReaderOptions:
        options = self._options_of(name)
        form = options.format or self.options.format
        settings: dict[str, tuple[str, str]] = {}
        defaults = _DEFAULTS.get(form.lower(), {})
        for given in (defaults, self.options.options, options.options):
            # Spark ignores the case of option names.
            settings.update((name.lower(), (name, value)) for name, value in given.items())
        given_names = frozenset(name.lower() for name in (*self.options.options, *options.options))
        if form.lower() == "csv" and "quote" in given_names and "escape" not in given_names:
            settings["escape"] = ("escape", settings["quote"][1] or '"')
        wide = WIDE_ENCODING.match(settings.get("encoding", settings.get("charset", ("", "")))[1])
        if form.lower() == "csv" and wide and not {"multiline", "linesep"} & settings.keys():
            # Without multiLine, Spark expects a line break to be a single byte.
            settings["multiline"] = ("multiLine", "true")
        limit, multiline = self.options.line_limit, settings.get("multiline", ("", ""))[1]
        lengths = limiting_options(form.lower(), multiline.lower() == "true", limit)
        settings = {**{name.lower(): (name, value) for name, value in lengths.items()}, **settings}
        is_absolute = urlparse(path).scheme or path.startswith("/")
        full = path if is_absolute else f"{self.base}/{path}"
        pattern = path if options.path is not None else literal_path(path)
        if not is_absolute:
            pattern = f"{literal_path(self.base)}/{pattern}"
        chosen = tuple(sorted(settings.values()))
        types = () if options.ddl is not None else (*options.types.items(),)
        return ReaderOptions(
            full,
            pattern,
            form,
            chosen,
            options.ddl,
            self._home(full),
            limit,
            given_names,
            types=types,
            selection=options.columns.model_dump_json() if options.columns else "",
            masks=(*options.mask.items(),),
        )

    def _home(self, path: str) -> str:
        """Returns the folder in the spec; see :attr:`ReaderOptions.home`."""
        if Path(os.path.normpath(path)).is_relative_to(self.base):
            return self.base
        return re.split(r"/[^/]*[*?\[{]", path, maxsplit=1)[0] or "/"

    def _options_of(self, name: str) -> FileTableOptions:
        return options_for(self.options.table_options, name, FileTableOptions())

    def describe(self, ref: TableRef) -> SourceTable:
        where = f"table {self.name}.{ref.name}"
        _check_name_is_unique(ref, where)
        check_entries(self.spark, ref.native, self.options.follow_links, where)
        try:
            native = self._read_nested(ref)
            remembered = self._remembered_columns(ref, native)
            native, schema = remembered or read_columns(self.spark, native)
            native, schema = apply_types(self.spark, native, schema, where)
            all_names = schema.names
            native, schema = self._select_columns(ref, native, schema)
            of_folders = partition_columns(self.spark, native) if native.masks else []
        except (PySparkException, Py4JJavaError) as error:
            raise explain_read_error(self.spark, ref.native, error, where) from error
        except TableError as error:
            raise TableError(error.what, where=error.where or where, remedy=error.remedy) from error
        taken = [name for name in schema.names if name.lower() in (MODIFIED, PATH)]
        if taken:
            raise TableError(
                f"the files have a column {taken[0]!r}, which the loader writes itself",
                where=where,
                remedy="Rename it in the files, or exclude it with the table's `columns`",
            )
        loader_fields = [StructField(MODIFIED, TimestampType()), StructField(PATH, StringType())]
        table = SourceTable(
            replace(ref, native=native),
            StructType([*schema.fields, *loader_fields]),
            cursor_field=MODIFIED,
            column_comments={
                MODIFIED: "The modification time (UTC) of the file that contains the row.",
                PATH: "The path of the file that contains the row.",
            },
            excluded=tuple(name for name in all_names if name not in schema.names),
        )
        if native.masks:
            check_masks(table, [MODIFIED, PATH], of_folders, where)
        return table

    def _select_columns(
        self, ref: TableRef, native: ReaderOptions, schema: StructType
    ) -> tuple[ReaderOptions, StructType]:
        options = self._options_of(ref.name)
        if options.columns is None:
            return native, schema
        cursor = options.choose_cursor(schema.names) or ""
        required = [*(options.primary_key or ()), cursor, options.deleted_field or ""]
        chosen = self.select_columns(ref, schema.names, required)
        types = [c.dataType if c.name in chosen else StringType() for c in schema.fields]
        fields = map(StructField, schema.names, types)
        return (
            replace(
                native,
                all_columns=StructType(list(fields)),
                as_read=tuple(each for each in native.as_read if each[0] in chosen),
            ),
            StructType([field for field in schema.fields if field.name in chosen]),
        )

    def _remembered_columns(
        self, ref: TableRef, native: ReaderOptions
    ) -> tuple[ReaderOptions, StructType] | None:
        """Returns the columns that the last sync stored; None if the files have changed since."""
        if self._marks is None or native.columns is not None or native.types or native.selection:
            return None
        try:
            marks = self._marks(ref.name)
        except LoaderError:  # the sync reports this error later
            return None
        if len(marks) != 1:
            return None
        return find_stored_columns(files(self.spark, native), native, marks[0])

    def _read_nested(self, ref: TableRef) -> ReaderOptions:
        """Returns reader options for nested folders.

        Raises:
            TableError: if Spark would silently skip files.
        """
        native: ReaderOptions = ref.native
        if any(name.lower() == RECURSIVE.lower() for name, _ in native.options):
            return native
        if not partition_columns(self.spark, native):
            return replace(native, options=(*native.options, (RECURSIVE, "true")))
        read = list_files(self.spark, native)
        paths: Any = read._jdf.inputFiles()
        skipped = len(paths) - read.select("path").count()
        if skipped > 0:
            raise TableError(
                f"{skipped} of its files are outside the folders named column=value, and Spark "
                "would not read them",
                where=f"table {self.name}.{ref.name} ({native.path})",
                remedy="Move them into such folders, or set the option recursiveFileLookup: "
                "'true', which ignores the values in the names of folders",
            )
        return native

    @contextmanager
    def snapshot(self, tables: Sequence[SourceTable]) -> Iterator[FileSnapshot]:
        yield FileSnapshot(self.spark)


def _check_name_is_unique(ref: TableRef, where: str) -> None:
    """Rejects a table if several files or folders have its name, because only one would be read."""
    native: ReaderOptions = ref.native
    if not native.rivals:
        return
    entries = [show_name(name) for name in (native.path.rpartition("/")[2], *native.rivals)]
    shown = ", ".join(entries[:3]) + (f" and {len(entries) - 3} more" if entries[3:] else "")
    raise TableError(
        f"{len(entries)} files or folders have this table's name, which ends at the first dot: "
        f"{shown}",
        where=where,
        remedy=f"To read them as one table, move them into a folder {ref.name}, or set the table's "
        f"`path` to a pattern such as {ref.name}.*; otherwise rename them, or set its `path` to "
        "one of them",
    )
