"""Airflow 3: an operator that runs ``loader run``, and a task group with an asset for each table.

The loader runs in a separate process, so Airflow and Spark may be installed in two virtual
environments::

    from airflow.sdk import DAG
    from loader.schedulers.airflow import build_task_group

    with DAG("shop", schedule="*/15 * * * *", catchup=False, max_active_runs=1):
        build_task_group("/srv/shop/loader.yml", ["shop.orders", "shop.customers"], retries=2)
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.sdk import Asset, BaseOperator, Context, TaskGroup, TriggerRule
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from loader.names import is_wildcard
from loader.schedulers import list_tables, name_raw_table

RESULTS = "tables"
"""The key of the XCom that maps each table to its result."""

_COUNTS = {"read": "rows_read", "appended": "rows_appended", "redelivered": "rows_redelivered"}
_OWN_KEYS = ("event", "at", "table")


class LoaderRunOperator(BaseOperator):
    """Syncs tables with ``loader run``, in one Spark session.

    The task succeeds if all tables were synced. Its outlets then have the results of their tables
    as metadata. The default outlets are the assets of the tables in `select`.

    The task fails without a retry if every error needs a manual fix, such as a correction to the
    spec. If the task is stopped, the loader publishes no further batches.

    Args:
        config: the path of loader.yml.
        select: tables as `source.table`, or wildcards; empty for all tables.
        arguments: further options of ``loader run``, such as `--build`. Templated.
        env: environment variables for the loader, in addition to Airflow's. Templated, so that they
            can refer to Airflow's connections.
        executable: the path of ``loader`` in another virtual environment.

    Example:
        >>> LoaderRunOperator(
        ...     task_id="load",
        ...     config="/srv/shop/loader.yml",
        ...     select=["shop.orders"],
        ...     env={"PGPASSWORD": "{{ conn.shop.password }}"},
        ...     executable="/srv/shop/.venv/bin/loader",
        ... )  # doctest: +SKIP
    """

    template_fields: Sequence[str] = ("arguments", "env")
    ui_color = "#cfe8ef"

    def __init__(
        self,
        *,
        config: str,
        select: Sequence[str] = (),
        arguments: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        executable: str = "loader",
        **kwargs: Any,
    ) -> None:
        kwargs.setdefault(
            "outlets", [build_asset(name) for name in select if not is_wildcard(name)]
        )
        super().__init__(**kwargs)
        self.config = config
        self.select = list(select)
        self.arguments = arguments
        self.env = env
        self.executable = executable
        self._process: subprocess.Popen[str] | None = None

    def execute(self, context: Context) -> None:
        """Runs the loader, and pushes the results of its tables.

        Raises:
            AirflowFailException: if every error needs a manual fix.
            AirflowException: if a retry may help.
        """
        events, code = self._run()
        errors = [event for event in events if event["event"] == "error"]
        results = {
            event["table"].lower(): _describe(event)
            for event in events
            if event["event"] == "table"
        }
        # If the run failed, but none of its tables did, no table counts as synced.
        has_failed_table = any(map(_is_failed, results.values()))
        if results and (code == 0 or has_failed_table):
            context["ti"].xcom_push(RESULTS, results)
        if code == 0:
            for outlet in self.outlets:
                if isinstance(outlet, Asset) and outlet.name.lower() in results:
                    context["outlet_events"][outlet].extra = results[outlet.name.lower()]
            return
        text = "\n".join(map(_format_error, errors)) or f"the loader exited with code {code}"
        was_killed = code < 0
        if errors and not was_killed and not any(error["retryable"] for error in errors):
            raise AirflowFailException(text)
        raise AirflowException(text)

    def on_kill(self) -> None:
        """Stops the loader, which exits within 20 seconds, even if this process is killed."""
        if self._process is not None:
            self._process.terminate()

    def _run(self) -> tuple[list[dict[str, Any]], int]:
        selected = [f"--select={name}" for name in self.select]
        command = [self.executable, "-c", self.config, "--log-format", "json", "run"]
        try:
            self._process = subprocess.Popen(
                [*command, *selected, *self.arguments],
                env={**os.environ, **(self.env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                errors="replace",
                # Airflow kills the process group of a task five seconds after SIGTERM.
                start_new_session=True,
            )
        except OSError as error:
            raise AirflowFailException(
                f"{self.executable} cannot be started: {error.strerror}. Set `executable` to the "
                "path of `loader` in its virtual environment"
            ) from None
        assert self._process.stdout is not None
        events = []
        try:
            for line in self._process.stdout:
                event = _read_event(line)
                if event is None:
                    self.log.info("%s", line.rstrip())
                else:
                    events.append(event)
                    self._log_event(event)
            return events, self._process.wait()
        except BaseException:  # the task's execution_timeout
            self._process.terminate()
            self._process.wait()
            raise

    def _log_event(self, event: Mapping[str, Any]) -> None:
        kind = event["event"]
        if kind == "error":
            self.log.error("%s", _format_error(event))
        elif kind == "warning":
            self.log.warning("%s", event["text"])
        elif kind == "phase":
            self.log.info("%s: %s", event["table"], event["phase"])
        else:
            facts = {key: value for key, value in event.items() if key not in ("event", "at")}
            self.log.info("%s %s", kind, json.dumps(facts, ensure_ascii=False))


class TableOperator(BaseOperator):
    """Succeeds and emits a table's asset if another task has synced the table.

    Args:
        table: the table as `source.table`.
        load_task_id: the task of the :class:`LoaderRunOperator`.
    """

    ui_color = "#e8f4dc"

    def __init__(self, *, table: str, load_task_id: str, **kwargs: Any) -> None:
        self.asset = build_asset(table)
        super().__init__(outlets=[self.asset], **kwargs)
        self.load_task_id = load_task_id

    def execute(self, context: Context) -> dict[str, Any]:
        """Returns the table's result.

        Raises:
            AirflowFailException: if the table was not synced.
        """
        results = context["ti"].xcom_pull(task_ids=self.load_task_id, key=RESULTS) or {}
        result: dict[str, Any] | None = results.get(self.asset.name.lower())
        if result is None:
            raise AirflowFailException(
                f"{self.asset.name} was not synced: see the log of {self.load_task_id}"
            )
        if _is_failed(result):
            raise AirflowFailException(str(result["error"]))
        context["outlet_events"][self.asset].extra = result
        return result


def build_task_group(
    config: str,
    tables: Sequence[str] = (),
    *,
    group_id: str = "strandline",
    **load: Any,
) -> TaskGroup:
    """Builds a task for each table, and the task `load`, which syncs them in one Spark session.

    Airflow emits assets only for tasks that succeed. The task of a table only reads the table's
    result. So if a table fails, the assets of all other tables are still emitted.

    Args:
        config: the path of loader.yml.
        tables: the tables as `source.table`. The default is the spec's tables, which requires a
            spec without wildcards, and the spec's environment variables in the DAG processor.
        load: arguments of :class:`LoaderRunOperator` for the task `load`, such as `retries`.

    Raises:
        SpecError: if no tables are given, and the spec is invalid or uses wildcards.
    """
    names = list(tables) or list_tables(config)
    with TaskGroup(group_id) as group:
        task = LoaderRunOperator(task_id="load", config=config, select=names, outlets=[], **load)
        for name in names:
            task >> TableOperator(
                task_id=re.sub(r"[^\w.-]", "_", name_raw_table(name)),
                table=name,
                load_task_id=task.task_id,
                retries=0,
                trigger_rule=TriggerRule.NONE_SKIPPED,
            )
    return group


def build_asset(table: str) -> Asset:
    """Returns the asset of a raw table, for the schedule of another DAG.

    Args:
        table: the table as `source.table`.

    Example:
        >>> build_asset("shop.sales.orders").uri  # doctest: +SKIP
        'x-strandline://shop/sales_orders'
    """
    name = name_raw_table(table)
    return Asset(name, uri=f"x-strandline://{name.replace('.', '/', 1)}", group="strandline")


def _read_event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


def _describe(event: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a table's result with the field names of :class:`loader.api.TableResult`."""
    return {
        _COUNTS.get(key, key): value
        for key, value in event.items()
        if value is not None and key not in _OWN_KEYS
    }


def _is_failed(result: Mapping[str, Any]) -> bool:
    return "error" in result


def _format_error(event: Mapping[str, Any]) -> str:
    where = f"{event['where']}: " if event["where"] else ""
    return f"{where}{event['what']}. {event['remedy']}".rstrip()
