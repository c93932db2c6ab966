"""The SQL dialect of PostgreSQL."""

from __future__ import annotations

from pyspark.sql.types import DataType

from loader.sources.jdbc.connections import Connection
from loader.sources.jdbc.dialect import LOGIN_SECONDS, Dialect, Key, TablePath, TableSize
from loader.sources.jdbc.lossy_values import (
    ARRAY,
    BYTES,
    CHARS,
    TIME,
    Column,
    LossyValue,
    find_postgresql_losses,
    has_odd_scale,
    is_bits,
    jdbc_type,
)
from loader.spark.error_translation import ConnectionRefusedByServer

_TIME_OF_DAY = (
    "(to_char({}::time, 'HH24:MI:SS.US') || coalesce(substring({}::text from '[-+].*'), ''))"
)
"""SQL that formats a time of day. It preserves values such as 24:00 and 10:00+01."""
_TIMES_OF_DAY = (
    f"coalesce((select array_agg({_TIME_OF_DAY.replace('{}', 'value')} order by place) "
    "from unnest({}) with ordinality as times (value, place)), {}::text[])"
)
_AS_TEXTS = ("_bpchar", "_bit", "_varbit")
"""Array types whose elements Spark reads as strings."""
_SILENT = 60
"""The number of idle seconds after which the server must send a keepalive packet."""


