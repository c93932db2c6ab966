"""What Python sees of the JVM, remembered.

Py4J asks the JVM what `jvm.org.apache.spark.sql.functions` is name by name, at every use, and Java
looks for a class called `org` in each jar before it answers that this is a package. That was a
fifth of the JVM's work in a small sync, most of it for PySpark's own calls.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaPackage, JVMView


def remember(gateway: Any) -> None:
    """Has a gateway ask for each class and package once.

    Args:
        gateway: PySpark's, after it has imported its names and before a session keeps its view.
    """
    view = gateway.jvm
    gateway.jvm = _View(view._gateway_client, view._jvm_name, id=view._id)


class _View(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _remembered(self, name, super().__getattr__(name))


def _remembered(owner: Any, name: str, found: Any) -> Any:
    """A name's meaning, kept as an attribute: Python asks no further for one that is there.

    Py4J takes every name that it does not know for a package. One that is no package's name, and
    may be a class's later on (`java_import`), is not kept.
    """
    if isinstance(found, JavaPackage):
        if not name.islower():
            return found
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    owner.__dict__[name] = found
    return found
