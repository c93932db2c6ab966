"""Releases JVM objects that Python no longer uses, in batches.

Py4J releases each one in a call of its own, in a separate thread. In a small sync that was a third
of all calls to the JVM.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

from py4j.clientserver import JavaClient
from py4j.java_gateway import JavaObject
from py4j.protocol import ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID

_TOGETHER = 100
_NEEDED = {ENTRY_POINT_OBJECT_ID, GATEWAY_SERVER_OBJECT_ID}


def collect_together(gateway: Any) -> None:
    """Makes a gateway release unused objects in batches; does nothing if it cannot.

    Args:
        gateway: PySpark's, which has just been made.
    """
    client = gateway._gateway_client
    if not isinstance(client, JavaClient):  # PYSPARK_PIN_THREAD is off: there is no such thread
        return
    server = JavaObject(GATEWAY_SERVER_OBJECT_ID, client)
    known = server.getGateway().getBindings().keySet()
    texts = gateway.jvm.org.apache.hadoop.util.StringUtils
    unused: list[str] = []

    def garbage_collect_object(self: Any, target_id: str, enqueue: bool = True) -> None:
        if enqueue:
            self.finalizer_deque.appendleft((self, target_id))
            return
        # Only Py4J's own thread comes here.
        if target_id not in _NEEDED:
            unused.append(target_id)
        if len(unused) < _TOGETHER:
            return
        together = unused.copy()
        unused.clear()
        try:
            known.removeAll(texts.getStringCollection(",".join(together)))
        except Exception:
            for one in together:
                JavaClient.garbage_collect_object(self, one, False)

    client.garbage_collect_object = MethodType(garbage_collect_object, client)
