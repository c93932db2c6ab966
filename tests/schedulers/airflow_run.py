"""Runs a DAG from Airflow's folder once, and prints its tasks and asset events as JSON.

Airflow's Python runs this file: python airflow_run.py DAG
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow import settings
from airflow.dag_processing.dagbag import DagBag
from airflow.models.asset import AssetEvent, AssetModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from sqlalchemy import select

dag = DagBag(Path(settings.DAGS_FOLDER)).dags[sys.argv[1]]
run = dag.test()
with create_session() as session:
    tasks = session.scalars(select(TaskInstance).where(TaskInstance.run_id == run.run_id))
    events = session.execute(
        select(AssetModel.uri, AssetEvent.extra)
        .join(AssetEvent, AssetEvent.asset_id == AssetModel.id)
        .where(AssetEvent.source_run_id == run.run_id)
    )
    result = {
        "state": run.state,
        "tasks": {task.task_id: [task.state, task.try_number] for task in tasks},
        "events": {row.uri: row.extra for row in events},
    }
print(json.dumps(result))
