"""Caches what Python sees of the JVM.

Py4J asks the JVM what `jvm.org.apache.spark.sql.functions` is name by name, at every use, and Java
looks for a class called `org` in each jar before it answers that this is a package. That was a
fifth of the JVM's work in a small sync, most of it for PySpark's own calls. It also asks for a
class's static method at each call, and for the instance behind a Scala object.
"""

from __future__ import annotations

from typing import Any

from py4j.java_gateway import JavaClass, JavaMember, JavaPackage, JVMView


def remember(gateway: Any) -> None:
    """Makes a gateway ask for each package, class, static method and Scala object only once.

    Args:
        gateway: PySpark's, after it has imported its names and before a session keeps its view.
    """
    view = gateway.jvm
    gateway.jvm = _View(view._gateway_client, view._jvm_name, id=view._id)


class _View(JVMView):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _cache_attribute(self, name, super().__getattr__(name))


class _Package(JavaPackage):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        return _cache_attribute(self, name, super().__getattr__(name))


class _Class(JavaClass):  # type: ignore[misc]
    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        # a static method, or the one instance of a Scala object; other static fields may change
        if isinstance(found, JavaMember) or name == "MODULE$":
            self.__dict__[name] = found
        return found


def _cache_attribute(owner: Any, name: str, found: Any) -> Any:
    """Returns what a name stands for, kept as an attribute: Python uses that without asking again.

    Py4J takes every name that it does not know for a package. A name that does not look like a
    package's is not kept, because it may become a class's later (`java_import`).
    """
    if isinstance(found, JavaPackage):
        if not name.islower():
            return found
        found = _Package(found._fqn, found._gateway_client, found._jvm_id)
    elif isinstance(found, JavaClass):
        found = _Class(found._fqn, found._gateway_client)
    owner.__dict__[name] = found
    return found