class PostgreSQL(Dialect):
    prefixes = ("jdbc:postgresql:",)
    driver = "org.postgresql.Driver"
    session = ("set time zone 'UTC'", "set standard_conforming_strings = on")
    shares_snapshots = True
    network = (
        ("tcpKeepAlive", "true"),  # detects a broken network during a read
        ("loginTimeout", str(LOGIN_SECONDS)),  # this driver ignores DriverManager's timeout
    )
    instant_types = frozenset({"timestamptz"})
    system_schemas = frozenset({"information_schema", "pg_catalog", "pg_toast"})

    def select_expression(self, row: Column) -> str:
        kind = jdbc_type(row)
        if kind in CHARS or is_bits(row):
            return "{}::text"  # the cast removes the padding of a char(n)
        if has_odd_scale(row):  # Spark does not support such scales
            size, scale = int(row["COLUMN_SIZE"] or 0), int(row["DECIMAL_DIGITS"] or 0)
            scale -= 2048 if scale > 1000 else 0  # the driver adds 2048 to a negative scale
            return f"{{}}::numeric({max(size - min(scale, 0), scale)}, {max(scale, 0)})"
        if kind == ARRAY:
            # Spark 4 assumes that an array has as many dimensions as its column declares. This does
            # not apply to an expression, so the column is wrapped in one.
            type_name = row.get("TYPE_NAME")
            if type_name in _AS_TEXTS:
                return "{}::text[]"
            return _TIMES_OF_DAY if type_name in ("_time", "_timetz") else "coalesce({})"
        return _TIME_OF_DAY if kind == TIME else ""

    def as_text(self, row: Column) -> str:
        if jdbc_type(row) in BYTES:  # independent of the setting bytea_output
            return r"('\x' || encode({}, 'hex'))"
        return _TIME_OF_DAY if jdbc_type(row) == TIME else "{}::text"

    def find_lossy_values(
        self, index: int, kind: DataType, row: Column, binary: bool
    ) -> list[LossyValue]:
        return find_postgresql_losses(index, kind, row, binary)

    @classmethod
    def limit_lock_wait(cls, seconds: int) -> tuple[str, ...]:
        return (f"set lock_timeout = '{seconds}s'",)

    @classmethod
    def disable_idle_timeout(cls, version: int) -> tuple[str, ...]:
        return ("set idle_session_timeout = 0",) if version >= 14 else ()

    def keep_alive(self, connection: Connection) -> tuple[str, ...]:
        # Most operating systems send keepalive packets only after two hours.
        try:
            [(seconds,)] = connection.rows("select current_setting('tcp_keepalives_idle')")
        except ConnectionRefusedByServer:  # a product that only uses PostgreSQL's protocol
            return ()
        is_short = 0 < int(seconds or 0) <= _SILENT
        return () if is_short else (f"set tcp_keepalives_idle = {_SILENT}",)

    def has_properties(self, connection: Connection) -> bool:
        # This is a custom setting, because a standard one could be set in a pooler's shared session
        # even if the pooler dropped the loader's properties.
        [(setting,)] = connection.rows("select current_setting('strandline.direct', true)")
        return setting == "on"

    @classmethod
    def choose_read_properties(cls, version: int, readers: int) -> dict[str, str]:
        # The binary format halves the CPU time of a read; -1 enables it from the first query on.
        # The driver formats binary points and boxes differently than PostgreSQL does. A version
        # below 10 indicates a product that only uses PostgreSQL's protocol.
        binary = {"prepareThreshold": "-1", "binaryTransferDisable": "POINT,BOX,TIME,TIMETZ"}
        # With a limit, unexpectedly large rows make one read fail instead of the whole JVM. Spark
        # needs the same amount of memory again to copy the rows.
        percent = max(2, 40 // readers)
        return {**binary, "maxResultBuffer": f"{percent}percent"} if version >= 10 else {}

    @classmethod
    def choose_startup_properties(cls, seconds: int) -> dict[str, str]:
        # The timeout must be off from the start of the session, because the driver first queries
        # types and is then idle in the transaction.
        no_timeout = "-c idle_in_transaction_session_timeout=0"
        return {"options": f"-c lock_timeout={seconds}s {no_timeout} -c strandline.direct=on"}

    def date(self, text: str) -> str:
        return f"date '{text}'"

    def timestamp(self, text: str) -> str:
        return f"timestamp '{text}'"

    def instant(self, text: str) -> str:
        return f"timestamptz '{text}+00'"

    def wall_offset(self, connection: Connection) -> int:
        # The driver sets the session's time zone to the JVM's, so `show timezone` returns UTC.
        # Other clients use the time zone of the role, the database or the server. The server's time
        # zone is visible only in log_timezone, which initdb sets to the same zone.
        [(seconds,)] = connection.rows(
            """
            with zone as (
                select coalesce(
                    (
                        select substr(setting, 10)
                        from pg_catalog.pg_db_role_setting,
                            unnest(setconfig) as setting
                        where lower(setting) like 'timezone=%'
                            and setdatabase in (0, (
                                select oid from pg_catalog.pg_database
                                where datname = current_database()
                            ))
                            and setrole in (0, (
                                select oid from pg_catalog.pg_roles
                                where rolname = current_user
                            ))
                        order by setrole = 0, setdatabase = 0
                        limit 1
                    ),
                    current_setting('log_timezone')
                ) as name
            )
            select round(extract(epoch from timezone(name, now()) - timezone('UTC', now())))::int
            from zone
            """
        )
        return int(seconds or 0)

    def list_hidden_tables(self, connection: Connection) -> set[tuple[str, str]]:
        # Reading a parent also reads the rows of its partitions.
        return {
            (schema or "", name or "")
            for schema, name in connection.rows(
                """
                select n.nspname, c.relname
                from pg_catalog.pg_class as c
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                where c.relispartition
                """
            )
        }

    def list_remote_tables(self, connection: Connection) -> set[tuple[str, str]]:
        try:
            tables = connection.rows(
                """
                with recursive above as (
                    select i.inhparent as id
                    from pg_catalog.pg_inherits as i
                    join pg_catalog.pg_class as c on c.oid = i.inhrelid and c.relkind = 'f'
                    union
                    select i.inhparent
                    from pg_catalog.pg_inherits as i
                    join above on above.id = i.inhrelid
                )

                select n.nspname, c.relname
                from above
                join pg_catalog.pg_class as c on c.oid = above.id
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                """
            )
        except ConnectionRefusedByServer:  # a product that only uses PostgreSQL's protocol
            return set()
        return {(schema or "", name or "") for schema, name in tables}

    def list_unmet_requirements(self, connection: Connection, relation: str) -> list[str]:
        [(hides,)] = connection.rows(
            f"select pg_catalog.row_security_active({self.text(relation)}::regclass)::text"
        )
        if hides != "true":
            return []
        return [
            "row-level security hides rows from this role. Rows that a policy reveals later may "
            "never be loaded, and `loader reconcile` treats hidden rows as deleted. Read the table "
            "with a role that has BYPASSRLS"
        ]

    def read_size(self, connection: Connection, place: TablePath) -> TableSize | None:
        _, schema, table = place
        [(size, rows)] = connection.rows(
            f"""
            with recursive part as (
                select c.oid as id
                from pg_catalog.pg_class as c
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                where n.nspname = {self.text(schema or "")}
                    and c.relname = {self.text(table)}
                union
                select i.inhrelid
                from pg_catalog.pg_inherits as i
                join part on part.id = i.inhparent
            )

            select
                sum(pg_catalog.pg_table_size(c.oid))::bigint,
                sum(greatest(c.reltuples, 0))::bigint
            from part
            join pg_catalog.pg_class as c on c.oid = part.id
            where c.relkind in ('r', 'm')
            """
        )
        return TableSize(int(size), int(rows or 0)) if size is not None else None

    def read_key(self, connection: Connection, place: TablePath) -> Key:
        # The driver would also list the index's INCLUDE columns. A key is not unique across child
        # tables (INHERITS), unless they are chunks of TimescaleDB.
        _, schema, table = place
        try:
            rows = connection.text_rows(
                f"""
                select
                    a.attname,
                    (
                        c.relkind = 'r'
                        and exists (
                            select
                            from pg_catalog.pg_inherits as i
                            join pg_catalog.pg_class as h on h.oid = i.inhrelid
                            join pg_catalog.pg_namespace as s on s.oid = h.relnamespace
                            where i.inhparent = c.oid and s.nspname <> '_timescaledb_internal'
                        )
                    )::text
                from pg_catalog.pg_class as c
                join pg_catalog.pg_namespace as n on n.oid = c.relnamespace
                join pg_catalog.pg_constraint as k on k.conrelid = c.oid and k.contype = 'p'
                cross join unnest(k.conkey) with ordinality as part (number, place)
                join pg_catalog.pg_attribute as a
                    on a.attrelid = c.oid
                    and a.attnum = part.number
                where n.nspname = {self.text(schema or "")}
                    and c.relname = {self.text(table)}
                order by part.place
                """
            )
        except ConnectionRefusedByServer:  # a product that only uses PostgreSQL's protocol
            return super().read_key(connection, place)
        columns = tuple(name or "" for name, _ in rows)
        if any(has_children == "true" for _, has_children in rows):
            return Key(
                (),
                f"child tables (INHERITS) may repeat values of {', '.join(columns)}; if they do "
                "not, set primary_key, otherwise read each table separately",
            )
        return Key(columns)

    def is_ordered_by_bytes(self, connection: Connection, place: TablePath, column: str) -> bool:
        _, schema, table = place
        answer = connection.rows(
            f"""
            select (
                coalesce(base.typname, own.typname) in ('uuid', 'name')
                or (
                    coalesce(base.typname, own.typname) in ('text', 'varchar')
                    and pg_catalog.pg_encoding_to_char(d.encoding) in ('UTF8', 'LATIN1')
                    and case
                        when c.collname = 'default' and c.collnamespace = 'pg_catalog'::regnamespace
                            then to_jsonb(d) ->> 'datlocprovider' = 'b'
                                or (
                                    coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') = 'c'
                                    and d.datcollate in ('C', 'POSIX')
                                )
                        else c.collprovider = 'b'
                            or (c.collprovider = 'c' and c.collcollate in ('C', 'POSIX'))
                    end
                )
            )::text
            from pg_catalog.pg_attribute as a
            join pg_catalog.pg_class as r on r.oid = a.attrelid
            join pg_catalog.pg_namespace as n on n.oid = r.relnamespace
            join pg_catalog.pg_type as own on own.oid = a.atttypid
            join pg_catalog.pg_database as d on d.datname = current_database()
            left join pg_catalog.pg_type as base on base.oid = own.typbasetype
            left join pg_catalog.pg_collation as c on c.oid = a.attcollation
            where n.nspname = {self.text(schema or "")}
                and r.relname = {self.text(table)}
                and a.attname = {self.text(column)}
            """
        )
        return answer == [("true",)]
